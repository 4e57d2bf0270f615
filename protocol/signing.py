"""Signatures of messages between the nodes of a cluster, under a secret that they share.

Brokers, nameservers and the promoting client sign if they have a `replicationSecret`. Every
signature is an HMAC-SHA256 over a text that both sides build alike, and it holds for one
connection: the side that checks it has chosen a part of that text at random for this connection
alone, so a recording of another connection is worth nothing. The signatures use no clock.

- A request that only members may make is answered SIGNATURE_NEEDED first, with a challenge for one
  request on this connection. The member sends it again with `saturnSignature` over the challenge,
  the code, all fields and the body. The request names the node that it is for (`saturnTo`). Another
  node refuses it, so no node can pass a challenge on.
- The answer to a request with `saturnNonce` has `saturnSignature` over the nonce, in the same way.
- Control frames of replication (`ha.py`) are signed with a key of their connection, made of a nonce
  of each side, and each with its number (`Seal`).

Nothing is encrypted, and the bytes of the log are not signed.

Without a secret nothing of this is on the wire. With a secret that is not `required` everything is
signed and nothing is refused: so a running cluster gets a secret, or a new one. Peers that are let
in without the right signature are noted (`LetIn`), because they would be refused if it were
required.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from saturnmq.runtime.errors import ConfigError, NoPermission, SignatureNeeded

from . import checked
from .codes import ResponseCode
from .credentials import ACCESS_KEY, BOUND, SECURITY_TOKEN, SIGNATURE
from .remoting import Command

if TYPE_CHECKING:
    from .endpoint import Endpoint

log = logging.getLogger(__name__)

KEY = "replicationSecret"
VARIABLE = "SATURNMQ_REPLICATION_SECRET"
LENGTH_MIN = 16
SIGNATURE_BYTES = 32
CHALLENGES_MAX = 16  # challenges of one connection that wait for their request
TRIES = 3
LET_IN_MAX = 100
# This signature, and what a user's (`credentials.py`) adds when this one is made.
UNSIGNED_FIELDS = frozenset({"saturnSignature", ACCESS_KEY, SIGNATURE, SECURITY_TOKEN, BOUND})
UNSIGNED_WORDS = "does not sign"
OTHERWISE_SIGNED = f"signs with another {KEY}"
_SIZE = struct.Struct(">Q")
assert _SIZE.size == 8


def new_nonce() -> str:
    """A text that cannot be foreseen and never comes again."""
    return secrets.token_hex(16)


@dataclass(frozen=True)
class Signing:
    """The secret with which a process signs, and whether it refuses unsigned messages."""

    secret: str = field(default="", repr=False)
    is_required: bool = True

    def __post_init__(self) -> None:
        if self.secret and len(self.secret) < LENGTH_MIN:
            raise ConfigError(
                f"{KEY} has {len(self.secret)} characters; it must have {LENGTH_MIN} or more: "
                "`openssl rand -hex 32` makes one"
            )

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Signing:
        """The signing of processes without a configuration file."""
        name = f"{VARIABLE}_REQUIRED"
        required = environ.get(name, "true").lower()
        if required not in ("true", "false", "1", "0"):
            raise ConfigError(f"{name} is {required!r}; it must be true or false")
        return cls(environ.get(VARIABLE, ""), required in ("true", "1"))

    def __bool__(self) -> bool:
        return bool(self.secret)

    @property
    def refuses(self) -> bool:
        """Whether unsigned messages are refused."""
        return bool(self.secret) and self.is_required

    def digest(self, *parts: str | bytes) -> bytes:
        """The signature of these parts."""
        return hmac.digest(self.secret.encode(), _text(parts), "sha256")

    def sign_answer(self, request: Command, answer: Command) -> Command:
        """`answer`, with a signature if `request` wants one."""
        nonce = request.ext.get("saturnNonce")
        if self.secret and nonce:
            fields = {k: v for k, v in answer.ext.items() if k != "saturnSignature"}
            fields["saturnSignature"] = self._of_command("answer", nonce, answer).hex()
            answer.ext = fields
        return answer

    def signed_answer(self, nonce: str, answer: Command) -> bool:
        return self._is_right("answer", nonce, answer)

    def sign_request(self, challenge: str, request: Command) -> None:
        signature = self._of_command("request", challenge, request)
        request.ext["saturnSignature"] = signature.hex()

    def signed_request(self, challenge: str, request: Command) -> bool:
        return self._is_right("request", challenge, request)

    def _is_right(self, what: str, nonce: str, command: Command) -> bool:
        theirs = command.ext.get("saturnSignature", "")
        mine = self._of_command(what, nonce, command).hex()
        return hmac.compare_digest(mine.encode(), theirs.encode())

    def _of_command(self, what: str, nonce: str, command: Command) -> bytes:
        fields = sorted(command.ext.items())
        texts = [text for pair in fields if pair[0] not in UNSIGNED_FIELDS for text in pair]
        body = b"".join(bytes(part) for part in (command.body, *command.more))
        return self.digest(what, nonce, str(command.code), body, *texts)


UNSIGNED = Signing()


def _text(parts: tuple[str | bytes, ...]) -> bytes:
    """The joined parts; none can be taken for the end or the beginning of another."""
    whole = bytearray()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        whole += _SIZE.pack(len(data)) + data
    return bytes(whole)


@dataclass(frozen=True)
class NodeAnswer:
    """The answer of a node, and whether the node has proved that it knows the secret."""

    command: Command
    is_proven: bool


async def ask_signed(
    signing: Signing, to: str, request: Command, ask: Callable[[Command], Awaitable[Command]]
) -> NodeAnswer:
    """The answer to `request`, which `ask` sends over one connection; the request is signed when
    the node at `to` demands it. `ask` may return an answer of any code."""
    if not signing:
        return NodeAnswer(await ask(request), is_proven=False)
    nonce, signed = new_nonce(), ""
    for _ in range(TRIES):
        fields = {**request.ext, "saturnNonce": nonce, "saturnTo": to}
        again = Command.request(request.code, fields, request.body)
        if signed:
            again.ext["saturnChallenge"] = signed
            signing.sign_request(signed, again)
        answer = await ask(again)
        if answer.code != ResponseCode.SIGNATURE_NEEDED:
            break
        signed = checked.text(answer.ext, "saturnChallenge")  # of this connection
    return NodeAnswer(answer, signing.signed_answer(nonce, answer))


def unproven(address: str) -> NoPermission:
    """The error for an answer that is not signed."""
    return NoPermission(
        f"{address} does not sign its answer with the {KEY} of this process: set the same there, "
        f"or {KEY}Required=false here while the cluster is being given one"
    )


class LetIn:
    """The peers that were let in without the right signature and would be refused if it were
    required. Each is logged once, and forgotten when it signs."""

    def __init__(self) -> None:
        self._why: dict[str, str] = {}

    def note(self, named: object, host: str, why: str = "") -> None:
        """Note the signature of a peer with the address `named`, if it is one; `why` is the fault,
        empty if there is none."""
        usable = isinstance(named, str) and 0 < len(named) <= 255 and named.isprintable()
        peer = str(named) if usable else host
        if not why:
            self._why.pop(peer, None)
        elif self._why.get(peer) != why and (peer in self._why or len(self._why) < LET_IN_MAX):
            self._why[peer] = why
            log.warning("%s %s: it is let in, because %sRequired is false", peer, why, KEY)
            if len(self._why) == LET_IN_MAX:
                log.warning("these are %d, and no others are noted", LET_IN_MAX)

    def lines(self) -> list[str]:
        """One line for each noted peer, with its fault."""
        return [f"{peer} {why}" for peer, why in sorted(self._why.items())]


class Challenges:
    """The server's side: it decides which requests come from peers that know the secret."""

    def __init__(
        self,
        signing: Signing,
        own_address: Callable[[], str] = lambda: "",
        let_in: LetIn | None = None,
    ) -> None:
        """`own_address`: requests for another node are refused; empty if the node does not know
        under which address it is asked."""
        self._signing = signing
        self._own_address = own_address
        self._let_in = LetIn() if let_in is None else let_in
        self._open: WeakKeyDictionary[Endpoint, deque[str]] = WeakKeyDictionary()

    def admits(self, endpoint: Endpoint, request: Command) -> bool:
        """Whether this request, which only members may make, is to be answered. If not, its sender
        gets a challenge to sign it with. NoPermission: its signature is wrong."""
        if not self._signing:
            return True
        if not self._signing.is_required and "saturnNonce" not in request.ext:
            self._note(endpoint, request, UNSIGNED_WORDS)
            return True
        challenges = self._open.setdefault(endpoint, deque(maxlen=CHALLENGES_MAX))
        challenge = request.ext.get("saturnChallenge", "")
        if challenge not in challenges:
            challenges.append(new_nonce())
            fields = {"saturnChallenge": challenges[-1]}
            why = str(SignatureNeeded(_how_to_sign(request.code)))
            answer = request.reply(ResponseCode.SIGNATURE_NEEDED, why, fields)
            endpoint.send(answer, request)
            return False
        challenges.remove(challenge)  # each is good for one request
        own, meant = self._own_address(), request.ext.get("saturnTo", "")
        is_right = self._signing.signed_request(challenge, request)
        if not self._signing.is_required:
            self._note(endpoint, request, "" if is_right else OTHERWISE_SIGNED)
            return True
        if not is_right:
            raise NoPermission(
                f"request {request.code} is not signed with the {KEY} of this node: set the same "
                "on all nodes and where promotions are started"
            )
        if own and meant != own:
            raise NoPermission(f"request {request.code} is for {meant!r}, this node is {own}")
        return True

    def _note(self, endpoint: Endpoint, request: Command, why: str) -> None:
        host = endpoint.peer_address.rpartition(":")[0]
        self._let_in.note(request.ext.get("brokerAddr"), host, why)


def _how_to_sign(code: int) -> str:
    return (
        f"request {code} is taken only with a signature: set {KEY} (or the environment "
        f"variable {VARIABLE}) to that of this node; nodes of RocketMQ cannot sign"
    )


class Seal:
    """The signatures of the control frames of one connection between a slave and its master; each
    covers its sender and its number."""

    def __init__(self, signing: Signing, slave: str, master: str, *, leads: bool) -> None:
        """`slave`, `master`: the nonces of both; `leads`: this side is the master's."""
        key = signing.digest("replication", slave, master)
        self._key = Signing(key.hex())
        self._names = ("master", "slave") if leads else ("slave", "master")
        self._sent = self._received = 0

    def sign(self, kind: int, body: bytes) -> bytes:
        """The signature of the next frame that this side sends."""
        self._sent += 1
        return self._key.digest(self._names[0], str(self._sent), str(int(kind)), body)

    def is_right(self, kind: int, body: bytes, signature: bytes) -> bool:
        """Whether the next frame of the other side has the right signature."""
        self._received += 1
        mine = self._key.digest(self._names[1], str(self._received), str(int(kind)), body)
        return hmac.compare_digest(mine, signature)
