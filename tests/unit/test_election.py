"""The rules of election: scenarios line by line, then whole groups under faults."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from election_rig import IDENTITY, LEASE_S, PREFIX, TERM, Group, Node, address, do, master, slave
from etcd_model import ModelEtcd
from saturnmq.broker.etcd.door import Guard, KeyValue, Snapshot
from saturnmq.broker.replication.election import (
    BACK_OFF_S,
    DRIFT,
    ETCD_ELECTION_S,
    FORSAKEN_S,
    SETTLE_S,
    SILENT_S,
    STAGGER_S,
    Campaign,
    Commit,
    Election,
    Facts,
    Follow,
    Grant,
    Poll,
    Revoke,
)
from saturnmq.broker.replication.elector import SavedMemory
from saturnmq.broker.replication.group_record import GroupRecord, Memory, read_record
from saturnmq.protocol import fastjson

A, B, C = address("a"), address("b"), address("c")
HOLDS_S = LEASE_S * (1 - DRIFT) - ETCD_ELECTION_S


def registered(etcd: ModelEtcd, *in_sync: str, **options: Any) -> Node:
    """A master that holds its group at 0, these slaves being in sync."""
    node = master(etcd, **options)
    node.know(in_sync=dict.fromkeys(in_sync, 500), replicas=frozenset(in_sync))
    node.run(0.0)
    assert node.election.holds(0.1, node.facts)
    return node


def campaigns(did: list[Any]) -> list[Campaign]:
    return [what for what in did if isinstance(what, Campaign)]


# a master


def test_a_master_takes_its_group_and_says_who_is_in_sync() -> None:
    etcd = ModelEtcd()
    node = master(etcd)
    node.know(in_sync={B: 480}, replicas=frozenset({B}))
    grant, commit = node.run(0.0)
    assert grant == Grant(LEASE_S)
    assert isinstance(commit, Commit)
    holder = etcd.items[f"{PREFIX}holder"]
    assert holder.value == A.encode()
    assert holder.lease
    record = read_record(etcd.items[f"{PREFIX}record"].value)
    assert not etcd.items[f"{PREFIX}record"].lease, "it outlives the master"
    both = frozenset({A, B})
    assert record == GroupRecord(IDENTITY, A, "a:10912", TERM, TERM, both, 480, {}, members=both)
    assert not node.election.trouble(0.1, node.facts)
    assert not node.run(0.2)


def test_a_lease_counts_from_before_it_was_asked_for_less_what_clocks_and_etcd_may_do() -> None:
    etcd = ModelEtcd()
    node = registered(etcd)
    node.reaches_etcd = False
    assert not node.until(0.1, HOLDS_S - 0.05)
    assert node.election.holds(HOLDS_S - 0.01, node.facts)
    assert not node.election.holds(HOLDS_S + 0.01, node.facts)
    assert etcd.read(PREFIX, HOLDS_S + 1.0).items.keys() > {f"{PREFIX}holder"}
    node.reaches_etcd = True
    node.until(HOLDS_S + 0.1, HOLDS_S + 0.9)
    assert node.election.holds(HOLDS_S + 1.0, node.facts), "it was renewed in time"
    node.until(HOLDS_S + 1.0, 60.0)
    assert node.election.holds(60.0, node.facts)


def test_a_lease_that_etcd_forgot_is_asked_for_anew() -> None:
    etcd = ModelEtcd()
    node = registered(etcd)
    node.reaches_etcd = False
    node.until(0.1, 5.0)
    assert node.election.trouble(5.0, node.facts) == "etcd does not answer: nobody answers"
    node.reaches_etcd = True
    did = node.until(5.0, 6.0)
    assert [type(what) for what in did] == [Grant, Commit]
    assert node.election.holds(6.0, node.facts)


@pytest.mark.parametrize(
    ("required", "unclean", "in_sync", "replicas", "wanted"),
    [
        (1, False, [B], [B, C], [B]),  # b could be elected without a message that it lacks
        (1, False, [], [B, C], []),  # nobody could be elected
        (1, True, [B], [B, C], [B, C]),
        (2, False, [B], [B, C], []),  # a promotion fences all but one
        (2, True, [B], [B, C], [B, C]),
    ],
)
def test_without_a_lease_who_could_be_elected_has_to_have_it(
    required: int, unclean: bool, in_sync: list[str], replicas: list[str], wanted: list[str]
) -> None:
    node = master(ModelEtcd(), unclean=unclean)
    node.know(required=required, in_sync=dict.fromkeys(in_sync, 500), replicas=frozenset(replicas))
    node.run(0.0)
    assert node.election.witnesses(0.1, node.facts) == frozenset()
    node.reaches_etcd = False
    node.until(0.1, 10.0)
    node.know(in_sync={})  # etcd does not hear of it
    assert node.election.witnesses(10.0, node.facts) == frozenset(wanted)


def test_a_master_that_never_reached_etcd_wants_every_slave_that_it_knows() -> None:
    node = master(ModelEtcd())
    node.know(in_sync={B: 500}, replicas=frozenset({B, C}))
    node.reaches_etcd = False
    node.until(0.0, 5.0)
    assert node.election.witnesses(5.0, node.facts) == frozenset({B, C})
    assert "etcd does not answer" in node.election.trouble(5.0, node.facts)


def test_who_may_be_in_sync_by_a_commit_of_unknown_outcome_counts_as_such() -> None:
    etcd = ModelEtcd()
    node = registered(etcd)
    node.know(in_sync={B: 500}, replicas=frozenset({B}))
    node.reaches_etcd = False
    node.until(0.1, 1.5)
    assert any(isinstance(what, Commit) for what in node.did[2:]) or node.run(1.6)
    assert node.election.witnesses(10.0, node.facts) == frozenset({B})


def test_the_in_sync_set_shrinks_but_not_below_what_a_send_waits_for() -> None:
    etcd = ModelEtcd()
    node = master(etcd)
    node.know(required=2, in_sync={B: 500, C: 500}, replicas=frozenset({B, C}))
    node.run(0.0)
    node.know(in_sync={B: 510}, end=520, confirmed=510)
    node.until(0.1, 3.0)
    assert node.record.in_sync == frozenset({A, B})
    assert node.record.confirmed == 510
    node.know(in_sync={}, end=530)
    node.until(3.0, 6.0)
    assert node.record.in_sync == frozenset({A, B}), "without b nothing is acknowledged"
    assert node.record.confirmed == 510
    node.know(required=1, confirmed=530)
    node.until(6.0, 9.0)
    assert node.record.in_sync == frozenset({A})


def test_what_is_confirmed_alone_is_written_now_and_then() -> None:
    etcd = ModelEtcd()
    node = registered(etcd, B)
    before = etcd.revision
    for tenth in range(1, 101):
        node.know(end=500 + tenth, confirmed=500 + tenth, in_sync={B: 500 + tenth})
        node.run(tenth / 10)
    assert 4 <= etcd.revision - before <= 6
    assert node.record.confirmed > 570


def test_a_master_that_ends_in_order_gives_its_lease_back() -> None:
    etcd = ModelEtcd()
    node = registered(etcd)
    revoke = node.election.stop()
    assert isinstance(revoke, Revoke)
    assert not node.election.holds(0.1, node.facts)
    assert node.run(0.2) == []


def test_a_master_hears_from_etcd_that_another_one_leads() -> None:
    etcd = ModelEtcd()
    registered(etcd, B)
    other = master(etcd, "b", 2 * TERM)
    other.until(0.1, 4.5)  # the lease of a is over then
    assert other.election.holds(4.5, other.facts)
    late = master(etcd)
    assert late.run(4.6) == [Follow(2 * TERM, B, "b:10912")]
    assert late.until(4.7, 7.0) == [], "once, and it takes nothing from that one"
    assert late.election.witnesses(7.0, late.facts) == frozenset({B})


# candidates


def test_a_slave_in_sync_is_elected_when_the_lease_of_its_master_is_over() -> None:
    etcd = ModelEtcd()
    registered(etcd, B)
    node = slave(etcd)
    assert node.until(0.0, 2.9) == []
    grant, commit, campaign = node.until(2.9, 4.2)
    assert grant == Grant(LEASE_S)
    assert isinstance(commit, Commit)
    assert campaign == Campaign(2 * TERM)
    assert read_record(etcd.items[f"{PREFIX}record"].value).claims == {B: 2 * TERM}
    assert node.until(4.2, 20.0) == [], "while it runs the lease is renewed"
    assert f"{PREFIX}holder" in etcd.read(PREFIX, 20.0).items
    node.know(leads=True, follows=False, term=2 * TERM + 1_000, epoch=2 * TERM + 1_000)
    node.election.campaign_ended(20.0, led=True)
    node.run(20.0)
    assert node.election.holds(20.1, node.facts)
    assert (node.record.master, node.record.epoch) == (B, 2 * TERM + 1_000)
    assert node.record.in_sync == frozenset({B})
    assert node.record.claims == {}


@pytest.mark.parametrize(
    ("facts", "elected"),
    [
        ({}, True),
        ({"hears_master": True}, False),
        ({"end": 499}, False),  # it had that once
        ({"unfit": "the disk failed"}, False),
        ({"may_lack": True}, False),  # not before it was asked whether it would be promoted
        ({"identity": ""}, False),
        ({"identity": "f" * 32}, False),
        ({"follows": False}, False),  # it finds out what it is
    ],
)
def test_who_may_be_elected(facts: dict[str, Any], elected: bool) -> None:
    etcd = ModelEtcd()
    registered(etcd, B)
    node = slave(etcd)
    node.know(**facts)
    assert bool(campaigns(node.until(0.0, 10.0))) is elected


def test_who_is_not_in_sync_is_elected_only_uncleanly_and_after_the_others() -> None:
    etcd = ModelEtcd()
    registered(etcd, B)
    clean, unclean = slave(etcd, "c"), slave(etcd, "d", unclean=True)
    unclean.know(unfit="it may lack something", end=3)
    for tenth in range(36):
        assert clean.run(tenth / 10) == unclean.run(tenth / 10) == []
    assert clean.until(3.6, 10.0) == []
    (campaign,) = campaigns(unclean.until(3.6, 10.0))
    assert campaign.force
    etcd = ModelEtcd()
    registered(etcd, B)
    first, last = slave(etcd), slave(etcd, "d", unclean=True)
    for tenth in range(60):
        first.run(tenth / 10)
        last.run(tenth / 10)
    assert campaigns(first.did)
    assert not campaigns(last.did)


def test_of_two_slaves_one_goes_first_and_the_other_when_it_fails() -> None:
    etcd = ModelEtcd()
    registered(etcd, B, C)
    b, c = slave(etcd), slave(etcd, "c")
    now = 0.0
    while not campaigns(b.did):
        c.run(now)
        b.run(now)
        now += 0.1
    assert now < LEASE_S + 1.5
    assert not campaigns(c.until(now, now + STAGGER_S))
    b.election.campaign_ended(now, led=False)  # c has more of the log
    b.run(now)
    assert read_record(etcd.items[f"{PREFIX}record"].value).claims == {}
    assert f"{PREFIX}holder" not in etcd.items
    end = now + BACK_OFF_S
    while now < end and not campaigns(c.did):
        now += 0.1
        b.run(now)
        c.run(now)
    assert campaigns(c.did) == [Campaign(3 * TERM)], "another number than b had"
    assert len(campaigns(b.did)) == 1


@pytest.mark.parametrize("facts", [{"may_lack": True}, {"follows": False, "deposed": True}])
def test_who_may_lack_something_or_was_deposed_is_elected_if_nobody_else_is_and_the_members_agree(
    facts: dict[str, Any],
) -> None:
    etcd = ModelEtcd()
    registered(etcd, B)
    node = slave(etcd)
    node.know(**facts)
    assert node.until(0.0, LEASE_S + FORSAKEN_S) == []
    assert node.until(LEASE_S + FORSAKEN_S, LEASE_S + FORSAKEN_S + 2.0) == [Poll()]
    now = LEASE_S + FORSAKEN_S + 2.0
    node.election.polled(now, "another one has more")
    assert node.election.trouble(now, node.facts) == "another one has more"
    assert node.until(now, now + BACK_OFF_S) == []
    now += BACK_OFF_S
    assert node.run(now + 0.1) == [Poll()]
    node.election.polled(now + 0.1, "")
    did = node.until(now + 0.2, now + 1.0)
    assert [type(what) for what in did] == [Grant, Commit, Campaign]
    assert did[-1] == Campaign(2 * TERM)


def test_a_deposed_master_keeps_its_lease_while_its_successor_may_be_about_to_lead() -> None:
    etcd = ModelEtcd()
    node = registered(etcd, B)
    node.know(leads=False, deposed=True, may_lack=False)
    assert node.until(0.1, LEASE_S - 0.2) == []
    assert f"{PREFIX}holder" in etcd.read(PREFIX, LEASE_S - 0.2).items


def test_after_a_campaign_that_failed_the_members_are_asked_before_another_epoch_is_used() -> None:
    etcd = ModelEtcd()
    registered(etcd, B)
    node = slave(etcd)
    assert campaigns(node.until(0.0, 5.0)) == [Campaign(2 * TERM)]
    node.election.campaign_ended(5.0, led=False)
    assert node.until(5.0, 20.0)[-1] == Poll()
    for second in range(20, 200, 10):
        node.election.polled(float(second), "nobody answers")
        assert node.until(second + 0.1, second + 9.9) == [Poll()]
    assert node.record.given == 2 * TERM
    node.election.polled(200.0, "")
    assert campaigns(node.until(200.1, 202.0)) == [Campaign(3 * TERM)]


def test_no_master_takes_its_group_back_from_one_that_may_lead() -> None:
    """Found by the world below: c leads, cut off from etcd before it could say so; the master of
    before must not think that nothing has happened, whoever else has tried meanwhile."""
    etcd = ModelEtcd()
    a = registered(etcd, B, C)
    c, b = slave(etcd, "c"), slave(etcd)
    assert campaigns(c.until(0.0, 5.0))  # and leads
    assert campaigns(b.until(8.0, 12.0))
    b.election.campaign_ended(12.0, led=False)
    b.know(hears_master=True)
    b.until(12.0, 13.0)
    assert a.until(13.0, 20.0) == [Revoke(1)] or not a.election.holds(20.0, a.facts)
    assert a.election.witnesses(20.0, a.facts) == frozenset({B, C})
    assert f"{C} may lead" in a.election.trouble(20.0, a.facts)
    c.know(leads=True, follows=False, term=2 * TERM + 2_000)
    c.election.campaign_ended(20.0, led=True)
    c.until(20.0, 21.0)
    assert c.election.holds(21.0, c.facts)
    assert Follow(2 * TERM + 2_000, C, "c:10912") in a.until(21.0, 23.0)


def test_a_preferred_slave_asks_its_master_to_hand_over_after_a_while() -> None:
    etcd = ModelEtcd()
    a = registered(etcd, B)
    node = slave(etcd, priority=1)
    node.know(hears_master=True)
    now = 0.0
    while now < 30 and not campaigns(node.did):
        a.run(now)
        node.run(now)
        now += 0.1
    assert SETTLE_S < now < SETTLE_S + 2
    assert campaigns(node.did) == [Campaign(2 * TERM, asks=True)]
    assert a.election.holds(now, a.facts), "nothing has happened to it yet"
    node.election.campaign_ended(now, led=False)
    for tenth in range(300):
        a.run(now + tenth / 10)
        node.run(now + tenth / 10)
    assert len(campaigns(node.did)) == 1, "it is not asked again at once"
    assert a.record.claims == {}


@pytest.mark.parametrize(
    "facts",
    [{"hears_master": False}, {"unfit": "it may lack something"}, {"end": 3}, {}],
)
def test_nobody_else_asks_for_a_hand_over(facts: dict[str, Any]) -> None:
    etcd = ModelEtcd()
    a = registered(etcd, B, priority=1)
    node = slave(etcd, priority=1 if not facts else 0)
    node.know(**({"hears_master": True} | facts))
    for tenth in range(300):
        a.run(tenth / 10)
        node.run(tenth / 10)
    assert not campaigns(node.did)


# who counts


def test_a_new_slave_counts_when_who_could_be_elected_knows_of_it() -> None:
    etcd = ModelEtcd()
    node, b = registered(etcd, B), slave(etcd)
    assert node.election.counting(IDENTITY) == frozenset({B})
    node.reaches_etcd = False
    node.know(in_sync={C: 500}, replicas=frozenset({B, C}))
    node.until(0.1, 1.5)
    assert node.election.counting(IDENTITY) == frozenset({B}), "b could be elected, alone"
    b.run(1.5)
    assert b.election.members() == frozenset({A, B})
    node.reaches_etcd = True
    node.until(1.5, 3.0)
    assert node.election.counting(IDENTITY) == frozenset({B, C})
    node.know(in_sync={B: 500})
    node.until(3.0, 4.5)
    b.until(3.0, 4.5)
    assert b.record.in_sync == frozenset({A, B})
    assert b.election.members() == frozenset({A, B, C}), "it may have what b lacks"


def test_all_slaves_count_where_nobody_else_could_be_elected() -> None:
    node = master(ModelEtcd())
    assert node.election.counting(IDENTITY) == frozenset(), "there is no record"
    node.run(0.0)
    assert node.election.counting(IDENTITY) == frozenset()
    node.know(in_sync={B: 500}, replicas=frozenset({B}))
    node.run(0.1)
    assert node.election.counting("f" * 32) == frozenset(), "that record is of another group"


def test_the_first_record_counts_before_its_master_knows_that_it_is_written() -> None:
    node = master(ModelEtcd())
    node.know(replicas=frozenset({B}))
    commit = None
    while not isinstance(commit, Commit):
        if commit is not None:
            do(node.etcd, node.election, commit, 0.0)(0.0)
        commit = node.election.step(0.0, node.facts)
    assert node.election.counting(IDENTITY) == frozenset({B})


def test_who_counts_is_known_through_a_restart_without_etcd() -> None:
    etcd, saved = ModelEtcd(), SavedMemory()
    registered(etcd, B, memory=saved.memory)
    again = SavedMemory()
    again.load(fastjson.loads(fastjson.dumps(saved.document())))
    node = master(etcd, memory=again.memory)
    node.reaches_etcd = False
    node.until(1.0, 2.0)
    assert node.election.counting(IDENTITY) == frozenset({B})


# etcd that is not what it was


def forgetful(**changes: int) -> tuple[Memory, Snapshot]:
    memory = Memory(cluster=7, revision=50, record_changed=40, members=frozenset({B, C}))
    record = GroupRecord(IDENTITY, A, "a:1", TERM, TERM, frozenset({A, B}), 5, {})
    item = KeyValue(record.to_bytes(), 3, changes.get("record_changed", 40))
    found = Snapshot(
        changes.get("cluster", 7), changes.get("revision", 50), {f"{PREFIX}record": item}
    )
    return memory, found


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"revision": 49}, "at revision 49, it was at 50"),
        ({"cluster": 8}, "etcd cluster 8, it was 7"),
        ({"record_changed": 39}, "of revision 39, it was of 40"),
    ],
)
def test_an_etcd_that_has_forgotten_is_refused_for_good(
    changes: dict[str, int], words: str
) -> None:
    memory, found = forgetful(**changes)
    node = slave(ModelEtcd(), memory=memory)
    node.election.saw(found, 1.0)
    assert words in node.election.trouble(1.0, node.facts)
    assert "config/election.json" in node.election.trouble(1.0, node.facts)
    assert "delete the group's record" in node.election.trouble(1.0, node.facts), "it is old"
    node.election.saw(replace(found, cluster=7, revision=99), 2.0)  # it has grown since
    assert words in node.election.refused
    again = Election(PREFIX, B, "b:10912", memory, lease_s=LEASE_S)  # and after a restart
    again.saw(replace(found, cluster=7, revision=99), 1.0)
    assert words in again.refused
    assert not isinstance(node.election.step(2.1, node.facts), (Grant, Commit))
    leads = Facts(leads=True, term=TERM, identity=IDENTITY, replicas=frozenset({C}))
    assert again.witnesses(2.0, leads) == frozenset({C}), "not what that record says"
    assert again.counting(IDENTITY) == frozenset({C}), "as it was before"


def test_an_etcd_that_goes_on_is_believed() -> None:
    memory, found = forgetful(revision=51, record_changed=51)
    node = slave(ModelEtcd(), memory=memory)
    node.election.saw(found, 1.0)
    assert not node.election.refused
    assert (memory.revision, memory.record_changed) == (51, 51)


def test_another_group_of_this_name_is_told_and_left_alone() -> None:
    etcd = ModelEtcd()
    a = registered(etcd, B)
    other = master(etcd, "x")
    other.know(identity="f" * 32, replicas=frozenset({C}))
    assert other.until(0.0, 10.0) == []
    assert "two groups have one name" in other.election.trouble(10.0, other.facts)
    assert other.election.witnesses(10.0, other.facts) == frozenset({C})
    etcd.commit([Guard(f"{PREFIX}record", etcd.items[f"{PREFIX}record"].changed)], [], 10.0)
    a.until(10.0, 11.0)
    assert read_record(etcd.items[f"{PREFIX}record"].value).identity == IDENTITY


def test_a_node_without_a_log_follows_only_the_group_that_etcd_knows() -> None:
    etcd = ModelEtcd()
    node = slave(etcd)
    node.know(end=0, identity="", term=0, epoch=0)
    node.reaches_etcd = False
    node.run(0.0)
    assert "etcd has not told yet" in node.election.refuses_group(IDENTITY)
    node.reaches_etcd = True
    node.until(0.1, 1.5)
    assert not node.election.refuses_group("f" * 32), "no group has registered: it may be the first"
    registered(etcd, B)
    node.until(1.5, 3.0)
    assert "is of another group with this name" in node.election.refuses_group("f" * 32)
    assert "not known" in node.election.refuses_group("")
    assert not node.election.refuses_group(IDENTITY)


def test_a_node_without_a_log_is_told_the_master_of_etcd_until_it_hears_it() -> None:
    """The nameservers may name the master of another group to it again and again."""
    etcd = ModelEtcd()
    registered(etcd, B)
    node = slave(etcd)
    node.know(end=0, identity="", term=0, epoch=0)

    def told(now: float, end: float) -> int:
        count = 0
        while now < end:
            while (what := node.election.step(now, node.facts)) is not None:
                count += what == Follow(TERM, A, "a:10912")
                do(etcd, node.election, what, now)(now)
            now += 0.1
        return count

    assert 8 <= told(0.1, 10.0) <= 12
    node.know(hears_master=True)
    assert told(10.0, 20.0) == 0
    node.know(hears_master=False, end=500)
    assert told(20.0, 30.0) == 0, "its log says which group it is of"


def test_an_empty_group_has_nothing_to_take_over() -> None:
    etcd = ModelEtcd()
    node = registered(etcd, B)
    assert not node.election.trouble(0.1, node.facts)
    node.know(end=0)
    assert "the log is empty" in node.election.trouble(0.1, node.facts)


def test_a_group_without_a_record_and_a_master_is_told_to_name_one() -> None:
    node = slave(ModelEtcd())
    node.run(0.1)
    assert node.election.trouble(0.1, node.facts).endswith("`saturnmq admin promote`")
    node.know(hears_master=True)  # which will write the record
    assert node.election.trouble(0.1, node.facts).endswith("in etcd yet")


def test_silence_is_told_after_a_while() -> None:
    etcd = ModelEtcd()
    node = registered(etcd, B)
    node.until(0.1, 5.0)
    assert not node.election.trouble(5.0, node.facts)
    node.reaches_etcd = False
    node.until(5.0, 5.0 + SILENT_S + 1.5)
    assert "etcd does not answer" in node.election.trouble(9.5, node.facts)


# whole groups


@pytest.mark.parametrize("required", [1, 2])
def test_groups_under_faults_never_have_two_masters_and_go_on_at_the_end(required: int) -> None:
    elections = under_witnesses = 0
    for seed in range(8):
        group = Group(seed, required)
        group.run(90.0)
        if required > 1:
            group.check_nothing_lost()
        recent = [at for at, _ in group.acknowledged if at > group.now - 5]
        assert recent, f"seed {seed}: nothing is acknowledged at the end"
        elections += group.elections
        under_witnesses += group.under_witnesses
    assert elections >= 3
    assert required > 1 or under_witnesses


class AsksNobody(Election):
    def witnesses(self, now: float, facts: Facts) -> frozenset[str]:
        return frozenset()


class TrustsALeaseForEver(Election):
    def _count(self, seconds: int, sent_at: float) -> None:
        self._until, self._renew_at = 1e9, sent_at + 0.6


class ElectsAnybody(Election):
    def _eligible(self, facts: Facts) -> bool:
        return True

    def _goes_first(self, facts: Facts) -> bool:
        return True

    def _waits_s(self, facts: Facts) -> float:
        return 0.0


class AsksOnlyWhoIsThere(Election):
    def witnesses(self, now: float, facts: Facts) -> frozenset[str]:
        return super().witnesses(now, facts) & frozenset(facts.in_sync)


@pytest.mark.parametrize(
    "rules", [AsksNobody, TrustsALeaseForEver, ElectsAnybody, AsksOnlyWhoIsThere]
)
def test_these_groups_notice_a_rule_that_is_broken(rules: type[Election]) -> None:
    for seed in range(10):
        try:
            Group(seed, 1, rules).run(80.0)
        except AssertionError as error:
            assert "acknowledges" in str(error)  # noqa: PT017
            return
    raise AssertionError("none of them has")
