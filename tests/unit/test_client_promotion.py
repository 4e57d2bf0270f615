"""Replicas and promotion against scripted members of one group and a real nameserver."""

import pytest
from members_rig import GROUP, run
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.epochs import TERM
from saturnmq.runtime.errors import InvalidParameter, NoPermission, RouteNotFound, SaturnError


def test_replicas_tell_who_leads_and_how_far_everybody_is():
    async def test(group, admin):
        group.replicates = False
        master, near, far = await admin.replicas(GROUP)
        assert (master.role, master.epoch, master.end, master.in_sync) == ("master", 1, 500, None)
        assert (near.broker_id, near.in_sync, near.lag_bytes, near.lag_ms) == (1, True, 20, 5)
        assert (far.in_sync, far.lag_bytes, far.address) == (False, 400, group.members[2].address)
        assert (far.truncated[0].start, far.truncated[0].end) == (3, 7)
        assert await admin.replicas() == [master, near, far]
        with pytest.raises(RouteNotFound, match="did you mean 'broker-0'"):
            await admin.replicas("broker-O")

    run(test, ends=(500, 480, 100))


def test_a_member_that_no_nameserver_lists_is_found_through_the_others():
    async def test(group, admin):
        group.members[1].link.abort()
        _, slave = await admin.replicas(GROUP)
        assert slave.address == group.members[1].address
        assert slave.answers

    run(test)


def test_a_member_that_does_not_answer_is_listed_with_the_reason():
    async def test(group, admin):
        gone = (await admin.replicas(GROUP))[1]
        assert (gone.broker_id, gone.answers, gone.role) == (1, False, "unknown")
        assert "no connection" in gone.error

    run(test, lost=[1])


def test_a_living_master_hands_over_when_the_new_one_has_all_of_its_log():
    async def test(group, admin):
        result = await admin.promote(GROUP, 1)
        old, new = group.members
        assert (old.role, new.role, new.end) == ("fenced", "master", 5000)
        assert (result.master, result.old_master) == (new.address, old.address)
        assert (result.epoch, result.start, result.handed_over) == (TERM, 5000, True)
        assert old.asked == [RequestCode.FENCE]
        assert new.asked == [RequestCode.PROMOTE]

    run(test, ends=(5000, 100))


def test_a_slave_that_does_not_catch_up_is_not_promoted_and_the_master_is_left_alone(monkeypatch):
    monkeypatch.setattr("saturnmq.client.admin.promotion.NEAR_BYTES", 10)

    async def test(group, admin):
        group.replicates = False
        with pytest.raises(NoPermission, match=r"100 bytes behind after 0\.2 s"):
            await admin.promote(GROUP, 1, timeout=0.2)
        assert group.members[0].asked == []

    run(test, ends=(200, 100))


def test_a_hand_over_waits_for_a_deposed_node_to_follow_and_catch_up_before_it_fences_the_master():
    async def test(group, admin):
        old, new = group.members
        new.role = "fenced"  # it had all that was confirmed as the master that it was
        told, asked = new.state, []

        def state():
            asked.append(list(old.asked))
            if len(asked) == 5:
                new.role, new.lacks = "slave", "never caught up"
            elif len(asked) == 10:
                new.lacks = ""
            return told()

        new.state = state
        result = await admin.promote(GROUP, 1)
        assert (result.master, result.handed_over) == (new.address, True)
        assert asked[:10] == [[]] * 10, "the master was left alone until then"

    run(test)


@pytest.mark.parametrize(("role", "lacks"), [("fenced", ""), ("slave", "never caught up")])
def test_a_node_that_does_not_follow_is_not_promoted_and_the_master_is_left_alone(role, lacks):
    async def test(group, admin):
        new = group.members[1]
        new.role, new.lacks = role, lacks
        with pytest.raises(NoPermission, match=r"not following its master after 0\.2 s"):
            await admin.promote(GROUP, 1, timeout=0.2)
        assert group.members[0].asked == []

    run(test)


@pytest.mark.parametrize("why", ["stops replicating", "refuses"])
def test_a_hand_over_that_fails_gives_the_lead_back(why):
    async def test(group, admin):
        old, new = group.members
        if why == "refuses":
            new.refuse = {RequestCode.PROMOTE: "its disk is full"}
        else:
            group.replicates = False
        with pytest.raises(NoPermission, match=r"behind|disk is full"):
            await admin.promote(GROUP, new.address, timeout=0.3)
        assert group.masters() == [old]
        assert old.asked == [RequestCode.FENCE, RequestCode.PROMOTE]
        assert old.epoch == 2 * TERM

    run(test, ends=(200, 100))


