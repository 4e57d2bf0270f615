"""Reading ranges from a cluster: replicas that die or lag, and brokers that know no ranges."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from cluster_rig import running
from saturnmq import Admin, Message, Producer
from saturnmq.cli.launcher import Settings
from saturnmq.pipeline import fetching
from saturnmq.pipeline.access import DataLoss, Decoding, Where
from saturnmq.pipeline.columns import select
from saturnmq.pipeline.connections import channels
from saturnmq.pipeline.fetching import BrokersUnreachable
from saturnmq.pipeline.places import open_access
from saturnmq.pipeline.plan import Range
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import ConfigError, UnsupportedRequest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
ROWS = 2000
QUEUES = 20  # more than are asked for at once
QUEUE = MessageQueue("orders", "broker-0", 1)
WHOLE = Range(*QUEUE, 0, ROWS)
BODIES = Decoding(select(["queueOffset", "body"]))
CHUNK = 64 << 10


@pytest.fixture(scope="module")
def replicated(tmp_path_factory):
    """A master and its slave with 2,000 messages of a kibibyte in one queue."""
    with running(tmp_path_factory.mktemp("access"), Settings(slaves=1)) as cluster:
        with Admin(cluster.nameservers[0]) as admin:
            admin.create_topic("orders", QUEUES)
        with Producer(nameservers=cluster.nameservers[0]) as producer:
            for n in range(ROWS):
                message = Message("orders", b"%06d" % n * 170, tag="AB"[n % 2])
                producer.send_async(message, queue=QUEUE)
        yield cluster


@pytest.fixture
def cluster(replicated):
    """Both nodes run, and the slave has what the master has."""
    for name in ("master-0", "slave-0"):
        if not replicated.node(name).alive():
            replicated.start(name)
    replicated.await_routes()
    wait_for_slave(replicated)
    return replicated


def wait_for_slave(cluster):
    slave = Where.brokers(cluster.nameservers[0], read_from="slave", timeout_ms=30_000)
    with open_access(slave) as access:
        assert sum(b.num_rows for b in access.batches([WHOLE], BODIES)) == ROWS


def where(cluster, **options):
    return Where.brokers(cluster.nameservers[0], chunk_bytes=CHUNK, **options)


def rows(batches):
    return [(row["queueOffset"], row["body"][:6]) for b in batches for row in b.to_pylist()]


EVERYTHING = [(n, b"%06d" % n) for n in range(ROWS)]


@pytest.mark.parametrize(("read_from", "victim"), [("master", "master-0"), ("slave", "slave-0")])
def test_a_reader_goes_on_at_another_replica(cluster, read_from, victim):
    with open_access(where(cluster, read_from=read_from)) as access:
        batches = access.batches([WHOLE], BODIES)
        begun = rows([next(batches), next(batches)])
        assert 0 < len(begun) < ROWS // 2
        cluster.kill(victim)
        assert begun + rows(batches) == EVERYTHING
        # and what is planned from now on is asked of who is left
        assert access.bounds(["orders"])[QUEUE] == (0, ROWS)
        assert [piece.rows for piece in access.cuts([WHOLE], 1 << 30, ROWS)] == [ROWS]


def test_with_nobody_left_the_error_says_who_was_asked(cluster):
    for name in ("master-0", "slave-0"):
        cluster.kill(name)
    begun = time.monotonic()
    with (
        open_access(where(cluster, timeout_ms=500)) as access,
        pytest.raises(BrokersUnreachable) as caught,
    ):
        list(access.batches([WHOLE], BODIES))
    assert time.monotonic() - begun < 20
    first, why = str(caught.value).split("\n", 1)
    assert first.startswith("orders broker-0/1 0 to 2000 could not be read for")
    assert "(option pullTimeoutMs): check that it runs" in first
    assert "no connection to" in why or "no route names it" in why


def test_messages_that_nobody_has_are_not_waited_for_for_ever(cluster, monkeypatch):
    monkeypatch.setattr(fetching, "LAGS_S", 0.3)
    beyond = WHOLE._replace(start=ROWS - 10, end=ROWS + 10)
    with open_access(where(cluster)) as access, pytest.raises(DataLoss) as caught:
        list(access.batches([beyond], BODIES))
    assert f"messages {ROWS} to {ROWS + 10} of orders broker-0/1" in str(caught.value)
    assert f"the queue ends at {ROWS} now, its newest messages were lost" in str(caught.value)
    careless = Decoding(BODIES.columns, fail_on_data_loss=False)
    with open_access(where(cluster)) as access:
        assert rows(access.batches([beyond, WHOLE], careless)) == EVERYTHING[-10:] + EVERYTHING


def test_a_connection_serves_one_task_after_the_other(cluster):
    channels.close_idle()
    with open_access(where(cluster)) as access:
        assert rows(access.batches([WHOLE], BODIES)) == EVERYTHING
        before = channels.close_idle(60.0)
        assert rows(access.batches([WHOLE], BODIES)) == EVERYTHING
        assert channels.close_idle(60.0) == before
        next(access.batches([WHOLE], BODIES))  # given up half-way: not used again
        assert rows(access.batches([WHOLE], BODIES)) == EVERYTHING
    assert channels.close_idle() == 0


@pytest.fixture
def together(monkeypatch):
    """How many requests went out at once, each time."""
    request_all = channels.request_all
    counts = []

    def counted(asks, timeout_s):
        counts.append(len(asks))
        return request_all(asks, timeout_s)

    monkeypatch.setattr(channels, "request_all", counted)
    return counts


def ranges(rows, weight):
    return [Range(*QUEUE, n, n + rows, weight) for n in range(0, ROWS, rows)]


@pytest.mark.parametrize(
    ("rows_each", "weight", "expected"),
    [
        (10, 12 << 10, [5] * 40),  # as many as weigh a chunk
        (20, 1 << 10, [16] * 6 + [4]),  # they say less than they weigh, but fit into an answer
        (200, 1 << 10, [10]),  # one answer does not do, and the rest is read before the next range
        (10, 0, []),  # nobody knows what they weigh
    ],
)
def test_small_ranges_are_asked_for_together(cluster, together, rows_each, weight, expected):
    with open_access(where(cluster)) as access:
        assert rows(access.batches(ranges(rows_each, weight), BODIES)) == EVERYTHING
        assert together == expected
        by_tag = Decoding(BODIES.columns, expression="B")
        odd = rows(access.batches(ranges(rows_each, weight), by_tag))
        assert odd == [row for row in EVERYTHING if row[0] % 2]
    assert channels.close_idle() <= 3  # a nameserver, two to one broker


def test_small_ranges_are_read_on_at_another_replica(cluster):
    with open_access(where(cluster)) as access:
        batches = access.batches(ranges(10, 1 << 10), BODIES)
        begun = rows([next(batches)])
        cluster.kill("master-0")
        assert begun + rows(batches) == EVERYTHING


def test_one_small_range_that_nobody_has_is_told(cluster, monkeypatch):
    monkeypatch.setattr(fetching, "LAGS_S", 0.3)
    some = ranges(10, 1 << 10)[:3]
    beyond = Range(*QUEUE, ROWS, ROWS + 1, 100)
    with open_access(where(cluster)) as access:
        batches = access.batches([*some, beyond, *some], BODIES)
        assert rows([next(batches) for _ in some]) == EVERYTHING[:30]
        with pytest.raises(
            DataLoss, match=rf"{ROWS} to {ROWS + 1} of orders broker-0/1: the queue"
        ):
            next(batches)


def test_brokers_that_know_no_ranges_are_pulled_from(cluster, monkeypatch):
    """As RocketMQ's own: every request of ours is answered with code 3."""
    take = channels.take
    asked = []

    class Foreign:
        def __init__(self, channel):
            self._channel = channel

        def __getattr__(self, name):
            return getattr(self._channel, name)

        def request(self, command: Command, timeout_s: float) -> Command:
            self.ask_all([command], timeout_s)
            answer = self._channel.answer()
            answer.body = bytes(answer.body)
            return answer

        def ask(self, command: Command, timeout_s: float) -> None:
            self.ask_all([command], timeout_s)

        def ask_all(self, commands: Sequence[Command], timeout_s: float) -> None:
            for command in commands:
                asked.append(command.code)
                if command.code >= 390_000:
                    command.code = 399_999
            self._channel.ask_all(commands, timeout_s)

    monkeypatch.setattr(channels, "take", lambda address: Foreign(take(address)))
    # The next test must not have what this one makes of a connection.
    monkeypatch.setattr(channels, "give_back", lambda _address, foreign: foreign.close())
    with open_access(where(cluster)) as access:
        assert access.bounds(["orders"])[QUEUE] == (0, ROWS)
        pieces = access.cuts([WHOLE], 100 << 10, 65_536)
        assert [piece.rows for piece in pieces] == [100] * 20
        assert {piece.bytes for piece in pieces} == {100 << 10}
        assert rows(access.batches([WHOLE], BODIES)) == EVERYTHING
        assert 11 in asked
        part = WHOLE._replace(start=100, end=200)
        odd = rows(access.batches([part], Decoding(BODIES.columns, expression="B")))
        assert odd == [row for row in EVERYTHING[100:200] if row[0] % 2]
    with open_access(where(cluster)) as access:  # one that does not know yet who they are
        assert rows(access.batches(pieces, BODIES)) == EVERYTHING
        # RocketMQ's give everything to a pull whose expression they cannot parse
        by_sql = Decoding(BODIES.columns, expression="TAGS = 'B'", expression_type="SQL92")
        assert rows(access.batches([part], by_sql)) == odd
        assert 46 in asked
        by_sql = Decoding(BODIES.columns, expression="a > 'x'", expression_type="SQL92")
        asked.clear()
        with pytest.raises(ConfigError, match=r"^correct option subExpression.*SQL92"):
            list(access.batches([part], by_sql))
        assert (46 in asked, 11 in asked) == (True, False)
    assert UnsupportedRequest.code == 3


