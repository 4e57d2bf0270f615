"""Trust between the two ends of a replication connection, if the nodes share a secret.

The master's first HELLO has a nonce. The slave proves that it knows the secret, over that nonce and
one of its own (PROVE). The master proves the same with its next HELLO, and that is the first frame
that the slave acts upon. From then on every control frame of both is signed
(`protocol/signing.py`). The log and the reports between the frames are not.

With replicationSecretRequired=false both nodes sign, but accept unsigned frames as well, and note
the sender.
"""

from __future__ import annotations

import logging
from typing import Any

from saturnmq.protocol import checked, ha
from saturnmq.protocol.signing import (
    KEY,
    OTHERWISE_SIGNED,
    UNSIGNED_WORDS,
    LetIn,
    Seal,
    Signing,
    new_nonce,
)
from saturnmq.runtime.errors import MalformedFrame, NoPermission

log = logging.getLogger(__name__)

MASTERS_WAY_OUT = (
    f"set the same {KEY} on all nodes of the cluster; nodes of RocketMQ cannot sign. "
    f"{KEY}Required=false lets them in"
)


CLASSIC = "is of RocketMQ, and cannot sign"


def _wrong_with(seal: Seal | None, frame: ha.Control) -> str:
    """Why a frame does not prove that its sender has the secret; empty if it does."""
    if seal is None:
        return UNSIGNED_WORDS
    is_right = seal.is_right(frame.kind, frame.text, frame.signature)
    return "" if is_right else OTHERWISE_SIGNED


class SealOfMaster:
    """The master's end of one connection."""

    def __init__(self, signing: Signing, let_in: LetIn) -> None:
        self._signing = signing
        self._let_in = let_in
        self._nonce = new_nonce() if signing else ""
        self.seal: Seal | None = None  # from when the slave has proved itself

    def hello(self, document: dict[str, Any]) -> dict[str, Any]:
        """The document to send in HELLO, with the nonce until the slave has proved itself."""
        return document | {"nonce": self._nonce} if self._nonce and not self.seal else document

    def proved(self, frame: ha.Control) -> None:
        """Check a PROVE. NoPermission: the slave has another secret."""
        theirs = checked.text(frame.document, "nonce")
        if not self._nonce or self.seal is not None:
            raise MalformedFrame("PROVE, which was not asked for")
        seal = Seal(self._signing, theirs, self._nonce, leads=True)
        is_right = seal.is_right(frame.kind, frame.text, frame.signature)
        if not is_right and self._signing.refuses:
            raise NoPermission(f"it signs with another {KEY} than this node: {MASTERS_WAY_OUT}")
        self.seal = seal

    def check(self, frame: ha.Control, host: str) -> None:
        """NoPermission unless the frame of the slave at `host` counts."""
        why = _wrong_with(self.seal, frame)
        if why and self._signing.refuses:
            raise NoPermission(f"it does not sign, and this node has a {KEY}: {MASTERS_WAY_OUT}")
        if self._signing:
            self._let_in.note(frame.document.get("address"), host, why)

    def check_classic(self, host: str) -> None:
        """NoPermission if the slave of RocketMQ's at `host` may not follow."""
        if self._signing.refuses:
            raise NoPermission(f"it is of RocketMQ, and cannot sign: {MASTERS_WAY_OUT}")
        if self._signing:
            self._let_in.note("", host, CLASSIC)


class SealOfSlave:
    """The slave's end of one connection."""

    def __init__(self, signing: Signing, let_in: LetIn) -> None:
        self._signing = signing
        self._let_in = let_in
        self.seal: Seal | None = None  # from when the master has said its nonce

    def prove(self, frame: ha.Control) -> bytes | None:
        """The frame to answer with, if this one asks for a proof."""
        if not self._signing or self.seal is not None or not self._asks(frame):
            return None
        mine = new_nonce()
        theirs = checked.text(frame.document, "nonce")
        self.seal = Seal(self._signing, mine, theirs, leads=False)
        return ha.encode_control(ha.Kind.PROVE, {"nonce": mine}, self.seal)

    def counts(self, frame: ha.Control) -> bool:
        """Whether to act on a frame; NoPermission: it must not come from the master."""
        if not self._signing:
            return True
        if self._asks(frame):
            return False  # said again before the master had the proof
        why = _wrong_with(self.seal, frame)
        if why and self._signing.is_required:
            raise NoPermission(
                f"it does not sign with the {KEY} of this node: set the same on all nodes of the "
                "cluster"
            )
        if frame.kind is ha.Kind.HELLO:
            self._let_in.note(frame.document.get("address"), "its master", why)
        return True

    def check_classic(self) -> None:
        """NoPermission if a master of RocketMQ's may not be followed."""
        if self._signing.refuses:
            raise NoPermission(f"it is of RocketMQ, and cannot sign, and this node has a {KEY}")
        if self._signing:
            self._let_in.note("", "its master", CLASSIC)

    @staticmethod
    def _asks(frame: ha.Control) -> bool:
        return frame.kind is ha.Kind.HELLO and "nonce" in frame.document
