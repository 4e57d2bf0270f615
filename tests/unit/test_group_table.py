"""The table of subscription groups: defaults, versions, and what a slave takes over."""

from __future__ import annotations

from typing import Any

import pytest
from saturnmq.broker.tables.request_modes import KEY, POP, TOPICS_MAX, RequestMode
from saturnmq.broker.tables.subscription_groups import GroupTable, SubscriptionGroup
from saturnmq.runtime.errors import InvalidParameter, SystemBusy

DOCUMENT = {  # as RocketMQ writes a group that nobody changed
    "attributes": {},
    "brokerId": 0,
    "consumeBroadcastEnable": True,
    "consumeEnable": True,
    "consumeFromMinEnable": True,
    "consumeMessageOrderly": False,
    "consumeTimeoutMinute": 15,
    "groupName": "G",
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
    "groupSysFlag": 0,
    "notifyConsumerIdsChangedEnable": True,
    "retryMaxTimes": 16,
    "retryQueueNums": 1,
    "whichBrokerWhenConsumeSlowly": 1,
}


def table(*, auto_create: bool = True) -> GroupTable:
    return GroupTable(lambda: 5, auto_create=auto_create)


def documents(groups: GroupTable) -> dict[str, Any]:
    found = groups.snapshot()["subscriptionGroupTable"]
    assert isinstance(found, dict)
    return found


def test_a_group_is_written_as_rocketmq_writes_it_and_keeps_what_we_do_not_know() -> None:
    groups = table()
    groups.put(SubscriptionGroup("G"))
    assert documents(groups)["G"] == DOCUMENT
    groups.load({"subscriptionGroupTable": {"G": {"retryMaxTimes": 3, "newer": 7}}})
    assert documents(groups)["G"] == DOCUMENT | {"retryMaxTimes": 3, "newer": 7}


@pytest.mark.parametrize(
    "settings", [7, {"retryQueueNums": 10**9}, {"retryMaxTimes": []}, {"consumeEnable": "perhaps"}]
)
def test_a_group_whose_settings_cannot_be_is_left_out_and_told(
    settings: object, caplog: pytest.LogCaptureFixture
) -> None:
    groups = table()
    groups.load({"subscriptionGroupTable": {"bad": settings, "G": {"retryMaxTimes": "3"}}})
    assert groups.get("bad") is None
    assert documents(groups)["G"] == DOCUMENT | {"retryMaxTimes": 3}
    assert caplog.text.count("group 'bad' is left out: ") == 1


def test_only_a_table_that_may_makes_a_group_that_is_used() -> None:
    strict, groups = table(auto_create=False), table()
    assert strict.get_or_create("G") is None
    assert "G" not in documents(strict)
    made = groups.get_or_create("G")
    assert made is not None
    assert groups.get_or_create("G") is groups.get("G") is made
    with pytest.raises(InvalidParameter):
        groups.get_or_create("no name")
    existing = strict.get("DEFAULT_CONSUMER")
    assert existing is not None
    assert strict.get_or_create("DEFAULT_CONSUMER") is existing


def test_each_change_of_the_groups_makes_a_new_version_and_what_changes_nothing_makes_none() -> (
    None
):
    now = [5]
    groups = GroupTable(lambda: now[-1], auto_create=True)
    assert groups.data_version == {"counter": 0, "stateVersion": 0, "timestamp": 5}
    assert not groups.dirty
    now.append(7)
    groups.get_or_create("G")
    groups.get_or_create("G")
    assert groups.data_version == {"counter": 1, "stateVersion": 0, "timestamp": 7}
    assert groups.dirty
    assert groups.delete("G")
    assert groups.data_version["counter"] == 2
    groups.clean()
    assert not groups.delete("G")
    assert groups.data_version["counter"] == 2
    assert not groups.dirty


def test_a_slave_has_its_masters_groups_and_no_others() -> None:
    master, slave = table(), GroupTable(lambda: 1, auto_create=True)
    master.get_or_create("G")
    master.load({**master.snapshot(), "forbiddenTable": {"G": {"T": 4}}})
    slave.get_or_create("own")
    slave.clean()
    slave.replace_all(master.snapshot())
    assert slave.snapshot() == master.snapshot()
    assert slave.dirty
    slave.clean()
    slave.replace_all(master.snapshot())
    assert not slave.dirty
    slave.replace_all({"subscriptionGroupTable": {}})
    assert slave.get("G") is None
    assert slave.get("DEFAULT_CONSUMER") is not None
    assert slave.data_version == {"counter": 0, "stateVersion": 0, "timestamp": 5}


