"""What a promotion asks of whom, and who has to answer before one that may lose something."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from saturnmq.client.admin import promotion
from saturnmq.client.admin.promotion import Promoter, Promotion, find_member
from saturnmq.client.admin.replicas import Replica
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.epochs import TERM
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.signing import UNSIGNED
from saturnmq.runtime.errors import (
    ConnectFailed,
    ConnectionLost,
    InvalidParameter,
    NoPermission,
    SaturnError,
)


@dataclass
class Node:
    """A member of group `g` that becomes what it is asked to."""

    broker_id: int
    role: str = "slave"
    epoch: int = 3
    end: int = 100
    epochs: list[list[int]] = field(default_factory=lambda: [[3, 0]])
    more: dict[str, Any] = field(default_factory=dict)
    fails: dict[RequestCode, SaturnError] = field(default_factory=dict)
    loses: int = 0  # bytes, when it is fenced
    gains: int = 0  # bytes, whenever it is asked for its state
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def answer(self, command: Command) -> dict[str, Any]:
        code = RequestCode(command.code)
        if code in self.fails:
            raise self.fails[code]
        if code is RequestCode.REPLICA_STATE:
            self.end += self.gains
        else:
            self.asked.append((code.name, command.ext))
            self.epoch = int(command.ext["epoch"])
            if code is RequestCode.PROMOTE:
                self.role = "master"
            else:
                self.role = "fenced"
                self.end -= self.loses
        return {
            "brokerName": "g",
            "brokerId": self.broker_id,
            "role": self.role,
            "epoch": self.epoch,
            "epochs": self.epochs,
            "end": self.end,
            "confirmed": self.end,
            **self.more,
        }


class Core:
    """A network of nodes, on a clock of its own."""

    signing = UNSIGNED

    def __init__(self, **nodes: Node) -> None:
        self.nodes = nodes
        self.runtime = self
        self.now = 50.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    async def finish(self, work: Coroutine[Any, Any, Promotion]) -> Promotion:
        return await work

    async def invoke(
        self, address: str, command: Command, timeout: float, ok: Collection[int]
    ) -> Command:
        if address not in self.nodes:
            raise ConnectionLost(f"nobody listens at {address}")
        return Command(0, {}, fastjson.dumps(self.nodes[address].answer(command)))

    def promote(self, node: str, **options: Any) -> Promotion:
        addresses = options.pop("addresses", list(self.nodes))
        core: Any = self
        options = {"force": False, **options}
        return asyncio.run(Promoter(core, "g", addresses=addresses, **options).run(node))


def ext(epoch: int, **more: str) -> dict[str, str]:
    return {"epoch": str(epoch), "force": "false", "end": "0", **more}


def test_a_hand_over_fences_and_promotes_in_one_new_epoch() -> None:
    core = Core(a=Node(0, "master"), b=Node(1))
    assert core.promote("b") == Promotion("g", 3, 0, "b", "a", handed_over=True)
    assert core.nodes["a"].asked == [("FENCE", ext(TERM))]
    assert core.nodes["b"].asked == [("PROMOTE", ext(TERM))]


def test_a_take_over_fences_all_and_promotes_what_reaches_so_far() -> None:
    core = Core(a=Node(1), b=Node(2, end=101))
    assert core.promote("b") == Promotion("g", 3, 0, "b", "", handed_over=False)
    assert core.nodes["a"].asked == [("FENCE", ext(TERM))]
    promoted = ("PROMOTE", ext(TERM, force="true", end="101"))
    assert core.nodes["b"].asked == [("FENCE", ext(TERM)), promoted]


def test_the_target_of_a_take_over_is_fenced_last() -> None:
    fenced: list[int] = []

    class Noted(Node):
        def answer(self, command: Command) -> dict[str, Any]:
            if command.code == RequestCode.FENCE:
                fenced.append(self.broker_id)
            return super().answer(command)

    core = Core(a=Noted(1), b=Noted(2), c=Noted(3))
    core.promote("b")
    assert fenced == [1, 3, 2]


@pytest.mark.parametrize(("asks", "waits_s"), [(True, promotion.PAUSE_S), (False, 10.0)])
def test_a_planned_hand_over_leaves_a_group_without_a_master_for_a_moment_only(
    asks: bool, waits_s: float
) -> None:
    core = Core(a=Node(0, "master", end=150), b=Node(1))
    with pytest.raises(NoPermission, match=f"b is 50 bytes behind after {waits_s:g} s"):
        core.promote("b", asks=asks)
    assert core.now - 50.0 == pytest.approx(waits_s, abs=0.02)
    assert [name for name, _ in core.nodes["a"].asked] == ["FENCE", "PROMOTE"]


@pytest.mark.parametrize(
    ("error", "asks", "asked"),
    [
        (ConnectionLost("lost"), True, ["PROMOTE"]),
        (ConnectFailed("away"), True, []),
        (ConnectionLost("lost"), False, []),
    ],
    ids=repr,
)
def test_a_master_that_may_be_fenced_is_asked_to_lead_again_if_nothing_is_taken_over(
    error: SaturnError, asks: bool, asked: list[str]
) -> None:
    class Silent(Node):
        """Is fenced, but its answer is lost."""

        def answer(self, command: Command) -> dict[str, Any]:
            if command.code == RequestCode.FENCE:
                if not isinstance(error, ConnectFailed):
                    self.role, self.epoch = "fenced", int(command.ext["epoch"])
                raise error
            return super().answer(command)

    core = Core(a=Silent(0, "master"), b=Node(1))
    if asks:
        with pytest.raises(NoPermission, match="a does not hand over"):
            core.promote("b", asks=True)
        assert core.nodes["a"].role == "master"
    else:
        assert not core.promote("b").handed_over
    assert [name for name, _ in core.nodes["a"].asked] == asked


def test_a_master_that_is_about_to_be_fenced_is_waited_for() -> None:
    class Slow(Node):
        """Has the order, does not answer, and carries it out a little later."""

        looks = 0

        def answer(self, command: Command) -> dict[str, Any]:
            if command.code == RequestCode.FENCE:
                self.epoch = int(command.ext["epoch"])
                raise ConnectionLost("lost")
            if command.code == RequestCode.REPLICA_STATE:
                self.looks += 1
                if self.looks == 4:
                    self.role = "fenced"
            return super().answer(command)

    core = Core(a=Slow(0, "master"), b=Node(1))
    with pytest.raises(NoPermission, match="a does not hand over"):
        core.promote("b", asks=True)
    assert (core.nodes["a"].role, core.nodes["a"].asked) == (
        "master",
        [("PROMOTE", ext(2 * TERM))],
    )


def test_a_member_is_named_by_its_address_its_id_or_a_host_of_its_own() -> None:
    members = [Replica("g", n, address) for n, address in enumerate(("h:1", "i:1", "i:2"))]
    named = [find_member(members, node).address for node in ("h:1", 1, "2", "h")]
    assert named == ["h:1", "i:1", "i:2", "h:1"]
    for node in ("i", 3, "nobody"):
        with pytest.raises(InvalidParameter) as told:
            find_member(members, node)
        assert f"'{node}' names no one member of g" in str(told.value)
        assert "one of h:1 (id 0), i:1 (id 1), i:2 (id 2)" in str(told.value)


def test_a_member_that_is_not_the_furthest_is_told_how_far_that_one_is() -> None:
    core = Core(a=Node(1), b=Node(2, end=101, epochs=[[3, 0], [5, 90]]))
    with pytest.raises(NoPermission) as told:
        core.promote("a")
    found = re.sub(r"\s+", " ", str(told.value))
    assert "b (id 2) has more of the log than a: it ends at 101 in epoch 5" in found
    assert "the other one at 100 in epoch 3. Promote that one" in found


def test_a_take_over_by_force_insists_only_where_something_may_be_lost() -> None:
    core = Core(a=Node(1), b=Node(2, end=101))
    core.promote("a", force=True)
    promoted = ("PROMOTE", ext(TERM, force="true", end="100", insist="true"))
    assert core.nodes["a"].asked[-1] == promoted
    core = Core(a=Node(1), b=Node(2))
    core.promote("a", force=True)
    assert "insist" not in core.nodes["a"].asked[-1][1]


@pytest.mark.parametrize(
    ("known", "least", "epoch"),
    [(3, 0, TERM), (TERM, 0, 2 * TERM), (3, TERM + 7, TERM + 7), (2 * TERM, TERM + 7, 3 * TERM)],
)
def test_the_epoch_is_above_all_that_is_known_and_not_below_the_one_that_is_given(
    known: int, least: int, epoch: int
) -> None:
    core = Core(a=Node(1, epoch=known), b=Node(2))
    core.promote("b", epoch=least)
    assert core.nodes["b"].epoch == epoch


def test_of_two_that_lead_the_newer_one_hands_over() -> None:
    core = Core(a=Node(0, "master"), b=Node(1), c=Node(2, "master", epoch=4))
    assert core.promote("b").old_master == "c"
    assert core.nodes["a"].asked == []


def test_who_only_asks_for_a_hand_over_takes_nothing_over() -> None:
    core = Core(a=Node(1), b=Node(2))
    with pytest.raises(NoPermission, match="no master hands g over to b"):
        core.promote("b", asks=True)
    assert core.nodes["a"].asked == core.nodes["b"].asked == []


def test_nodes_of_another_group_of_that_name_have_nothing_to_do_with_it() -> None:
    core = Core(
        a=Node(0, "master", epoch=9 * TERM, more={"identity": "x"}),
        b=Node(1, more={"identity": "y"}),
        c=Node(2, more={"identity": "y"}),
        d=Node(3),
    )
    assert (core.promote("b").old_master, core.nodes["b"].epoch) == ("", TERM)
    assert core.nodes["a"].asked == []
    assert core.nodes["c"].asked == core.nodes["d"].asked == [("FENCE", ext(TERM))]


def test_a_target_that_knows_no_identity_belongs_to_whoever_has_its_name() -> None:
    core = Core(a=Node(0, "master", more={"identity": "x"}), b=Node(1))
    assert core.promote("b").old_master == "a"


@pytest.mark.parametrize(
    ("copies", "required", "answering", "needed"),
    [
        (3, 2, 2, None),
        (3, 2, 1, 2),
        (5, 3, 3, None),
        (5, 3, 2, 3),
        (3, 3, 1, None),
        (5, 1, 1, None),
        (2, 2, 1, None),
    ],
)
@pytest.mark.parametrize("known_by", ["total", "replicas", "addresses"])
def test_so_many_have_to_answer_that_one_of_them_has_every_message(
    known_by: str, copies: int, required: int, answering: int, needed: int | None
) -> None:
    names = "abcde"[:copies]
    more: dict[str, Any] = {"required": required}
    if known_by == "total":
        more["total"] = copies
    elif known_by == "replicas":
        more["replicas"] = {str(number): name for number, name in enumerate(names)}
        del more["replicas"]["0"]
    core = Core(**{name: Node(n, more=more) for n, name in enumerate(names[:answering])})
    addresses = list(names if known_by == "addresses" else names[:answering])
    if needed is None:
        assert core.promote("a", addresses=addresses).master == "a"
        return
    with pytest.raises(NoPermission) as told:
        core.promote("a", addresses=addresses)
    assert f"{answering} of {copies} members of g answer" in str(told.value)
    assert f"with {required} copies, so {needed} must" in str(told.value)
    assert core.nodes["a"].asked == []
    assert core.promote("a", addresses=addresses, force=True).master == "a"


@pytest.mark.parametrize(
    ("answering", "epochs", "fits"), [(2, [[3, 0]], True), (1, [[3, 0]], False), (2, [], False)]
)
def test_of_members_that_may_all_lack_something_the_furthest_has_what_there_is(
    answering: int, epochs: list[list[int]], fits: bool
) -> None:
    more = {"caughtUp": False, "required": 2}
    nodes = {"a": Node(1, more=more, epochs=epochs), "b": Node(2, more=more)}
    core = Core(**dict(list(nodes.items())[:answering]))
    if fits:
        assert core.promote("a", addresses=["a", "b"]).master == "a"
    else:
        with pytest.raises(NoPermission, match="a has not followed a master since it started"):
            core.promote("a", addresses=["a", "b"])


def test_who_lost_what_it_had_is_promoted_by_force_only() -> None:
    core = Core(a=Node(1, more={"lacks": "its disk"}), b=Node(2))
    with pytest.raises(NoPermission, match="a has lost what it had: its disk"):
        core.promote("a")
    assert core.promote("a", force=True).master == "a"


def test_who_lost_something_between_two_looks_does_not_count_any_more() -> None:
    more = {"required": 2, "total": 3}
    core = Core(a=Node(1, more=more), b=Node(2, loses=1, more=more))
    with pytest.raises(NoPermission, match="1 of 3 members of g answer and may not lack"):
        core.promote("a")
    assert [name for name, _ in core.nodes["a"].asked] == ["FENCE"]
    core = Core(a=Node(1, more=more), b=Node(2, loses=0, more=more))
    assert core.promote("a").master == "a"


def test_a_target_that_is_gone_when_it_is_to_be_fenced_is_not_promoted() -> None:
    gone: dict[RequestCode, SaturnError] = {RequestCode.FENCE: ConnectionLost("gone")}
    core = Core(a=Node(1, fails=gone), b=Node(2))
    with pytest.raises(NoPermission, match="a does not answer any more"):
        core.promote("a")
    core = Core(a=Node(1, more={"required": 2}), b=Node(2, fails=gone), c=Node(3))
    assert core.promote("a").master == "a", "two of three are enough"


@pytest.mark.parametrize(("behind", "waits_s"), [(10, 0.0), (11, 0.01), (110, 1.0)])
def test_a_master_is_fenced_when_its_successor_is_near(
    behind: int, waits_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at it takes a hundredth of a second, in which it gets a byte."""
    monkeypatch.setattr(promotion, "NEAR_BYTES", 10)
    fenced_at: list[float] = []

    class Master(Node):
        def answer(self, command: Command) -> dict[str, Any]:
            if command.code == RequestCode.FENCE:
                fenced_at.append(core.now)
            return super().answer(command)

    target = Node(1, end=1000 - behind - 2, gains=1)  # two looks are made before it is waited for
    core = Core(a=Master(0, "master", end=1000), b=target)
    assert core.promote("b").handed_over
    assert fenced_at == [pytest.approx(50.0 + waits_s)]
    assert target.end == 1000


