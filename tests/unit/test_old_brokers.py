"""Admin at RocketMQ brokers that do not know all of its requests, or not all of their fields."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from core_world import World
from old_brokers import AT_MOMENT, END, GROUP, MOMENT_MS, TOPIC, V4_9_7, V5_1_4, OldBroker, queue
from saturnmq.aio import Admin
from saturnmq.runtime.errors import (
    GroupNotExist,
    InvalidParameter,
    SystemError_,
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
@pytest.mark.parametrize("moment", [-1, MOMENT_MS])
def test_one_queue_of_a_group_with_members_is_refused_where_the_broker_would_move_all(
    version: int, moment: int
) -> None:
    async def test(admin: Admin, broker: OldBroker) -> None:
        broker.members = [MEMBER]
        offset = 8 if moment == -1 else None
        name = {V4_9_7: "4.9.7", V5_1_4: "5.1.4"}[version]
        match = rf"10.0.0.2:9876 \(RocketMQ {name}\).* 'G' has members \(1\): nothing was changed"
        with pytest.raises(UnsupportedRequest, match=match):
            await admin.reset_offsets(GROUP, TOPIC, moment, queue=queue(0), offset=offset)
        assert broker.told == []
        assert broker.offsets == {queue(0): END, queue(1): END}

    at(version, test)


@VERSIONS
def test_one_queue_of_a_group_without_members_is_set_and_no_other(version: int) -> None:
    async def test(admin: Admin, broker: OldBroker) -> None:
        assert await admin.reset_offsets(GROUP, TOPIC, queue=queue(0), offset=8) == {queue(0): 8}
        assert broker.offsets == {queue(0): 8, queue(1): END}
        moved = await admin.reset_offsets(GROUP, TOPIC, MOMENT_MS, queue=queue(1))
        assert moved == {queue(1): AT_MOMENT}
        assert broker.offsets == {queue(0): 8, queue(1): AT_MOMENT}
        with pytest.raises(InvalidParameter, match="choose one from 0 to 10"):
            await admin.reset_offsets(GROUP, TOPIC, queue=queue(0), offset=11)
        with pytest.raises(GroupNotExist, match="group 'other' does not exist on broker"):
            await admin.reset_offsets("other", TOPIC, queue=queue(0), offset=8)

    at(version, test)


@pytest.mark.parametrize("members", [[], [MEMBER]])
def test_a_broker_with_resets_of_its_own_sets_one_queue(members: list[dict[str, str]]) -> None:
    async def test(admin: Admin, broker: OldBroker) -> None:
        broker.members = members
        assert await admin.reset_offsets(GROUP, TOPIC, queue=queue(0), offset=8) == {queue(0): 8}
        assert broker.told == [{queue(0): 8}]

    at(V5_1_4, test, server_side=True)


def test_who_may_not_read_the_settings_is_treated_as_at_a_broker_without_such_resets() -> None:
    async def test(admin: Admin, broker: OldBroker) -> None:
        broker.denies = {26}
        await admin.reset_offsets(GROUP, TOPIC, queue=queue(0), offset=8)
        assert (broker.offsets, broker.told) == ({queue(0): 8, queue(1): END}, [])

    at(V5_1_4, test, server_side=True)


def test_an_answer_other_than_what_was_asked_is_an_error() -> None:
    async def test(admin: Admin, broker: OldBroker) -> None:
        broker.heeds_queues = False
        with pytest.raises(SystemError_, match=r"was to set .* to 8, and answers with"):
            await admin.reset_offsets(GROUP, TOPIC, queue=queue(0), offset=8)

    at(V5_1_4, test, server_side=True)


@VERSIONS
@pytest.mark.parametrize(("moment", "goal"), [(0, 0), (MOMENT_MS, AT_MOMENT), (-1, END)])
def test_a_group_without_members_is_reset_by_commits(version: int, moment: int, goal: int) -> None:
    async def test(admin: Admin, broker: OldBroker) -> None:
        for known in ({queue(0): 2, queue(1): 3}, {queue(0): 2}, {}):
            broker.offsets = dict(known)
            moved = await admin.reset_offsets(GROUP, TOPIC, moment)
            assert moved == broker.offsets == {queue(0): goal, queue(1): goal}
        assert broker.told == []
        with pytest.raises(GroupNotExist):
            await admin.reset_offsets("other", TOPIC, moment)

    at(version, test)


@VERSIONS
def test_members_are_told_by_the_broker_or_the_reset_is_refused(version: int) -> None:
    async def test(admin: Admin, broker: OldBroker) -> None:
        broker.members = [MEMBER]
        await admin.reset_offsets(GROUP, TOPIC, MOMENT_MS)
        assert broker.told == [{queue(0): AT_MOMENT, queue(1): AT_MOMENT}]
        del broker.offsets[queue(1)]
        with pytest.raises(UnsupportedRequest, match="committed in every queue of the topic"):
            await admin.reset_offsets(GROUP, TOPIC, MOMENT_MS)
        assert broker.offsets == {queue(0): AT_MOMENT}

    at(version, test)


def test_an_offset_that_is_another_after_the_commit_is_an_error() -> None:
    async def test(admin: Admin, broker: OldBroker) -> None:
        broker.commit = lambda command: command.reply()  # type: ignore[method-assign]
        with pytest.raises(SystemError_, match="to 8, and has 10"):
            await admin.reset_offsets(GROUP, TOPIC, queue=queue(0), offset=8)

    at(V4_9_7, test)


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