@pytest.mark.parametrize(
    ("bits", "forbidden"), [(0, False), (1, False), (2, False), (3, False), (4, True), (7, True)]
)
def test_a_group_may_not_read_a_topic_if_the_read_bit_is_set(bits: int, forbidden: bool) -> None:
    groups = table()
    groups.load({"forbiddenTable": {"G": {"T": bits}}})
    assert groups.forbids("G", "T") == forbidden
    assert not groups.forbids("G", "other")
    assert not groups.forbids("H", "T")


def test_what_is_forbidden_keeps_other_bits_and_goes_with_its_group() -> None:
    groups = table()
    groups.get_or_create("G")
    groups.load({**groups.snapshot(), "forbiddenTable": {"G": {"T": 2}}})
    version = groups.data_version["counter"]
    groups.forbid("G", "T", forbidden=True)
    groups.forbid("G", "U", forbidden=True)
    assert groups.snapshot()["forbiddenTable"] == {"G": {"T": 6, "U": 4}}
    assert groups.data_version["counter"] == version + 2
    groups.validate()
    groups.forbid("G", "T", forbidden=False)
    groups.forbid("G", "U", forbidden=False)
    assert groups.snapshot()["forbiddenTable"] == {"G": {"T": 2}}
    groups.validate()
    assert groups.delete("G")
    assert groups.snapshot()["forbiddenTable"] == {}
    groups.validate()


def test_a_group_cannot_be_forbidden_more_topics_than_fit_the_table() -> None:
    groups = table()
    groups.get_or_create("G")
    many = {f"{number:0250}": 4 for number in range(41_500)}
    groups.load({**groups.snapshot(), "forbiddenTable": {"G": many}})
    with pytest.raises(SystemBusy, match="would not fit into one frame"):
        groups.forbid("G", "T" * 250, forbidden=True)
    groups.forbid("G", f"{0:0250}", forbidden=False)
    groups.validate()


@pytest.mark.parametrize(("asked", "limit"), [(-1, 3), (0, 0), (1, 1), (5, 5)])
def test_a_consumer_says_how_often_it_retries_or_leaves_it_to_the_group(
    asked: int, limit: int
) -> None:
    assert SubscriptionGroup("G", {"retryMaxTimes": 3}).retry_limit(asked) == limit


def test_attributes_of_a_group_change_by_their_signs_and_stay_when_they_are_not_named() -> None:
    groups = table()

    def change(attributes: dict[str, str]) -> dict[str, Any]:
        groups.put(groups.changed("G", {"attributes": attributes, "retryMaxTimes": 3}))
        return documents(groups)["G"]["attributes"]

    assert change({"+priority.factor": "7"}) == {"priority.factor": "7"}
    assert change({}) == {"priority.factor": "7"}
    assert change({"+priority.factor": "100"}) == {"priority.factor": "100"}
    for wrong, told in (
        ({"priority.factor": "7"}, "kv string format wrong"),
        ({"+priority.factor": "101"}, "it is a number from 0 to 100"),
        ({"+message.type": "FIFO"}, "group G: unsupported key: message.type"),
    ):
        with pytest.raises(InvalidParameter, match=told):
            change(wrong)
    assert change({"-priority.factor": ""}) == {}
    groups.load({"subscriptionGroupTable": {"G": {"attributes": ["of", "somebody"]}}})
    assert change({}) == {}


def test_a_group_has_no_more_request_modes_than_it_can_have_after_a_restart() -> None:
    """A change of its settings keeps them all, in a time that does not grow with their square."""
    groups, pops = table(), RequestMode(POP)
    modes = {f"topic-{i}": pops.to_json() for i in range(TOPICS_MAX)}
    groups.put(SubscriptionGroup("G", {KEY: modes}))
    groups.put(groups.changed("G", {"retryMaxTimes": 3, KEY: {"topic-0": {"mode": "PULL"}}}))
    group = groups.get("G")
    assert group is not None
    assert group.popped_topics == sorted(modes.keys() - {"topic-0"})
    with pytest.raises(InvalidParameter, match="10000 topics"):
        group.with_request_mode("another", pops)
    with pytest.raises(InvalidParameter, match="10000 topics"):
        groups.changed("G", {KEY: {"another": pops.to_json()}})
    again = table()
    again.load(groups.snapshot())
    assert again.snapshot() == groups.snapshot()


def test_a_slave_reads_only_the_groups_that_its_master_has_changed() -> None:
    master, slave = table(), table()
    for name in ("same", "changed"):
        master.put(SubscriptionGroup(name, {"retryMaxTimes": 3}))
    slave.replace_all(master.snapshot())
    same = slave.get("same")
    master.put(SubscriptionGroup("changed", {"retryMaxTimes": 4}))
    slave.replace_all(master.snapshot())
    assert slave.get("same") is same, "to check 25,000 groups takes half a second"
    assert documents(slave) == documents(master)
