"""The ownership of broker names. Pure; callers pass the time, in milliseconds of a steady clock.

Every group of our brokers has an identity, 32 hex digits that it draws when its first log begins.
Two groups may have one broker name, because `broker-0` is the default, and one of them may have the
wrong nameserver list. The first of two such groups holds the name as long as one of its members
gives signs of life, and HOLD_MS longer: a group that restarts finds its name free. Then another
group may take the name. Nothing is stored: after a restart of the nameserver the first to register
holds it.

A claim does not depend on the cluster's name, because routes know brokers by their names only.
RocketMQ's brokers, and stores from before there were identities, have none and claim nothing.
"""

from dataclasses import dataclass

from saturnmq.protocol.route import MASTER_ID
from saturnmq.runtime.errors import ForeignGroup

from .registration import TIMEOUT_MS_DEFAULT, Registration

HOLD_MS = TIMEOUT_MS_DEFAULT
# Names stay claimed when no member of their group lives, so their number must be bounded.
CLAIMS_MAX = 10_000


@dataclass(slots=True)
class Claim:
    """A name of a group."""

    identity: str
    address: str  # of the master that registered last, or of the first slave
    until_ms: int


class Claims:
    """Claims by broker name; the last confirmed ones are at the end."""

    def __init__(self) -> None:
        self._claims: dict[str, Claim] = {}

    def check(self, broker: Registration, now_ms: int) -> None:
        """ForeignGroup if another group holds the name of this broker."""
        claim = self._claims.get(broker.name)
        if claim is None or now_ms > claim.until_ms:
            return
        if differ(claim.identity, broker.identity):
            raise refusal(broker, claim.identity, claim.address)

    def hold(self, broker: Registration, now_ms: int) -> None:
        """Confirm the claim: a member of the group that may hold the name gives a sign of life."""
        if not broker.identity:
            return
        claim = self._claims.get(broker.name)
        if claim is None or claim.identity != broker.identity:
            self._claims[broker.name] = claim = Claim(broker.identity, broker.address, 0)
        elif broker.broker_id == MASTER_ID:
            claim.address = broker.address
        self.extend(broker.name, broker.identity, broker.timeout_ms, now_ms)
        if len(self._claims) > CLAIMS_MAX:
            del self._claims[next(iter(self._claims))]

    def extend(self, name: str, identity: str, timeout_ms: int, now_ms: int) -> None:
        """Extend the claim of a member that promised to be silent for no longer than
        `timeout_ms`."""
        claim = self._claims.get(name)
        if claim is not None and claim.identity == identity:
            claim.until_ms = max(claim.until_ms, now_ms + max(timeout_ms, HOLD_MS))
            self._claims[name] = self._claims.pop(name)


def differ(one: str, other: str) -> bool:
    """Whether two identities are of different groups: both are known, and not the same."""
    return bool(one and other and one != other)


def refusal(broker: Registration, identity: str, address: str) -> ForeignGroup:
    """The error that refuses a broker and says what can be done about it."""
    return ForeignGroup(
        f"broker name {broker.name} belongs to the group {identity} ({address}) here; "
        f"{broker.address} (id {broker.broker_id}) of the group {broker.identity or 'unknown'} is "
        "not taken. Give one of the two groups another brokerName, correct namesrvAddr if it names "
        f"the wrong nameserver, or stop the other group: {HOLD_MS // 1000} s after its last sign "
        "of life the name is free"
    )
