"""Ways to break the machine of replication, each of which the small worlds must find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from saturnmq.broker.replication import events as e
from saturnmq.broker.replication import following, orders, recovering, slaves, words
from saturnmq.broker.replication import machine as machines
from saturnmq.broker.replication.following import Following, Joining
from saturnmq.broker.replication.machine import Machine
from saturnmq.broker.replication.orders import Orders
from saturnmq.broker.replication.role import Kept, Role
from saturnmq.broker.replication.slaves import Slaves
from saturnmq.protocol.epochs import TERM


@dataclass(frozen=True)
class Mutant:
    name: str
    holders: tuple[Any, ...]
    attribute: str
    broken: Any

    def apply(self, patch: pytest.MonkeyPatch) -> None:
        for holder in self.holders:
            patch.setattr(holder, self.attribute, self.broken)


def _always(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def _no_epoch(self: Machine) -> None:
    self.lead()


def _promises_later(self: Orders, request: int, epoch: int, term: int) -> None:
    self._role.promise(epoch)
    self._fenced(request, self._role.keep(), epoch)


def _goes_on_fenced(self: Orders, request: int, kept: Kept, epoch: int) -> None:
    self._m.do(e.Answer(request))


def _follows_at_once(self: Following) -> None:
    if self._joining is not None:
        self._follows()


def _counts_at_once(self: Slaves, link: int) -> None:
    slave = self._slaves.get(link)
    if slave is not None and self._is_member(slave.join):
        slave.named = True
        self._m.do(e.Count(link))
    self._m.recovering.try_now()


def _has_all(self: Following) -> None:
    joining = self._at_joining()
    self._role.mark_caught_up()
    self._m.do(e.SayJoin(joining.link, at=joining.offset))


def _cuts_unasked(self: Following, joining: Joining) -> None:
    joining.accepted = True
    self._cut()


def _one_for_all(known: int, least: int, opener: int) -> int:
    """Every node opens the same."""
    epoch = max(known, least) // TERM * TERM
    return epoch if epoch > known and epoch >= least else epoch + TERM


def _leads_without(self: Orders, asked: e.Promote, number: int, kept: dict[str, Any]) -> None:
    self._m.has_opened(number)
    self._m.lead(promoted=True)
    self._m.do(e.Answer(asked.request))


def _goes_on(self: Machine, epoch: int, why: str, master: str = "", ha_address: str = "") -> None:
    """A master that hears of a higher epoch does nothing."""


WIPE, AWAY = {"kill": 2, "wipe": 1}, {"isolate": 1, "promote": 1, "write": 1}
# Found by a search of such worlds.
BROKEN = [
    (Mutant("no epoch at a start", (Machine,), "open_term", _no_epoch), WIPE),
    (Mutant("no words are needed", (words,), "words_needed", _always(0)), WIPE),
    (Mutant("a promise is written down later", (Orders,), "fence", _promises_later), AWAY),
    (Mutant("it follows unsaved", (Following,), "belongs_for_good", _follows_at_once), WIPE),
    (Mutant("a slave counts before it is named", (Slaves,), "name", _counts_at_once), WIPE),
    (Mutant("promoted without an epoch", (Orders,), "_open_promoted", _leads_without), AWAY),
    (Mutant("slaves stay in a new epoch", (Slaves,), "follow", False), AWAY),
]
# Another rule takes care that nothing is lost; this story goes differently.
TOLD = [
    (
        Mutant("all may be cut", (following, recovering, words), "may_cut", _always("")),
        "two_older_copies",
    ),
    (
        Mutant("everybody is a witness", (words,), "is_witness", _always(True)),
        "members_that_differ",
    ),
    (Mutant("it stays when deposed", (Machine,), "superseded", _goes_on), "old_master_returns"),
    (
        Mutant("nobody outranks", (machines, slaves), "is_outranked", _always(False)),
        "promotion_that_did_not_come",
    ),
    (Mutant("a fenced master goes on", (Orders,), "_fenced", _goes_on_fenced), "hand_over"),
    (Mutant("who has joined has all", (Following,), "_follows", _has_all), "first_start"),
    (Mutant("it cuts unasked", (Following,), "_ask_to_cut", _cuts_unasked), "old_master_returns"),
    (Mutant("it is sure after a pause", (Machine,), "_doubt", _always(None)), "pause"),
    (Mutant("all open one epoch", (orders,), "next_promotion", _one_for_all), "kill_and_promotion"),
    (Mutant("nothing is lost", (Machine,), "_lost", _always("")), "lost_front"),
    (
        Mutant("only who forced it knows", (Role,), "takes_over", _always(None)),
        "forced_promotion_of_a_predecessor",
    ),
]
