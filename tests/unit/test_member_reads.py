"""Members of a group that subscribe differently: found, told once, shown."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from saturnmq.broker.tables.clients import BROADCASTING, CLUSTERING, ConsumerGroup
from saturnmq.broker.tables.member_reads import NOTHING, TEXT_MAX, MemberReads, reads_of, words_of
from saturnmq.client.admin.admin import Admin
from saturnmq.client.consumer.push_consumer import PushConsumer
from saturnmq.protocol.sql92 import Sql
from saturnmq.protocol.subscription import Expression
from world_rig import World, run


def words(topic: str, expression: str, kind: str = "TAG") -> str:
    return words_of({"topic": topic, "subString": expression, "expressionType": kind})


def test_subscriptions_are_alike_whatever_the_order_of_topics_and_tags() -> None:
    one = reads_of([words("T", "a || b"), words("U", "*")])
    assert one == reads_of([words("U", "*", ""), words("T", "b||a || b")])
    assert one.text == "T: a || b; U: *"
    for other in ([words("T", "a || b")], [words("T", "a"), words("U", "*")]):
        assert reads_of(other) != one
    assert reads_of([words("T", "a > 1", "SQL92")]) != reads_of([words("T", "a > 1")])
    assert reads_of([words("T", "*"), words("%RETRY%G", "*")]) == reads_of([words("T", "*")])
    assert reads_of([words("%RETRY%G", "*")]) == NOTHING


def test_of_long_subscriptions_the_beginning_is_kept_and_all_is_compared() -> None:
    many = [words(f"T{n}", "*") for n in range(1000)]
    found = reads_of(many)
    assert len(found.text) == TEXT_MAX + 2
    other = reads_of([*many, words("Z", "*")])
    assert (found.text, found.digest) != (other.text, other.digest)
    assert found.text == other.text


def test_members_are_compared_as_they_come_change_and_go() -> None:
    members = MemberReads()
    one, two = (reads_of([words("T", tag)]) for tag in ("a", "b"))
    for name in range(100):
        members.take(name, one)
    assert not members.differ
    members.take(7, two)
    assert members.differ
    assert str(members) == "99 read T: a | 1 read T: b"
    assert (members[7], members[8], members["unknown"]) == ("T: b", "T: a", "")
    members.take(7, two)
    members.validate(range(100))
    members.take(8, two)
    members.take(8, NOTHING)
    members.forget(7)
    members.forget(7)
    assert not members.differ
    members.validate(set(range(100)) - {7})
    for name in range(5):
        members.take(name, reads_of([words(f"T{name}", "*")]))
    assert str(members).endswith(" | ..")
    with pytest.raises(AssertionError, match="no member"):
        members.validate(range(50))


@pytest.mark.parametrize(("model", "is_told"), [(CLUSTERING, True), (BROADCASTING, False)])
def test_members_that_share_no_queues_may_differ(model: str, is_told: bool) -> None:
    group = ConsumerGroup("G", message_model=model)
    for tag in ("a", "b"):
        group.reads.take(tag, reads_of([words("T", tag)]))
    assert group.is_differing is is_told


def differing(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if " subscribe " in r.getMessage()]


async def member(world: World, nameserver: str, expression: Expression, **options: Any) -> Any:
    consumer = PushConsumer(
        "G",
        [nameserver],
        runtime=world.node(f"consumer-{len(world.nodes)}"),
        client_id=f"client-{len(world.nodes)}",
        listener=lambda _: None,
        **options,
    )
    consumer.subscribe("T", expression)
    await consumer.start()
    return consumer


@pytest.mark.parametrize("other", ["b", Sql("price > 3")])
def test_a_group_of_members_that_differ_is_told_once_and_shown_until_they_agree(
    other: Expression, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "saturnmq.broker.tables.clients")

    async def body(world: World) -> None:
        nameserver = await world.nameserver()
        broker = await world.broker(nameservers=(nameserver,))
        client = await world.connect(broker.address)
        assert (await client.send(b"x")).code == 0
        clients = broker.context.clients
        first = await member(world, nameserver, "a")
        second = await member(world, nameserver, "a")
        await world.until(lambda: len(clients.consumers["G"].members) == 2)
        assert differing(caplog) == []
        third = await member(world, nameserver, other)
        await world.until(lambda: clients.differing == ["G"])
        await asyncio.sleep(100.0)
        (told,) = differing(caplog)
        wanted = "b" if other == "b" else "SQL92 price > 3"
        assert f"2 read T: a | 1 read T: {wanted}" in told
        async with Admin([nameserver], runtime=world.node("admin")) as admin:
            (at,) = await admin.describe_group("G")
            assert sorted(each.reads for each in at.members) == sorted(
                ["T: a"] * 2 + [f"T: {wanted}"]
            )
            assert (await admin.broker_status(broker.address))["differingGroups"] == "1"
            third.subscribe("T", "a")
            await world.until(lambda: clients.differing == [])
            (at,) = await admin.describe_group("G")
            assert [each.reads for each in at.members] == [""] * 3
        assert differing(caplog)[1:] == ["all members of group G subscribe alike again"]
        first.subscribe("U", "*")
        await world.until(lambda: clients.differing == ["G"])
        await first.close()
        await world.until(lambda: clients.differing == [])
        clients.validate()
        for each in (second, third):
            await each.close()
        await broker.close()

    run(body)