def test_a_condition_is_looked_at_by_the_broker(cluster):
    by_sql = Decoding(BODIES.columns, expression="TAGS = 'B'", expression_type="SQL92")
    with open_access(where(cluster)) as access:
        pieces = access.cuts([WHOLE], 100 << 10, 65_536)  # a filter does not change the plan
        assert [piece.rows for piece in pieces] == [85] * 23 + [45]  # frames have 1.2 KiB
        odd = [row for row in EVERYTHING if row[0] % 2]
        assert rows(access.batches(pieces, by_sql)) == odd  # and what it drops is no loss
        assert rows(access.batches([WHOLE], by_sql)) == odd
        none = Decoding(BODIES.columns, expression="nobody > 5", expression_type="SQL92")
        assert rows(access.batches([WHOLE], none)) == []
        wrong = Decoding(BODIES.columns, expression="a > 'x'", expression_type="SQL92")
        with pytest.raises(ConfigError, match=r"^correct option subExpression.*character 5"):
            list(access.batches([WHOLE], wrong))


def test_a_broker_that_looks_at_no_conditions_says_so(tmp_path):
    settings = Settings(broker_options={"enablePropertyFilter": "false"})
    with running(tmp_path / "plain", settings) as cluster:
        with Admin(cluster.nameservers[0]) as admin:
            admin.create_topic("orders", 2)
        with Producer(nameservers=cluster.nameservers[0]) as producer:
            producer.send(Message("orders", b"x"), queue=QUEUE)
        by_sql = Decoding(BODIES.columns, expression="a > 5", expression_type="SQL92")
        with (
            open_access(where(cluster)) as access,
            pytest.raises(ConfigError, match=r"^correct option .*\(enablePropertyFilter=true\)"),
        ):
            list(access.batches([WHOLE._replace(end=1)], by_sql))