@pytest.mark.parametrize(("trouble", "said"), [("", "0.5 s: wait"), ("a gap", "0.5 s (a gap): w")])
def test_a_successor_that_does_not_come_near_in_time_is_not_promoted(
    trouble: str, said: str
) -> None:
    core = Core(a=Node(0, "master", end=2 << 20), b=Node(1, more={"trouble": trouble}))
    with pytest.raises(NoPermission) as told:
        core.promote("b", timeout_s=0.5)
    assert f"b is {(2 << 20) - 100} bytes behind after {said}" in str(told.value)
    assert 0.5 <= core.now - 50.0 < 0.52
    assert core.nodes["a"].asked == []


def test_a_successor_that_leads_after_all_stays_the_master() -> None:
    class Late(Node):
        """Is promoted, but its answer is lost."""

        def answer(self, command: Command) -> dict[str, Any]:
            told = super().answer(command)
            if command.code == RequestCode.PROMOTE:
                raise ConnectionLost("lost")
            return told

    core = Core(a=Node(0, "master"), b=Late(1))
    told = core.promote("b")
    assert (told.master, told.old_master, told.handed_over) == ("b", "a", True)
    assert (core.nodes["a"].role, core.nodes["b"].role) == ("fenced", "master")
    assert len(core.nodes["a"].asked) == 1


