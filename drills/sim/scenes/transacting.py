"""Transactions (I13): committed messages come once, others never, and open ones are asked about
until they are decided or expire.

A transaction's fate follows from its value, so that every producer of the group answers alike. Some
fates are told at once, some only when a broker asks, and some never. Producers join and die in the
middle of transactions. One of the messages is stored per transaction that was committed, and in no
log, whatever was cut off, twice: neither as a message nor as one and as an expired one.
"""

from __future__ import annotations

import asyncio
import enum
import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from saturnmq.client.producer import at_exit
from saturnmq.client.producer.transactions import TransactionProducer, TransactionState
from saturnmq.drills.sim.history import make_body, read_body
from saturnmq.drills.sim.load import ClientMachine
from saturnmq.drills.sim.plan import TRANSACTION_TIMEOUT_S
from saturnmq.drills.sim.scenes.scene import Scene
from saturnmq.drills.sim.verdict import told
from saturnmq.protocol.message import Message, ReceivedMessage
from saturnmq.protocol.message_types import TRANSACTION
from saturnmq.protocol.topics import CHECK_MAX_TIME_TOPIC
from saturnmq.runtime.errors import SaturnError, TransactionEnded, TransactionFailed

if TYPE_CHECKING:
    from saturnmq.drills.sim.cluster import SimCluster

MESSAGES = 12
ENCORE = 6
EARLY_S = 0.002  # brokers count milliseconds
PRODUCERS = 2


class Fate(enum.Enum):
    """Whether, and when, a producer says how its transaction ended."""

    COMMITTED = "commit"
    ROLLED_BACK = "rollback"
    COMMITTED_LATER = "commit when asked"
    ROLLED_BACK_LATER = "rollback when asked"
    NEVER = "never"


STATES = {
    Fate.COMMITTED: TransactionState.COMMIT,
    Fate.ROLLED_BACK: TransactionState.ROLLBACK,
    Fate.COMMITTED_LATER: TransactionState.COMMIT,
    Fate.ROLLED_BACK_LATER: TransactionState.ROLLBACK,
    Fate.NEVER: TransactionState.UNKNOWN,
}
AT_ONCE = (Fate.COMMITTED, Fate.ROLLED_BACK)
COMMITS = (Fate.COMMITTED, Fate.COMMITTED_LATER)
WEIGHTS = {
    Fate.COMMITTED: 5,
    Fate.ROLLED_BACK: 2,
    Fate.COMMITTED_LATER: 3,
    Fate.ROLLED_BACK_LATER: 2,
    Fate.NEVER: 1,
}


@dataclass
class Deal:
    """The promises that a producer got: that the half is stored, by the broker of this name, and
    later that it was ended."""

    group: str
    at: float
    by: str
    ended_at: float | None = None


class Dealer(ClientMachine):
    """A machine with one transaction producer."""

    def __init__(self, scene: Transacting, number: int) -> None:
        super().__init__(scene.cluster, f"{scene.group}-p{number}", scene.address(100 + number))
        self._scene = scene
        self.dead = False

    async def start(self) -> None:
        core = self.core()
        self.producer = TransactionProducer(
            self._scene.group, core=core, check=self._check, send_timeout=2.0
        )
        await self.runtime.run(self._begin())

    async def _begin(self) -> None:
        await self.producer.core.start()
        await self.producer.start()

    async def _check(self, message: ReceivedMessage) -> TransactionState:
        value = read_body(bytes(message.body)) or "?"
        self._scene.asked(value)
        return STATES[self._scene.fate(value)]

    async def die(self) -> None:
        """`kill -9`."""
        self.dead = True
        at_exit.forget(self.producer._settle)  # a killed program settles nothing
        self.runtime.power_off()
        await self.runtime.settle()

    async def close(self) -> None:
        if not self.dead:
            await self.runtime.run(self.producer.close())
            await self.runtime.run(self.producer.core.close())


