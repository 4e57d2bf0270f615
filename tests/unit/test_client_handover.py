"""Planned changes of masters, against scripted members: who takes over, what is refused, and that
somebody leads however it ends."""

import asyncio

import pytest
from members_rig import GROUP, Group, run
from saturnmq.client.admin import promotion
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.epochs import TERM
from saturnmq.runtime.errors import InvalidParameter, NoPermission, SaturnError

FENCE, PROMOTE = RequestCode.FENCE, RequestCode.PROMOTE


def asked(group):
    return [member.asked for member in group.members]


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


def test_the_slave_in_sync_that_is_furthest_ahead_takes_over():
    async def test(group, admin):
        old, _, near, _ = group.members
        group.replicates = False
        assert (await admin.preview_hand_over(GROUP)).address == near.address
        assert asked(group) == [[], [], [], []]
        result = await admin.hand_over(GROUP)
        assert (result.master, result.old_master) == (near.address, old.address)
        assert (result.epoch, result.start, result.handed_over) == (TERM, 200, True)
        assert asked(group) == [[FENCE], [], [PROMOTE], []]

    run(test, ends=(200, 160, 200, 200))


def test_of_a_group_that_elects_its_masters_the_preferred_slave_takes_over():
    async def test(group, admin):
        group.replicates = False
        for member, priority in zip(group.members, (1, 9, "none", 3), strict=True):
            member.priority = priority
        assert (await admin.preview_hand_over(GROUP)).address == group.members[3].address
        group.replicates = True
        assert (await admin.hand_over(GROUP)).master == group.members[3].address

    run(test, ends=(200, 200, 200, 180))


@pytest.mark.parametrize("node", [None, 1])
def test_without_a_master_nobody_hands_over(node):
    async def test(group, admin):
        with pytest.raises(
            NoPermission, match=r"has no master that could hand over.*admin promote"
        ):
            await admin.hand_over(GROUP, node)
        assert asked(group) == [[], [], []]

    run(test, ends=(200, 200, 200), lost=[0])


def test_a_slave_whose_disk_is_full_takes_over_only_from_a_master_that_is_full_too():
    async def test(group, admin):
        old, full, other = group.members
        full.full = "the disk is used to 97 %"
        for call in (admin.hand_over, admin.promote):
            with pytest.raises(NoPermission, match="would take no sends: the disk is used to 97 %"):
                await call(GROUP, 1)
        assert asked(group) == [[], [], []]
        assert (await admin.preview_hand_over(GROUP)).address == other.address
        old.full = "the disk is used to 100 %"
        assert (await admin.preview_hand_over(GROUP)).address == full.address
        assert (await admin.promote(GROUP, 1)).master == full.address
        assert asked(group) == [[FENCE], [PROMOTE], []]

    run(test, ends=(200, 200, 200))


def test_by_force_a_slave_whose_disk_is_full_takes_over():
    async def test(group, admin):
        group.members[1].full = "the disk is used to 97 %"
        assert (await admin.promote(GROUP, 1, force=True)).master == group.members[1].address

    run(test)


def test_who_is_not_in_sync_or_leads_takes_nothing_over():
    async def test(group, admin):
        group.replicates = False
        group.members[2].lacks = "never caught up"
        await group.lose(group.members[3])
        for node, why in (
            (1, "is not in sync, 100 bytes behind"),
            (2, "has not had all that was confirmed"),
            (3, "does not answer"),
        ):
            with pytest.raises(NoPermission, match=why):
                await admin.hand_over(GROUP, node)
        with pytest.raises(InvalidParameter, match="is the master of broker-0 already"):
            await admin.hand_over(GROUP, 0)
        with pytest.raises(NoPermission, match=r"no node can take broker-0.*behind.*confirmed"):
            await admin.hand_over(GROUP)
        assert asked(group) == [[], [], [], []]

    run(test, ends=(200, 100, 200, 200))


def test_who_does_not_come_near_in_time_takes_nothing_over(monkeypatch):
    monkeypatch.setattr(promotion, "NEAR_BYTES", 10)

    async def test(group, admin):
        group.replicates = False
        with pytest.raises(NoPermission, match=r"40 bytes behind after 0\.2 s"):
            await admin.hand_over(GROUP, 1, timeout=0.2)
        assert asked(group) == [[], []]

    run(test, ends=(200, 160))