def test_an_old_master_that_leads_again_does_so_in_a_later_epoch() -> None:
    fails: dict[RequestCode, SaturnError] = {RequestCode.PROMOTE: NoPermission("no room")}
    core = Core(a=Node(0, "master"), b=Node(1, fails=fails))
    with pytest.raises(NoPermission, match="no room"):
        core.promote("b")
    assert core.nodes["a"].asked[1:] == [("PROMOTE", ext(2 * TERM))]
    core = Core(a=Node(0, "master", fails=fails), b=Node(1, fails=fails))
    with pytest.raises(SaturnError, match=r"g has no master now: b was not promoted \(.*no room"):
        core.promote("b")
    assert core.now - 50.0 == pytest.approx(promotion.BACK_S, abs=0.11)


@pytest.mark.parametrize(("confirms", "waits_s"), [(True, 0.0), (False, promotion.ANSWERED_S)])
def test_a_fenced_master_has_so_long_to_answer_its_senders(confirms: bool, waits_s: float) -> None:
    old = Node(0, "master", more={} if confirms else {"confirmed": 99})
    core = Core(a=old, b=Node(1))
    assert core.promote("b").handed_over
    assert core.now - 50.0 == pytest.approx(waits_s, abs=0.011)


def test_a_promotion_says_where_its_epoch_begins() -> None:
    core = Core(a=Node(1, epochs=[[3, 0], [4, 60]]))
    told = core.promote("a")
    assert (told.epoch, told.start) == (4, 60)
    core = Core(a=Node(1, epochs=[]))
    told = core.promote("a", force=True)
    assert (told.epoch, told.start) == (TERM, 100)
