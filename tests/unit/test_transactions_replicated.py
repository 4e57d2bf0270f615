"""Transactions of a group of nodes: the new master knows what is open and asks about it."""

from __future__ import annotations

from pathlib import Path

from broker_rig import ask, connected, run, until
from failover_rig import Group
from saturnmq.broker.broker import Broker
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.epochs import TERM
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.door import split_address
from saturnmq.runtime.native import NativeRuntime

COMMIT, ROLLBACK = 8, 12


async def half(client: Endpoint, unique: str) -> dict[str, str]:
    properties = {"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": unique}
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    ext = {"a": "P", "b": "orders", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
    reply = await ask(client, 310, {**ext, "i": text}, unique.encode())
    assert reply.code == 0, reply.remark
    return {
        "producerGroup": "P",
        "tranStateTableOffset": reply.ext["queueOffset"],
        "commitLogOffset": str(int(reply.ext["msgId"][-16:], 16)),
        "transactionId": unique,
    }


async def end(client: Endpoint, which: dict[str, str], decision: int) -> int:
    reply = await ask(client, 37, {**which, "commitOrRollback": decision})
    return reply.code


def pending(broker: Broker) -> int:
    return broker.messaging.half_log.pending


def test_a_promoted_slave_goes_on_with_the_transactions_of_its_master(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        quick = {"transaction_timeout_ms": 50, "transaction_check_ms": 100}
        async with Group(runtime, tmp_path, **quick) as group:
            client = await connected(runtime, group.master)
            kept = [await half(client, f"U{n}") for n in range(4)]
            assert await end(client, kept[0], COMMIT) == 0
            assert await end(client, kept[1], ROLLBACK) == 0
            follower = await connected(runtime, group.slave)
            assert await end(follower, kept[2], COMMIT) == 2, "a slave ends nothing"
            await group.master.close(clean=False)
            code, state = await group.role(
                group.slave, RequestCode.PROMOTE, epoch=2 * TERM, force="true"
            )
            assert code == 0, state
            await until(lambda: group.slave.messaging.half_log.is_loaded)

            heard: list[Command] = []

            def hear(_: Endpoint, command: Command) -> None:
                if command.code == RequestCode.CHECK_TRANSACTION_STATE:
                    heard.append(Command.request(39, dict(command.ext)))

            client = Endpoint(runtime, hear)
            await runtime.connect(*split_address(group.slave.address), client)
            beat = {
                "clientID": "c",
                "producerDataSet": [{"groupName": "P"}],
                "consumerDataSet": [],
            }
            await ask(client, RequestCode.HEART_BEAT, {}, fastjson.dumps(beat))
            await until(lambda: {each.ext["transactionId"] for each in heard} == {"U2", "U3"})
            assert pending(group.slave) == 2
            assert await end(client, kept[0], COMMIT) in (0, 11, 12), "it is committed already"
            assert await end(client, kept[1], COMMIT) == 390050
            assert await end(client, kept[2], COMMIT) in (0, 11, 12)
            assert await end(client, kept[3], ROLLBACK) in (0, 11, 12)
            assert pending(group.slave) == 0

            # A third term, with the first node as its slave.
            group.master = await group.start("m")
            await until(lambda: group.slave.context.copies_in_sync() == 2)
            marks = group.slave.store.watermarks
            await until(lambda: group.slave.context.visible == marks.appended)
            assert await group.bodies(group.slave) == [b"U0", b"U2"]
            assert pending(group.master) == 0, "a slave counts none"

    run(body)