def test_nobody_takes_writes_for_longer_than_a_pause(monkeypatch):
    monkeypatch.setattr(promotion, "PAUSE_S", 0.1)

    async def test(group, admin):
        group.replicates = False
        with pytest.raises(NoPermission, match="behind"):
            await admin.hand_over(GROUP, 1, timeout=60)
        assert group.masters() == [group.members[0]]
        assert asked(group) == [[FENCE, PROMOTE], []]

    run(test, ends=(200, 160))


def test_the_senders_of_the_old_master_are_answered_before_another_one_leads():
    async def test(group, admin):
        group.members[0].unanswered = 45
        await admin.hand_over(GROUP)
        assert group.waited[0] == 0

    run(test)


def test_senders_who_wait_for_others_do_not_hold_up_the_hand_over(monkeypatch):
    monkeypatch.setattr(promotion, "ANSWERED_S", 0.1)

    async def test(group, admin):
        group.answers = False
        group.members[0].unanswered = 45
        await admin.hand_over(GROUP)
        assert group.masters() == [group.members[1]]
        assert group.waited[0] == 45

    run(test)


def test_a_hand_over_whose_caller_gives_up_ends_with_a_master():
    async def test(group, admin):
        old, new = group.members
        group.replicates = False
        work = asyncio.create_task(admin.hand_over(GROUP))
        await until(lambda: old.role == "fenced")
        work.cancel()
        await asyncio.sleep(0)
        group.replicates = True
        with pytest.raises(asyncio.CancelledError):
            await work
        assert group.masters() == [new]

    run(test, ends=(200, 160))


def test_a_client_that_is_closed_meanwhile_finishes_first():
    async def test(group, admin):
        old, new = group.members
        old.unanswered = 45
        work = asyncio.create_task(admin.hand_over(GROUP))
        await until(lambda: old.role == "fenced")
        await admin.close()
        assert group.masters() == [new]
        assert (await work).master == new.address

    run(test)


@pytest.mark.parametrize("is_fenced", [True, False])
def test_a_master_that_does_not_say_whether_it_is_fenced_leads_on(monkeypatch, is_fenced):
    monkeypatch.setattr(promotion, "CHANGE_TIMEOUT_S", 0.2)

    async def test(group, admin):
        old = group.members[0]
        if is_fenced:
            old.silent_once = [FENCE]
        else:
            old.refuse = {FENCE: "silence"}
        with pytest.raises(NoPermission, match="does not hand over"):
            await admin.hand_over(GROUP)
        assert group.masters() == [old]
        assert old.asked == ([FENCE, PROMOTE] if is_fenced else [])

    run(test)


def test_a_promotion_whose_answer_is_lost_counts(monkeypatch):
    monkeypatch.setattr(promotion, "CHANGE_TIMEOUT_S", 0.2)

    async def test(group, admin):
        old, new = group.members
        new.silent_once = [PROMOTE]
        result = await admin.hand_over(GROUP)
        assert (result.master, result.old_master) == (new.address, old.address)
        assert group.masters() == [new]

    run(test)


def test_the_old_master_is_asked_to_lead_again_until_it_does():
    async def test(group, admin):
        old, new = group.members
        new.refuse = {PROMOTE: "its disk is full"}
        old.refuse = {PROMOTE: "its disk is full, too"}
        work = asyncio.create_task(admin.hand_over(GROUP))
        await until(lambda: old.refused == [PROMOTE, PROMOTE])
        old.refuse = {}
        with pytest.raises(NoPermission, match=r"its disk is full$"):
            await work
        assert group.masters() == [old]

    run(test)


def test_that_nobody_leads_is_told_with_what_to_do(monkeypatch):
    monkeypatch.setattr(promotion, "BACK_S", 0.1)

    async def test(group, admin):
        old, new = group.members
        new.refuse = {PROMOTE: "its disk is full"}
        old.refuse = {PROMOTE: "its disk is full, too"}
        with pytest.raises(SaturnError, match=r"no master now.*disk is full, too.*admin promote"):
            await admin.hand_over(GROUP)
        assert group.masters() == []

    run(test)