def test_deleted_messages_are_a_loss_or_a_line_in_the_log(tmp_path, caplog):
    small = Settings(broker_options={"mappedFileSizeCommitLog": 256 << 10})
    with running(tmp_path / "small", small) as cluster:
        with Admin(cluster.nameservers[0]) as admin:
            admin.create_topic("orders", 2)
        with Producer(nameservers=cluster.nameservers[0]) as producer:
            for n in range(500):
                producer.send_async(Message("orders", b"%06d" % n * 170), queue=QUEUE)
                if n % 50 == 0:
                    producer.flush()  # a batch has to fit a file
        cluster.stop("master-0")
        store = cluster.data / "master-0" / "store"
        min((store / "commitlog").iterdir()).unlink()
        cluster.start("master-0")
        cluster.await_routes()
        places = Where.store(str(store), trust_tail=True, broker_name="broker-0"), where(cluster)
        for place in places:
            with open_access(place) as access:
                low, high = access.bounds(["orders"])[QUEUE]
                assert 100 < low < high == 500
                everything = WHOLE._replace(end=high)
                with pytest.raises(DataLoss) as caught:
                    list(access.batches([everything], BODIES))
                assert f"messages 0 to {low} of orders broker-0/1: they are deleted" in str(
                    caught.value
                )
                caplog.clear()
                careless = Decoding(BODIES.columns, fail_on_data_loss=False)
                found = [n for n, _ in rows(access.batches([everything], careless))]
                assert found == list(range(low, high))
                assert f"data loss: messages 0 to {low}" in caplog.text


def test_time_and_progress_are_asked_of_the_broker(cluster):
    with open_access(where(cluster)) as access:
        assert access.topics() == ["orders"]
        assert access.queues("none") == []
        assert access.offset_at_time(QUEUE, 0) == 0
        assert access.offset_at_time(QUEUE, 1 << 42) == ROWS
        access.commit("group", {QUEUE: 17})
        assert access.committed("group", "orders") == {QUEUE: 17}
        everywhere = dict.fromkeys(access.queues("orders"), 0) | {QUEUE: 18}
        assert len(everywhere) == QUEUES
        access.commit("group", everywhere)
        assert access.committed("group", "orders") == everywhere