def test_who_leads_already_is_not_promoted_and_a_wrong_name_says_the_right_ones():
    async def test(group, admin):
        with pytest.raises(InvalidParameter, match="is the master of broker-0 already"):
            await admin.promote(GROUP, 0)
        with pytest.raises(InvalidParameter, match=r"'7' names no one member.*\(id 1\)"):
            await admin.promote(GROUP, 7)
        with pytest.raises(InvalidParameter, match="names no one member"):
            await admin.promote(GROUP, "127.0.0.1")

    run(test)


def test_without_the_master_the_furthest_member_is_promoted():
    async def test(group, admin):
        _, far, near = group.members
        with pytest.raises(NoPermission, match=f"{near.address}.*has more of the log"):
            await admin.promote(GROUP, far.address)
        assert near.asked == far.asked == []
        result = await admin.promote(GROUP, 2)
        assert group.masters()[-1] is near
        assert (result.old_master, result.handed_over, result.start) == ("", False, 200)
        assert far.asked == [RequestCode.FENCE]
        assert near.asked == [RequestCode.FENCE, RequestCode.PROMOTE]

    run(test, ends=(200, 100, 200), lost=[0])


def test_an_epoch_that_nothing_was_written_in_makes_nobody_the_furthest():
    async def test(group, admin):
        _, target, other = group.members
        other.epochs.append([2, 200])  # it began to lead just now
        other.epoch = 2
        assert (await admin.promote(GROUP, 1)).master == target.address

    run(test, ends=(200, 200, 200), lost=[0])


def test_too_few_members_are_not_enough_unless_forced():
    async def test(group, admin):
        target = group.members[2]
        with pytest.raises(NoPermission, match=r"1 of 3 members.*so 2 must"):
            await admin.promote(GROUP, 2)
        assert target.asked == []
        assert (await admin.promote(GROUP, 2, force=True)).master == target.address

    run(test, ends=(100, 100, 100), lost=[0, 1])


def test_an_asynchronous_group_needs_no_quorum():
    async def test(group, admin):
        assert (await admin.promote(GROUP, 2)).master == group.members[2].address

    run(test, ends=(100, 100, 100), required=1, lost=[0, 1])


def test_a_master_that_may_have_lost_something_does_not_count_as_a_copy():
    async def test(group, admin):
        master, target, _ = group.members
        master.role = "recovering"
        with pytest.raises(NoPermission, match="1 of 3 members"):
            await admin.promote(GROUP, 1)
        with pytest.raises(NoPermission, match="may lack acknowledged messages"):
            await admin.promote(GROUP, 0)
        await admin.promote(GROUP, 1, force=True)
        assert group.masters() == [target]

    run(test, ends=(100, 100, 100), lost=[2])


@pytest.mark.parametrize("role", ["slave", "fenced"])
@pytest.mark.parametrize("why", ["never caught up", "has no epochs"])
def test_who_never_had_everything_is_promoted_by_force_only(why, role):
    async def test(group, admin):
        target = group.members[1]
        target.role = role
        target.lacks = why
        if why == "has no epochs":
            target.epochs = []
        with pytest.raises(NoPermission, match="has not had all"):
            await admin.promote(GROUP, 1)
        assert target.asked == []
        assert (await admin.promote(GROUP, 1, force=True)).master == target.address

    run(test, required=1, lost=[0])


@pytest.mark.parametrize("name", ["elsewhere:1", "that of the target"])
def test_a_node_that_tells_another_address_once_it_is_fenced_is_the_one_that_was_asked(name):
    async def test(group, admin):
        _, target, other = group.members
        address = target.address
        other.renamed = address if name == "that of the target" else name
        target.renamed = "" if name == "that of the target" else name
        result = await admin.promote(GROUP, address)
        assert result.master == address
        assert target.role == "master"

    run(test, ends=(200, 200, 200), lost=[0])


def test_a_take_over_that_fails_says_that_nobody_leads():
    async def test(group, admin):
        group.members[1].refuse = {RequestCode.PROMOTE: "its disk is full"}
        with pytest.raises(NoPermission, match=r"broker-0 has no master.*its disk is full"):
            await admin.promote(GROUP, 1)

    run(test, lost=[0])


def test_a_master_that_hangs_when_it_is_to_hand_over_is_taken_over_from(monkeypatch):
    monkeypatch.setattr("saturnmq.client.admin.promotion.CHANGE_TIMEOUT_S", 0.2)

    async def test(group, admin):
        group.members[0].refuse = {RequestCode.FENCE: "silence"}
        group.members[2].end = 100
        result = await admin.promote(GROUP, 1)
        assert (result.master, result.handed_over) == (group.members[1].address, False)
        assert group.members[2].asked == [RequestCode.FENCE]

    run(test, ends=(100, 100, 100))


def test_a_node_that_speaks_another_dialect_is_a_typed_error():
    async def test(group, admin):
        group.members[1].state = lambda: {"brokerName": "x"}
        assert "does not parse" in (await admin.replicas(GROUP))[1].error
        with pytest.raises(SaturnError, match="cannot become master"):
            await admin.promote(GROUP, 1)

    run(test)