# draining


async def second_group(group, ends=(100, 100)):
    other = Group(group.runtime, ends, 2, name="broker-1")
    await other.start(beside=group, masters_host="127.0.0.2")
    return other


def test_a_host_that_is_drained_leads_no_group():
    async def test(group, admin):
        other = await second_group(group)
        preview = await admin.preview_drain("127.0.0.2")
        told = [(each.group, each.node, each.led, each.master) for each in preview]
        assert told == [
            (each.name, each.members[0].address, True, each.members[1].address)
            for each in (group, other)
        ]
        assert asked(group) + asked(other) == [[], [], [], []]
        assert await admin.drain("127.0.0.2") == preview
        for each in (group, other):
            assert each.masters() == [each.members[1]]

    run(test, masters_host="127.0.0.2")


def test_a_node_is_drained_only_if_all_that_it_leads_can_be_handed_over():
    async def test(group, admin):
        other = await second_group(group, ends=(200, 100))
        other.replicates = False
        with pytest.raises(NoPermission, match=r"no node can take broker-1.*100 bytes behind"):
            await admin.drain("127.0.0.2")
        with pytest.raises(NoPermission, match="it has no other member"):  # that would stay
            await admin.drain("127.0.0.1")
        assert asked(group) + asked(other) == [[], [], [], []]

    run(test)


def test_a_drain_that_fails_half_way_tells_what_is_handed_over(monkeypatch):
    monkeypatch.setattr(promotion, "PAUSE_S", 0.1)

    async def test(group, admin):
        other = await second_group(group)
        other.members[1].refuse = {PROMOTE: "its disk is full"}
        with pytest.raises(SaturnError) as caught:
            await admin.drain("127.0.0.2", timeout=0.5)
        told = str(caught.value)
        assert f"{other.members[0].address} did not hand broker-1 over: " in told
        assert "its disk is full" in told
        assert f"left so: broker-0 to {group.members[1].address}. Drain again to go on" in told
        assert group.masters() == [group.members[1]]
        other.members[1].refuse = {}
        assert [each.led for each in await admin.drain("127.0.0.2")] == [False, True]

    run(test, masters_host="127.0.0.2")


def test_a_slave_leads_nothing_and_what_its_stop_costs_is_told():
    async def test(group, admin):
        slave = group.members[1]
        [told] = await admin.drain(slave.address)
        assert (told.led, told.master) == (False, group.members[0].address)
        assert "acknowledges with 2 copies and keeps 1" in told.risk
        assert asked(group) == [[], []]

    run(test)


@pytest.mark.parametrize(("required", "risk"), [(3, "with 3 copies and keeps 2"), (2, "")])
def test_copies_that_stay_count(required, risk):
    async def test(group, admin):
        [told] = await admin.drain(group.members[0].address)
        assert told.led
        assert risk in told.risk
        assert bool(told.risk) == bool(risk)

    run(test, ends=(100, 100, 100), required=required)


def test_a_node_that_nobody_knows_or_two_are_called_is_not_drained():
    async def test(group, admin):
        other = await second_group(group)
        with pytest.raises(
            InvalidParameter, match=r"id 0 is that of .* of broker-0, .* of broker-1"
        ):
            await admin.drain("0")
        with pytest.raises(InvalidParameter, match="'nowhere' names no broker"):
            await admin.drain("nowhere")
        [told] = await admin.drain("2")
        assert told.node == group.members[2].address
        other.members[1].refuse = {RequestCode.REPLICA_STATE: "it starts"}
        with pytest.raises(NoPermission, match="does not answer, so it hands nothing over"):
            await admin.drain(other.members[1].address)
        assert asked(group) + asked(other) == [[], [], [], [], []]

    run(test, ends=(100, 100, 100))


def test_of_a_group_without_a_master_it_is_told():
    async def test(group, admin):
        [told] = await admin.drain(group.members[1].address)
        assert (told.led, told.master) == (False, "")
        assert "broker-0 has no master" in told.risk

    run(test, lost=[0])