class Transacting(Scene):
    topic, group, message_type = "deals", "dealers", TRANSACTION
    patience_s = 75.0

    def __init__(self, cluster: SimCluster, number: int) -> None:
        super().__init__(cluster, number)
        self.dealers: list[Dealer] = []
        self.deals: dict[str, Deal] = {}
        self.unknown: list[str] = []  # halves that were acknowledged, and are not there
        self.early: list[str] = []

    async def start(self) -> None:
        await self.create(self.plan.queues)
        await self.join()
        for _ in range(PRODUCERS):
            await self.hire(self.dealers, Dealer)
        for lane in range(2):
            self.spawn(self._deal(f"deal{lane}", MESSAGES))
        self.spawn(self.replace(self.dealers, Dealer))

    def member_options(self) -> dict[str, object]:
        return {"from_beginning": True}

    async def encore(self) -> None:
        self.spawn(self._deal("last", ENCORE))

    def fate(self, value: str) -> Fate:
        luck = random.Random(f"{self.cluster.seed}/{self.topic}/{value}")
        return luck.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]

    def asked(self, value: str) -> None:
        """A broker asks about the transaction of this value."""
        begun = self.history.begun.get(value)
        if begun is not None and self.now < begun + TRANSACTION_TIMEOUT_S - EARLY_S:
            self.early.append(f"{value} of {begun:.3f} at {self.now:.3f}")

    async def _deal(self, lane: str, count: int) -> None:
        for counter in range(count):
            attempt = 0
            while not await self._attempt(lane, f"{lane}/{counter}.{attempt}"):
                attempt += 1
                await asyncio.sleep(0.2)
            await self.pause(count)

    async def _attempt(self, lane: str, value: str) -> bool:
        """One transaction; True if its half was acknowledged, or nobody knows."""
        dealer = self.rng.choice(self.dealers)
        self.history.invoke(value, lane, self.now)
        try:
            return await dealer.runtime.run(self._transact(dealer, value))
        except asyncio.CancelledError:
            if not dealer.dead:
                raise
            return True

    async def _transact(self, dealer: Dealer, value: str) -> bool:
        trace, history, fate = self.cluster.trace, self.history, self.fate(value)
        message = Message(self.topic, make_body(value, self.plan.padding), keys=value)
        try:
            transaction = await dealer.producer.transaction(message).begin()
        except SaturnError as error:
            trace.note("half.failed", f"{value} {error!r}")
            known = history.rejected if error.outcome == "rejected" else history.unknown
            known[value] = repr(error)
            return False
        result = transaction.result
        trace.note("half", f"{value} {fate.value} {result.queue_offset} {result.status.name}")
        if result.ok:
            by = self.cluster.name_of(result.offset_message_id)
            self.deals[value] = Deal(result.queue.broker_name, self.now, by)
        else:
            history.unknown[value] = result.status.name
        await asyncio.sleep(self.rng.choice((0.0, 0.0, 0.1, 2.0)))  # the local transaction
        try:
            state = STATES[fate] if fate in AT_ONCE else TransactionState.UNKNOWN
            await transaction.end(state)
        except TransactionFailed as error:
            trace.note("end.failed", f"{value} {error!r}")
            if result.ok:
                self.unknown.append(value)
        except TransactionEnded as error:  # it expired meanwhile
            trace.note("end.failed", f"{value} {error!r}")
        except SaturnError as error:
            trace.note("end.failed", f"{value} {error!r}")
        if result.ok and transaction.confirmed:
            self.deals[value].ended_at = self.now
        return True

    # the end

    def waits_for(self) -> str:
        open_ = 0
        for group in self.cluster.groups:
            broker = self.cluster.master_of(group).serving
            half_log = None if broker is None else broker.messaging.half_log
            if half_log is None or not half_log.is_loaded:
                return f"the open transactions of {group}"
            open_ += half_log.pending
        return f"{open_} open transactions" if open_ else super().waits_for()

    def verdict(self) -> list[str]:
        found: list[str] = []
        committed = Counter(self.stored().values())
        expired = set(self.stored(CHECK_MAX_TIME_TOPIC).values())
        delivered = self.history.first_seen[self.group]
        for text, wrong in (
            ("rolled back, or never decided, and stored", committed),
            ("rolled back, or never decided, and delivered", delivered),
        ):
            values = [v for v in wrong if v in self.history.begun and self.fate(v) not in COMMITS]
            found += told(f"I13 {text}", values)
        found += told("I13 committed twice", [v for v, count in committed.items() if count > 1])
        found += told("I13 committed, and expired", sorted(expired & committed.keys()))
        found += told("I13 asked early", self.early)
        lost = self._lost(committed, expired)
        found += told("I13 lost", lost)
        unknown = [value for value in self.unknown if not self._may_go(value)]
        found += told("I13 acknowledged halves that are unknown", unknown)
        return found + super().verdict()

    def _lost(self, committed: Counter[str], expired: set[str]) -> list[str]:
        """Transactions whose half was acknowledged, and which did not end as they had to."""
        found = []
        for value, deal in self.deals.items():
            fate = self.fate(value)
            if value in committed or self._may_go(value):
                continue
            is_over = fate in COMMITS and deal.ended_at is not None
            if is_over and value in expired:
                found.append(f"{value}, committed at {deal.ended_at:.3f}, expired")
            elif fate in COMMITS and value not in expired:
                found.append(f"{value} of {deal.by} at {deal.at:.3f}, to {fate.value}")
            elif fate is Fate.NEVER and value not in expired:
                found.append(f"{value} of {deal.by} at {deal.at:.3f}, which did not expire")
            elif value.startswith("last/") and fate is not Fate.NEVER and value in expired:
                found.append(f"{value}, of a cluster without faults, expired")
        return found

    def _may_go(self, value: str) -> bool:
        deal = self.deals[value]
        return self.cluster.allowance.may_go(deal.group, deal.at, deal.by)

    def client_names(self) -> list[str]:
        return [dealer.name for dealer in self.dealers] + super().client_names()

    async def close(self) -> None:
        for lane in self.lanes:
            lane.cancel()
        for dealer in self.dealers:
            await dealer.close()
        for member in self.members:
            await member.close()
