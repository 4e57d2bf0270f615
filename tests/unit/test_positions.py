"""Where a consumer must go on whose broker has another log than the one that it has read (I4)."""

from __future__ import annotations

import random

import pytest
from saturnmq.broker.broker import Broker
from saturnmq.protocol.epochs import TERM, TOLD_MAX, from_text, to_text
from world_rig import Remote, World, run

MOVED = 21
FAR = 1 << 40


async def restarted(world: World, *, written: bool = True) -> tuple[Broker, Remote, list[int]]:
    """A log of three messages: two of epoch 100000, and after a crash one of 100001, if that is
    `written`. And where each begins, and the log ends."""
    broker, starts = await world.broker(), []
    for body in (b"0", b"1", b"2"):
        if body == b"2":
            image = world.disk.kill_image(random.Random(2))
            await broker.close(clean=False)
            world.disk = image
            broker = await world.broker()
        client = await world.connect(broker.address)
        starts.append(broker.store.watermarks.appended)
        if written or body != b"2":
            await client.send(body)
    end = broker.store.watermarks.appended
    await world.until(lambda: broker.store.watermarks.dispatched == end)
    assert broker.context.epochs.entries == [(TERM, 0), (TERM + 1, starts[2])]
    return broker, client, [*starts, end]


# The epochs of the client's log, where `{n}` is the start of message n; its offset; where it must
# go on, or None.
CASES = [
    # Promoted, in a later and in an earlier term, when both logs had the first message.
    (f"{TERM}-0,{4 * TERM}-{{1}}", 9, 1),
    (f"{TERM}-0,{4 * TERM}-{{1}}", 2, 1),
    (f"{TERM}-0,{4 * TERM}-{{1}}", 1, None),
    (f"{TERM}-0,{2 * TERM}-{{1}},{4 * TERM}-{FAR}", 3, 1),
    # The first epoch had two messages here and more there.
    (f"{TERM}-0,{4 * TERM}-{FAR}", 3, 2),
    (f"{TERM}-0,{4 * TERM}-{FAR}", 2, None),
    (f"{TERM}-0", 3, 2),
    # All of this log is the beginning of that one.
    (f"{TERM}-0,{TERM + 1}-{{2}},{4 * TERM}-{{3}}", 3, None),
    (f"{TERM}-0,{TERM + 1}-{{2}},{4 * TERM}-{FAR}", 3, None),
    # It is not: that one left the newest epoch here before its end.
    (f"{TERM}-0,{TERM + 1}-{{2}},{4 * TERM}-{{2}}", 3, 2),
    # No epoch is common among those that it was told of.
    (f"{TERM}-7,{4 * TERM}-{FAR}", 3, 2),
    (f"{2 * TERM}-{FAR},{4 * TERM}-{FAR}", 3, None),
    ("", 3, None),
]


@pytest.mark.parametrize(("epochs", "offset", "expected"), CASES)
def test_a_consumer_goes_on_where_the_two_logs_part(
    epochs: str, offset: int, expected: int | None
) -> None:
    async def body(world: World) -> None:
        broker, client, starts = await restarted(world)
        said = epochs.format(*starts)
        term = said.rpartition(",")[2].partition("-")[0] or str(4 * TERM)
        ext = {"saturnTerm": term, "saturnEpochs": said}
        pulled = await client.pull(offset, **ext)
        if expected is None:
            assert pulled.remark != "OFFSET_LOST"
        else:
            assert (pulled.code, pulled.remark) == (MOVED, "OFFSET_LOST")
            assert pulled.ext["nextBeginOffset"] == str(expected)
        place = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": offset}
        await client.ask(15, {**place, **ext})
        assert await client.committed() == (offset if expected is None else None)
        await broker.close()

    run(body)


@pytest.mark.parametrize("written", [True, False])
def test_a_slave_that_has_less_of_the_log_keeps_the_offset_of_a_newer_epoch(written: bool) -> None:
    async def body(world: World) -> None:
        broker, _, starts = await restarted(world, written=written)
        await broker.close()
        slave = await world.broker(role="SLAVE", broker_id=1)
        client = await world.connect(slave.address)
        old, new = f"{TERM}-0", f"{TERM + 1}-{starts[2]}"
        for group, led, start, kept in (
            ("G", f"{old},{new}", FAR, 9),
            ("H", f"{old},{new}", starts[2], None if written else 9),
            ("I", old, FAR, None),  # this log goes on in another epoch, if with nothing yet
        ):
            ext = {"saturnTerm": 4 * TERM, "saturnEpochs": f"{led},{4 * TERM}-{start}"}
            place = {"consumerGroup": group, "topic": "T", "queueId": 0}
            assert (await client.ask(15, {**place, **ext, "commitOffset": 9})).code == 0
            assert await client.committed(group) == kept
        await slave.close()

    run(body)


def test_a_client_of_ours_is_told_the_epochs_of_a_log_until_it_says_them() -> None:
    async def body(world: World) -> None:
        broker, client, starts = await restarted(world)
        epochs = {"saturnEpochs": f"{TERM}-0,{TERM + 1}-{starts[2]}"}
        term = {"saturnTerm": str(TERM + 1)}
        moves = {"saturnMoves": "0"}
        for said, told in (
            ({}, {}),  # as Java clients ask
            (term, epochs | moves),
            ({"saturnTerm": TERM, **epochs}, epochs | moves),
            (term | epochs, moves),
            (term | epochs | moves, {}),
            (term | epochs | {"saturnMoves": "2"}, moves),
        ):
            ext = (await client.pull(3, **said)).ext
            assert {name: ext[name] for name in ext if name.startswith("saturn")} == term | told
        await broker.close()

    run(body)


@pytest.mark.parametrize("said", ["x", "1-2-3", "1-0,", f"{'9' * 20}-0"])
def test_epochs_that_are_none_are_refused_with_the_way_out(said: str) -> None:
    async def body(world: World) -> None:
        broker, client, _ = await restarted(world)
        answer = await client.pull(3, saturnTerm=7, saturnEpochs=said)
        assert answer.code == 29
        assert f"{said!r}: send up to 16 NUMBER-START, joined by commas" in str(answer.remark)
        await broker.close()

    run(body)


def test_a_client_is_told_the_newest_epochs() -> None:
    epochs = [(number, 10 * number) for number in range(1, TOLD_MAX + 3)]
    assert to_text(epochs[:2]) == "1-10,2-20"
    assert from_text(to_text(epochs)) == epochs[2:]
    assert from_text(to_text(epochs) + ",99-990") is None
