"""Admin at RocketMQ brokers that do not know all of its requests, or not all of their fields."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from core_world import World
from old_brokers import GROUP, TOPIC, V4_9_7, V5_1_4, OldBroker
from saturnmq.aio import Admin
from saturnmq.runtime.errors import (
    GroupNotExist,
    TopicNotExist,
    UnsupportedRequest,
)

Test = Callable[[Admin, OldBroker], Awaitable[None]]
VERSIONS = pytest.mark.parametrize("version", [V4_9_7, V5_1_4])
MEMBER = {"clientId": "one", "clientAddr": "10.0.0.9:1", "language": "JAVA"}


def at(version: int, test: Test, *, server_side: bool = False) -> None:
    """Run `test` with an Admin of one broker of this version."""
    world = World()

    async def main() -> None:
        for number in (1, 2):
            await world.servers[number].open()
        broker = OldBroker(world, version, server_side=server_side)
        address = world.servers[1].address
        async with Admin(address, runtime=world.runtime) as admin:
            await test(admin, broker)

    try:
        world.loop.run_until_complete(main())
        assert (world.loop.failures, world.runtime.deaths) == ([], [])
    finally:
        world.loop.close()


@VERSIONS
def test_groups_are_made_described_changed_and_deleted_with_their_offsets(version: int) -> None:
    async def test(admin: Admin, broker: OldBroker) -> None:
        await admin.create_group("new", max_retries=3)
        (found,) = await admin.describe_group("new")
        assert found.max_retries == 3
        await admin.alter_group("new", max_retries=4)
        assert broker.groups["new"]["retryMaxTimes"] == 4
        for call in (admin.describe_group("other"), admin.alter_group("other", max_retries=1)):
            with pytest.raises(GroupNotExist, match="no broker knows a group 'other'"):
                await call
        await admin.delete_group(GROUP)
        assert (list(broker.groups), broker.offsets) == (["new"], {})

    at(version, test)


@VERSIONS
def test_settings_of_topics_are_told_and_changed(version: int) -> None:
    async def test(admin: Admin, broker: OldBroker) -> None:
        assert (await admin.topic_settings(TOPIC))["a"].read_queues == 2
        await admin.alter_topic(TOPIC, perm=6)
        broker.topics.clear()
        with pytest.raises(TopicNotExist, match="topic 'T' does not exist on broker 'a'"):
            await admin.topic_settings(TOPIC)

    at(version, test)


def test_what_a_broker_cannot_do_names_it_and_its_version() -> None:
    async def test(admin: Admin, broker: OldBroker) -> None:
        said = r"10.0.0.2:9876 \(RocketMQ 4.9.7\) does not serve AUTH_LIST_USER: .*newer version"
        with pytest.raises(UnsupportedRequest, match=said):
            await admin.list_users()

    at(V4_9_7, test)
