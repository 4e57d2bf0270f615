"""`saturnmq store restore-truncated` over a real broker: what was cut off a log returns, once."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from saturnmq import Admin, Message, Producer, SaturnError
from saturnmq.cli import store_restore
from saturnmq.cli.store import app
from saturnmq.runtime.errors import StoreDamaged
from saturnmq.store.message_store import PendingMessage
from served_rig import served
from store_rig import SEGMENT
from truncated_rig import BORN, cut_off, pending
from typer.testing import CliRunner

BODIES = [b"%d" % number * 40 for number in range(30)]


@pytest.fixture
def nameserver(tmp_path):
    with served(tmp_path / "broker") as address:
        with Admin(address) as admin:
            admin.create_topic("orders", queues=4)
        yield address


@pytest.fixture
def run(nameserver):
    """The command; its exit status, its document and what it says of errors."""

    def run_one(*arguments: str | Path):
        command = ["restore-truncated", *map(str, arguments), "--json"]
        done = CliRunner().invoke(app, command, env={"SATURNMQ_NAMESERVER": nameserver})
        if isinstance(done.exception, SaturnError):  # which the program's main tells
            return 1, {}, str(done.exception)
        return done.exit_code, json.loads(done.stdout or "{}"), done.stderr

    return run_one


def counts(done) -> tuple[int, int, int, int, int]:
    """Messages, in the cluster, wanted, left out, sent."""
    status, facts, told = done
    assert status == 0, (facts, told)
    return tuple(facts[name] for name in ("messages", "present", "wanted", "left_out", "sent"))


def left_out(done) -> dict[str, int]:
    return {
        reason: count
        for file in done[1]["files"]
        for topic in file["topics"]
        for reason, count in topic["left_out"].items()
    }


def stored(nameserver: str, count: int, topic: str = "orders") -> list:
    """All messages of the topic, which are `count`."""
    with Admin(nameserver) as admin:
        found = admin.find_by_time(topic, 0, limit=1000)
    assert len(found) == count
    return found


def files_of(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.parent.iterdir()}


def test_what_was_cut_off_is_shown_then_sent_and_found_by_the_next_run(
    tmp_path, nameserver, run
) -> None:
    own = {"KEYS": "k1 k2", "TAGS": "red", "mine": "x"}
    side = cut_off(
        tmp_path / "cut", [pending(body, queue=n % 3, **own) for n, body in enumerate(BODIES)]
    )
    before = files_of(side)
    preview = run(side)
    assert counts(preview) == (30, 0, 30, 0, 0)
    assert preview[1]["done"] is False
    [file] = preview[1]["files"]
    assert (file["file"], file["epoch"], file["reason"]) == (str(side), 3, "deposed")
    stored(nameserver, 0)
    sent = run(side, "--send")
    assert counts(sent) == (30, 0, 30, 0, 30)
    assert sent[1]["done"] is True
    got = stored(nameserver, 30)
    for number in range(3):
        bodies = [bytes(m.body) for m in got if m.queue_id == number]
        assert bodies == BODIES[number::3], "the same queue, in its order"
    message = got[0]
    assert {**message.properties, **own} == message.properties
    assert message.message_id == bytes(message.body).decode()
    assert message.born_timestamp == BORN
    assert message.properties["RESTORED_FROM"].startswith(f"{side.name}@")
    assert counts(run(side, "--send")) == (30, 30, 0, 0, 0)
    assert counts(run(side)) == (30, 30, 0, 0, 0)
    assert files_of(side) == before


def test_the_brokers_own_levels_say_what_is_left_of_a_delay(tmp_path) -> None:
    later = {"DELAY": "1", "REAL_TOPIC": "orders", "REAL_QID": "0"}
    side = cut_off(tmp_path / "cut", [pending(b"a", "SCHEDULE_TOPIC_XXXX", **later)], age_s=600)
    options = {"delay_levels": "1h 2h"}
    with served(tmp_path / "broker", store_options=options) as nameserver:
        with Admin(nameserver) as admin:
            admin.create_topic("orders", queues=1)
        command = ["restore-truncated", str(side), "--send"]
        done = CliRunner().invoke(app, command, env={"SATURNMQ_NAMESERVER": nameserver})
        assert done.exit_code == 0
        with Admin(nameserver) as admin:
            waits = admin.find_message("a", "SCHEDULE_TOPIC_XXXX")
        assert waits.properties["DELAY"] == "1"


def test_what_its_sender_sent_again_is_not_wanted(tmp_path, nameserver, run) -> None:
    with Producer(nameservers=nameserver) as producer:
        for body in BODIES[:10]:
            properties = {"UNIQ_KEY": body.decode()}
            producer.send(Message("orders", body, properties=properties))
    side = cut_off(tmp_path / "cut", [pending(body) for body in BODIES])
    assert counts(run(side)) == (30, 10, 20, 0, 0)
    assert counts(run(side, "--send")) == (30, 10, 20, 0, 20)
    assert sorted(bytes(m.body) for m in stored(nameserver, 30)) == sorted(BODIES)


def test_messages_without_ids_get_some_by_which_they_are_found(tmp_path, nameserver, run) -> None:
    messages = [PendingMessage("orders", 0, body) for body in BODIES[:3]]
    side = cut_off(tmp_path / "cut", messages)
    assert counts(run(side, "--send")) == (3, 0, 3, 0, 3)
    assert counts(run(side, "--send")) == (3, 3, 0, 0, 0)
    assert len({message.message_id for message in stored(nameserver, 3)}) == 3


def test_keys_keep_their_queues(tmp_path, nameserver, run) -> None:
    messages = [pending(body, **{"__SHARDINGKEY": f"k{n % 5}"}) for n, body in enumerate(BODIES)]
    side = cut_off(tmp_path / "cut", messages)
    with Producer(nameservers=nameserver) as producer:
        queues = {
            key: producer.send(Message("orders", b"new", sharding_key=key)).queue.queue_id
            for key in (f"k{number}" for number in range(5))
        }
    assert counts(run(side, "--send")) == (30, 0, 30, 0, 30)
    for message in stored(nameserver, 35):
        assert message.queue_id == queues[message.properties["__SHARDINGKEY"]]


def test_delayed_messages_wait_for_what_is_left_and_come_at_once_when_it_is_over(
    tmp_path, nameserver, run
) -> None:
    def waiting(name: str, level: int) -> PendingMessage:
        later = {"DELAY": str(level), "REAL_TOPIC": "orders", "REAL_QID": "2"}
        return pending(name.encode(), "SCHEDULE_TOPIC_XXXX", level - 1, **later)

    delivered = pending(b"delivered", queue=2, DELAY="1", REAL_TOPIC="orders", REAL_QID="2")
    messages = [waiting("due", 5), waiting("later", 18), waiting("delivered", 1), delivered]
    side = cut_off(tmp_path / "cut", messages, age_s=1810.0)
    preview = run(side)
    assert counts(preview) == (4, 0, 3, 1, 0)
    assert left_out(preview) == {"repeated": 1}
    assert [topic["topic"] for topic in preview[1]["files"][0]["topics"]] == ["orders"]
    assert counts(run(side, "--send")) == (4, 0, 3, 1, 3)
    got = stored(nameserver, 2)
    assert {(bytes(m.body), m.queue_id) for m in got} == {(b"due", 2), (b"delivered", 2)}
    with Admin(nameserver) as admin:
        [waits] = [admin.find_message("later", "SCHEDULE_TOPIC_XXXX")]
    assert waits.properties["DELAY"] == "18", "an hour and a half of the two"
    assert counts(run(side, "--send")) == (4, 3, 0, 1, 0), "the one that waits is found, too"


def test_timed_messages_wait_for_their_moment_and_recalled_ones_stay_away(
    tmp_path, nameserver, run
) -> None:
    moment = (time.time_ns() // 1_000_000 + 3_600_000) // 1000 * 1000

    def timed(name: str, out_ms: int, topic: str = "rmq_sys_wheel_timer", **more: str):
        place = {"REAL_TOPIC": "orders", "REAL_QID": "2", "TIMER_OUT_MS": str(out_ms), **more}
        place["SATURN_TIMER"] = f"m {out_ms + 1000}"
        return pending(name.encode(), topic, 2 if topic == "orders" else 0, **place)

    messages = [
        timed("at", moment - 1000, TIMER_DELIVER_MS=str(moment)),
        timed("after", moment, TIMER_DELAY_SEC="3600"),
        timed("due", 1_000, TIMER_DELAY_SEC="1"),
        timed("delivered", 1_000, TIMER_DELAY_SEC="1"),
        timed("delivered", 1_000, "orders", TIMER_DELAY_SEC="1"),
        timed("recalled", moment, TIMER_DELIVER_MS=str(moment)),
        timed("recalled", moment, TIMER_DEL_UNIQKEY="orders+recalled"),
    ]
    side = cut_off(tmp_path / "cut", messages)
    preview = run(side)
    assert counts(preview) == (7, 0, 4, 3, 0)
    assert left_out(preview) == {"repeated": 2, "recalled": 1}
    assert counts(run(side, "--send")) == (7, 0, 4, 3, 4)
    got = stored(nameserver, 2)
    assert {(bytes(m.body), m.queue_id) for m in got} == {(b"due", 2), (b"delivered", 2)}
    assert not {name for m in got for name in m.properties if "TIMER" in name}
    with Admin(nameserver) as admin:
        waiting = [admin.find_message(name, "rmq_sys_wheel_timer") for name in ("at", "after")]
    told = [(m.properties["TIMER_DELIVER_MS"], m.properties["REAL_QID"]) for m in waiting]
    assert told == [(str(moment), "2"), (str(moment + 1000), "2")]
    assert counts(run(side, "--send")) == (7, 4, 0, 3, 0), "those that wait are found, too"


def test_what_consumers_gave_back_goes_to_their_retry_topic_with_its_last_copy(
    tmp_path, nameserver, run
) -> None:
    with Admin(nameserver) as admin:
        admin.create_group("readers")
        admin.create_topic("%RETRY%readers", queues=1)

    def given_back(name: str, group: str, deliveries: int) -> PendingMessage:
        message = pending(name.encode(), f"%RETRY%{group}", RETRY_TOPIC="orders", DELAY="3")
        message.reconsume_times = deliveries
        return message

    messages = [given_back("a", "readers", n) for n in (1, 2, 3)]
    side = cut_off(tmp_path / "cut", [*messages, given_back("b", "nobody", 1)])
    preview = run(side)
    assert counts(preview) == (4, 0, 1, 3, 0)
    assert left_out(preview) == {"repeated": 2, "no_topic": 1}
    assert counts(run(side, "--send")) == (4, 0, 1, 3, 1)
    with Admin(nameserver) as admin:
        found = admin.find_message("a", "%RETRY%readers")
    assert (found.reconsume_times, found.properties["RETRY_TOPIC"]) == (3, "orders")
    assert counts(run(side, "--send")) == (4, 1, 0, 3, 0)
    later = cut_off(tmp_path / "later", [given_back("a", "readers", 4)])
    assert counts(run(later)) == (1, 0, 1, 0, 0), "given back once more, and that was lost"


def test_a_copy_that_waits_to_be_retried_is_another_one(tmp_path, nameserver, run) -> None:
    with Admin(nameserver) as admin, Producer(nameservers=nameserver) as producer:
        admin.create_group("readers")
        admin.create_topic("%RETRY%readers", queues=1)
        given_back = Message("%RETRY%readers", b"a", properties={"UNIQ_KEY": "a"}, delay_level=18)
        producer.send(given_back)
    later = {"DELAY": "18", "REAL_TOPIC": "orders", "REAL_QID": "0"}
    side = cut_off(tmp_path / "cut", [pending(b"a", "SCHEDULE_TOPIC_XXXX", 17, **later)])
    assert counts(run(side)) == (1, 0, 1, 0, 0)


def test_a_dead_letter_is_not_given_to_its_group_again(tmp_path, nameserver, run) -> None:
    with Admin(nameserver) as admin:
        admin.create_group("readers", max_retries=2)
        for topic in ("%RETRY%readers", "%DLQ%readers"):
            admin.create_topic(topic, queues=1)
    dead = pending(b"dead", "%RETRY%readers", RETRY_TOPIC="orders")
    dead.reconsume_times = 3
    side = cut_off(tmp_path / "cut", [dead])
    assert counts(run(side, "--send")) == (1, 0, 1, 0, 1)
    with Admin(nameserver) as admin:
        assert bytes(admin.find_message("dead", "%DLQ%readers").body) == b"dead"
    assert counts(run(side, "--send")) == (1, 1, 0, 0, 0)


def test_what_is_no_message_of_a_user_is_told_and_left_out(tmp_path, nameserver, run) -> None:
    half = pending(b"half", "RMQ_SYS_TRANS_HALF_TOPIC", TRAN_MSG="true")
    system = pending(b"event", "OFFSET_MOVED_EVENT")
    deleted = pending(b"deleted", "nothing")
    rows = [b"row-1", b"row-2"]
    side = cut_off(tmp_path / "cut", [half, system, deleted, rows, pending(b"behind")])
    preview = run(side)
    assert counts(preview) == (7, 0, 1, 6, 0)
    reasons = dict.fromkeys(left_out(preview), 0)
    for topic in preview[1]["files"][0]["topics"]:
        for reason, count in topic["left_out"].items():
            reasons[reason] += count
    assert reasons == {"transaction": 1, "system": 2, "no_topic": 1, "sink": 2}
    assert counts(run(side, "--send")) == (7, 0, 1, 6, 1)
    assert [bytes(m.body) for m in stored(nameserver, 1)] == [b"behind"]
    with Admin(nameserver) as admin:
        assert "nothing" not in admin.list_topics()


def test_a_topic_that_takes_no_messages_is_told(tmp_path, nameserver, run) -> None:
    side = cut_off(tmp_path / "cut", [pending(b"a")])
    with Admin(nameserver) as admin:
        admin.alter_topic("orders", perm=4)
    assert left_out(run(side, "--send")) == {"closed": 1}


def test_filters_narrow_what_is_looked_at(tmp_path, nameserver, run) -> None:
    with Admin(nameserver) as admin:
        admin.create_topic("others")
    old = cut_off(tmp_path / "old", [pending(b"1", KEYS="k x"), pending(b"2")], age_s=7200)
    new = cut_off(tmp_path / "new", [pending(b"3", KEYS="x"), pending(b"4", "others", KEYS="x")])
    border = str(int((time.time() - 3600) * 1000))

    def wanted(*filters: str) -> int:
        return counts(run(old, new, *filters))[2]

    assert wanted() == 4
    assert (wanted("--topic", "orders"), wanted("--topic", "others")) == (3, 1)
    assert (wanted("--key", "x"), wanted("--key", "k")) == (3, 1)
    assert (wanted("--since", border), wanted("--until", border)) == (2, 2)
    assert wanted("--key", "x", "--until", border, "--topic", "orders") == 1
    assert counts(run(old, new, "--key", "k", "--send")) == (1, 0, 1, 0, 1)
    assert [bytes(m.body) for m in stored(nameserver, 1)] == [b"1"]
    status, _, told = run(old, "--since", "yesterday")
    assert (status, "ISO 8601" in told) == (1, True)
    status, _, told = run(old, "--since", "2", "--until", "1")
    assert (status, "--since 2 is after --until 1" in told) == (1, True)
    assert wanted("--since", "1", "--until", "1") == 0


def test_stores_directories_and_files_are_taken_and_each_file_once(
    tmp_path, nameserver, run
) -> None:
    side = cut_off(tmp_path / "cut", [pending(b"a"), pending(b"b")])
    copy = tmp_path / "elsewhere" / side.name
    copy.parent.mkdir()
    copy.write_bytes(side.read_bytes())
    for path in (side, side.parent, side.parents[1]):
        assert counts(run(path)) == (2, 0, 2, 0, 0)
    assert counts(run(side, side.parent, side.parents[1])) == (2, 0, 2, 0, 0)
    without_facts = run(copy, "--segment-bytes", str(SEGMENT))
    assert counts(without_facts) == (2, 0, 2, 0, 0)
    assert left_out(run(side, copy)) == {"repeated": 2}
    assert counts(run(copy, "--send", "--segment-bytes", str(SEGMENT))) == (2, 0, 2, 0, 2)
    assert counts(run(side)) == (2, 2, 0, 0, 0)


def test_what_is_neither_is_refused_and_a_store_without_cuts_has_nothing(
    tmp_path, nameserver, run
) -> None:
    assert counts(run(tmp_path / "broker")) == (0, 0, 0, 0, 0)
    other = tmp_path / "notes.log"
    other.write_bytes(b"x")
    for path in (other, tmp_path / "missing", tmp_path):
        status, _, told = run(path)
        assert status == 1
        assert "is no s" in told  # no store, no side file


def test_of_a_damaged_file_the_sound_part_is_restored_and_the_rest_told(
    tmp_path, nameserver, run
) -> None:
    side = cut_off(tmp_path / "cut", [pending(body) for body in BODIES[:10]])
    data = bytearray(side.read_bytes())
    data[len(data) // 2] ^= 1
    side.write_bytes(data)
    for arguments in ([side], [side, "--send"]):
        status, facts, _ = run(*arguments)
        assert status == 1
        assert facts["wanted"] == 9
        [gap, checksum] = facts["files"][0]["damage"]
        assert "bytes hold no frames" in gap["what"]
        assert 0 < gap["offset"] < len(data)
        assert "checksum" in checksum["what"]
    assert facts["sent"] == len(stored(nameserver, 9)) == 9


def test_what_a_broker_refuses_is_told_and_the_others_are_sent(tmp_path) -> None:
    with served(tmp_path / "broker", store_options={"max_message_bytes": 500}) as nameserver:
        with Admin(nameserver) as admin:
            admin.create_topic("orders", queues=1)
        messages = [pending(b"a"), pending(b"b" * 600, unique_id="B"), pending(b"c")]
        side = cut_off(tmp_path / "cut", messages)
        command = ["restore-truncated", str(side), "--send"]
        environment = {"SATURNMQ_NAMESERVER": nameserver, "COLUMNS": "200", "TERM": "dumb"}
        done = CliRunner().invoke(app, command, env=environment)
        assert done.exit_code == 1
        assert "sent 2 of 3 messages that were wanted" in done.stdout
        assert "1 messages were refused; the first: " in done.stderr
        assert f"{side.name}@" in done.stderr
        assert sorted(bytes(m.body) for m in stored(nameserver, 2)) == [b"a", b"c"]


def test_older_than_what_the_broker_keeps_is_sent_only_when_told_to(tmp_path) -> None:
    options = {"file_reserved_hours": 0, "delete_grace_ms": 0}
    side = cut_off(tmp_path / "cut", [pending(b"a")], age_s=3600)
    with served(tmp_path / "broker", store_options=options) as nameserver:

        def run(*arguments: str):
            command = ["restore-truncated", str(side), *arguments, "--json"]
            done = CliRunner().invoke(app, command, env={"SATURNMQ_NAMESERVER": nameserver})
            return done.exit_code, json.loads(done.stdout), done.stderr

        with Admin(nameserver) as admin, Producer(nameservers=nameserver) as producer:
            admin.create_topic("orders", queues=1)
            assert counts(run()) == (1, 0, 1, 0, 0), "nothing was ever deleted here"
            for _ in range(5):
                producer.send(Message("orders", os.urandom(300_000)))
            [node] = admin.cluster()
            deadline = time.monotonic() + 30
            while admin.broker_status(node.address)["commitLogMinOffset"] == "0":
                admin.delete_expired(node.address)
                assert time.monotonic() < deadline
                time.sleep(0.05)
        assert left_out(run("--send")) == {"expired": 1}
        assert counts(run("--send", "--expired")) == (1, 0, 1, 0, 1)
        assert counts(run("--send")) == (1, 1, 0, 0, 0)


def test_without_a_cluster_nothing_is_known_to_be_wanted(tmp_path) -> None:
    side = cut_off(tmp_path / "cut", [pending(b"a")])
    with served(tmp_path / "broker") as gone:
        pass
    for arguments in ([], ["--send"]):
        command = ["restore-truncated", str(side), *arguments]
        done = CliRunner().invoke(app, command, env={"SATURNMQ_NAMESERVER": gone})
        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr.startswith(f"saturnmq: no connection to {gone}")
        assert "sent" not in done.stderr


@pytest.mark.parametrize(("limit", "value"), [("CHUNK_MESSAGES", 4), ("CHUNK_BYTES", 728)])
def test_a_failure_on_the_way_says_where_and_the_next_run_goes_on(
    tmp_path, nameserver, run, monkeypatch, limit, value
) -> None:
    monkeypatch.setattr(store_restore, limit, value)
    side = cut_off(tmp_path / "cut", [pending(body) for body in BODIES[:10]])
    judge, judged = store_restore.Restorer.judge, []

    async def fail_later(restorer, items):
        judged.append(len(items))
        if len(judged) == 2:
            raise StoreDamaged("no answer")
        return await judge(restorer, items)

    monkeypatch.setattr(store_restore.Restorer, "judge", fail_later)
    status, facts, told = run(side, "--send")
    assert (status, facts["sent"], facts["done"]) == (1, 4, False)
    offset = int(told.partition("log offset ")[2].partition(",")[0])
    assert 0 < offset < side.stat().st_size
    assert "4 messages sent: no answer; run it again" in told
    assert counts(run(side, "--send")) == (10, 4, 6, 0, 6)
    assert judged == [4, 4, 4, 4, 2]
    assert sorted(bytes(m.body) for m in stored(nameserver, 10)) == sorted(BODIES[:10])


def test_people_see_a_table_of_each_file_and_what_to_do(tmp_path, nameserver) -> None:
    side = cut_off(tmp_path / "cut", [pending(b"a"), pending(b"b", "nothing")])
    environment = {"SATURNMQ_NAMESERVER": nameserver, "COLUMNS": "200", "TERM": "dumb"}

    def shown(*arguments: str) -> str:
        command = ["restore-truncated", str(side), *arguments]
        done = CliRunner().invoke(app, command, env=environment)
        assert done.exit_code == 0
        return done.stdout

    preview = shown()
    assert f"{side}: log 0 to " in preview
    assert "deposed" in preview
    assert "1 its topic is gone" in preview
    assert "1 are left out, 1 would be sent; --send does it" in preview
    assert "sent 1 of 1 messages that were wanted" in shown("--send")
    assert "--send" not in shown()
