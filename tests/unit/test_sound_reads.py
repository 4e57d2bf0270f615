"""Messages that rot while they wait: a copy of one is sound, or there is none."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from broker_rig import ask, config, connected, run, send, slave_config, started, until
from saturnmq.broker.broker import Broker
from saturnmq.broker.commit import sound_reads
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.door import split_address
from saturnmq.runtime.native import NativeRuntime

WAITS = {"delayed": "DELAY\x011\x02", "timed": "TIMER_DELAY_MS\x01700\x02"}
BODIES = b"first one", b"rotten one", b"last one"
IN_LENGTH = -88  # of a frame, before its body


def rot(root: Path, text: bytes, at: int = 0, *, everywhere: bool = False) -> None:
    """A bit flips in each copy of this text in the log of a running broker, `at` bytes behind its
    begin."""
    path = root / "commitlog" / ("0" * 20)
    data, place = path.read_bytes(), -1
    assert text in data
    with path.open("r+b", buffering=0) as file:
        while (place := data.find(text, place + 1)) >= 0:
            file.seek(place + at)
            file.write(bytes([data[place + at] ^ 4]))
            if not everywhere:
                return


def bodies(broker: Broker) -> list[bytes]:
    result = broker.store.get_message("orders", 0, 0, 100, 1 << 20)
    return [bytes(message.body) for message in decode_frames(result.data, True)]


async def fill(runtime: NativeRuntime, broker: Broker, kind: str) -> Endpoint:
    client = await connected(runtime, broker)
    for number, body in enumerate(BODIES):
        properties = f"UNIQ_KEY\x01U{number}\x02{WAITS[kind]}"
        assert (await send(client, body, i=properties)).code == 0
    return client


@pytest.mark.parametrize("at", [0, IN_LENGTH], ids=["in its body", "in its length"])
@pytest.mark.parametrize("kind", WAITS)
def test_a_waiting_message_that_rots_is_mended_by_a_slave_and_delivered(
    kind: str, at: int, tmp_path: Path
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        master = await started(runtime, config(tmp_path / "a"))
        slave = await started(runtime, slave_config(tmp_path / "b", master))
        await until(lambda: bool(master.context.role.replicas))
        await fill(runtime, master, kind)
        await until(lambda: slave.store.watermarks.appended == master.store.watermarks.appended)
        rot(tmp_path / "a", BODIES[1], at)
        await until(lambda: len(bodies(master)) == 3)
        assert bodies(master) == list(BODIES)
        log = (tmp_path / "a" / "commitlog" / ("0" * 20)).read_bytes()
        assert log.count(BODIES[1]) == 2, "the one that waited is mended, too"
        await slave.close()
        await master.close()

    run(body)


@pytest.mark.parametrize("at", [0, IN_LENGTH], ids=["in its body", "in its length"])
@pytest.mark.parametrize("kind", WAITS)
def test_one_that_no_other_node_has_is_left_out_and_named(
    kind: str, at: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path / "a"))
        await fill(runtime, broker, kind)
        rot(tmp_path / "a", BODIES[1], at)
        await until(lambda: len(bodies(broker)) == 2, 20)
        assert bodies(broker) == [BODIES[0], BODIES[2]]
        await broker.close()

    run(body)
    [told] = [r.message for r in caplog.records if "is not delivered" in r.message]
    assert "no other node of the group has it whole" in told


def test_one_whose_slaves_are_silent_waits_and_is_given_up_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        master = await started(runtime, config(tmp_path / "a"))
        slave = await started(runtime, slave_config(tmp_path / "b", master))
        await until(lambda: bool(master.context.role.replicas))
        await slave.close()
        await fill(runtime, master, "delayed")
        rot(tmp_path / "a", BODIES[1])
        await until(lambda: bodies(master) == [BODIES[0]])
        await until(lambda: caplog.text.count("not mended yet") > 1)
        assert bodies(master) == [BODIES[0]], "those behind it wait with it"
        monkeypatch.setattr(sound_reads, "PATIENCE_S", 0.0)
        await until(lambda: len(bodies(master)) == 2)
        assert bodies(master) == [BODIES[0], BODIES[2]]
        await master.close()

    run(body)


def test_a_half_that_rots_is_mended_before_it_is_asked_about(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        quick = {"transaction_timeout_ms": 300, "transaction_check_ms": 100}
        master = await started(runtime, config(tmp_path / "a", **quick))
        slave = await started(runtime, slave_config(tmp_path / "b", master))
        await until(lambda: bool(master.context.role.replicas))
        asked: list[bytes] = []

        def hear(_: Endpoint, command: Command) -> None:
            if command.code == RequestCode.CHECK_TRANSACTION_STATE:
                [message] = decode_frames(bytes(command.body), True)
                asked.append(bytes(message.body))

        client = Endpoint(runtime, hear)
        await runtime.connect(*split_address(master.address), client)
        beat = {"clientID": "c", "producerDataSet": [{"groupName": "P"}], "consumerDataSet": []}
        await ask(client, RequestCode.HEART_BEAT, {}, fastjson.dumps(beat))
        properties = "UNIQ_KEY\x01U\x02TRAN_MSG\x01true\x02PGROUP\x01P\x02"
        assert (await send(client, b"half of it", i=properties)).code == 0
        await until(lambda: slave.store.watermarks.appended == master.store.watermarks.appended)
        rot(tmp_path / "a", b"half of it")
        await until(lambda: bool(asked))
        assert set(asked) == {b"half of it"}
        client.close()
        await slave.close()
        await master.close()

    run(body)


async def begin_anew(broker: Broker) -> None:
    """The next term of this master: it reads from its log how far it was."""
    duties = broker.replication.duties
    before = duties.tasks
    duties.end()
    await asyncio.wait(before)
    duties.begin()


def test_a_delayed_message_whose_length_rots_keeps_no_other_waiting_in_a_new_term(
    tmp_path: Path,
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path / "a"))
        await fill(runtime, broker, "delayed")
        rot(tmp_path / "a", BODIES[1], IN_LENGTH)
        await begin_anew(broker)
        await until(lambda: len(bodies(broker)) == 2, 20)
        assert bodies(broker) == [BODIES[0], BODIES[2]]
        await broker.close()

    run(body)


def test_a_half_whose_length_rots_leaves_others_open_in_a_new_term(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path / "a"))
        client = await connected(runtime, broker)
        halves = []
        for number, text in enumerate(BODIES):
            properties = f"UNIQ_KEY\x01U{number}\x02TRAN_MSG\x01true\x02PGROUP\x01P\x02"
            halves.append((await send(client, text, i=properties)).ext)
        rot(tmp_path / "a", BODIES[1], IN_LENGTH)
        await begin_anew(broker)
        await until(lambda: broker.messaging.half_log.is_loaded)
        for number in (0, 2):
            ext = {
                "producerGroup": "P",
                "tranStateTableOffset": halves[number]["queueOffset"],
                "commitLogOffset": int(halves[number]["msgId"][-16:], 16),
                "commitOrRollback": 8,
                "transactionId": f"U{number}",
            }
            ended = await ask(client, RequestCode.END_TRANSACTION, ext)
            assert (ended.code, ended.remark or "") == (0, "")
        await until(lambda: bodies(broker) == [BODIES[0], BODIES[2]])
        await broker.close()

    run(body)


@pytest.mark.parametrize(
    "at", [0, IN_LENGTH - len('{"c":"G",')], ids=["in its body", "in its length"]
)
def test_a_record_of_pop_that_rots_costs_no_message_in_a_new_term(at: int, tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path / "a"))
        client = await connected(runtime, broker)
        for text in BODIES:
            assert (await send(client, text)).code == 0
        ext = {"consumerGroup": "G", "topic": "orders", "queueId": 0, "maxMsgNums": 1}
        ext |= {"invisibleTime": 60_000, "pollTime": 0, "bornTime": 0, "initMode": 0}
        for _ in BODIES[:2]:
            popped = await ask(client, RequestCode.POP_MESSAGE, ext)
            assert popped.code == 0, popped.remark
        marks = broker.store.watermarks
        await until(lambda: marks.dispatched == marks.appended)
        rot(tmp_path / "a", b'"t":"orders","q":0,"so":0,"pt":1', at)  # the first lease
        await begin_anew(broker)
        await until(lambda: broker.messaging.popping.serves)
        again = [await ask(client, RequestCode.POP_MESSAGE, ext) for _ in BODIES]
        found = [bytes(decode_frames(bytes(each.body), True)[0].body) for each in again]
        assert found == list(BODIES), "nothing is passed over that nobody has acknowledged"
        await broker.close()

    run(body)
