"""The guard before a broker's services: it finds out whose a request is, and whether its user may
do what it asks for.

A request over Remoting is signed as a whole. A call of gRPC has the signature that its client made
of the call's time alone, so only nodes may tell of one: this broker's own gateway, or another node,
which signs the request as itself. The rules are then judged for the caller and its address.

A request that the guard refuses is answered NO_PERMISSION (16), with a remark that begins with
`access denied: `. The remark tells neither a wrong name from a wrong password, nor whether a topic
exists.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from weakref import WeakKeyDictionary, ref

from saturnmq.broker.access.model import Need, ResourceKind, User
from saturnmq.broker.access.needs import needs_of
from saturnmq.broker.access.table import AccessTable, super_user
from saturnmq.broker.config import BrokerConfig
from saturnmq.protocol.access_words import Decision, UserStatus, UserType
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.credentials import (
    ACCESS_KEY,
    BOUND,
    CALLER,
    CALLER_HOST,
    CALLER_SIGNATURE,
    CALLER_TEXT,
    SIGNATURE,
    Credentials,
    bound,
    signature,
    signed_fields,
)
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.inner_endpoint import InnerEndpoint
from saturnmq.protocol.remoting import Body, Command
from saturnmq.runtime.errors import ACCESS_DENIED, AccessDenied

Judge = Callable[[Need], None]
"""AccessDenied: the user must not do this."""

UNKNOWN = "\0"  # the password of a user that does not exist: its signature is made all the same
# Members prove themselves with the secret that they share; the state of a replica is no secret.
OF_NODES = frozenset({RequestCode.FENCE, RequestCode.PROMOTE, RequestCode.SLAVE_LEAVES})
OPEN = frozenset({RequestCode.REPLICA_STATE})


class AccessGuard:
    def __init__(self, config: BrokerConfig, table: AccessTable, own: Credentials | None) -> None:
        """`own`: the credentials of nodes, whose user need not be in the table."""
        self._config = config
        self._table = table
        self._own = User("", "", UserType.SUPER) if own is None else super_user(own)
        self._beats: WeakKeyDictionary[Endpoint, str] = WeakKeyDictionary()  # names of users
        self._proven: Callable[[], Command | None] = lambda: None  # the last request
        self._its_sender = self._own, ""

    def check(self, endpoint: Endpoint, request: Command) -> None:
        """AccessDenied: the request is not answered. InvalidParameter: it cannot be read."""
        code = request.code
        if code in OPEN or (code in OF_NODES and self._config.signing.refuses):
            return
        judge = self.judge(endpoint, request)
        if judge is not anything:
            for need in needs_of(request):
                judge(need)
        is_proven = str(code) not in self._config.authentication_whitelist
        if code == RequestCode.HEART_BEAT and is_proven:
            self._beats[endpoint] = self.user_of(endpoint, request).name

    def judge(self, endpoint: Endpoint, request: Command) -> Judge:
        """The judge of the user of a request, also for needs that only a handler can tell.
        AccessDenied: it has no user."""
        code, config = str(request.code), self._config
        is_free = not config.authorization or code in config.authorization_whitelist
        if is_free and code in config.authentication_whitelist:
            return anything
        user, host = self._sender(endpoint, request)
        if is_free or user.is_super:
            return anything
        return partial(self._decide, user, host)

    def may(self, endpoint: Endpoint, need: Need) -> bool:
        """Whether the user whose client has sent the last heartbeat over this connection may do
        something."""
        name = self._beats.get(endpoint)
        user = None if name is None else self._known(name)
        if user is None or user.status is UserStatus.DISABLED:
            return False
        if not self._config.authorization or user.is_super:
            return True
        try:
            self._decide(user, endpoint.peer_host, need)
        except AccessDenied:
            return False
        return True

    def user_of(self, endpoint: Endpoint, request: Command) -> User:
        """The user of a request. AccessDenied: there is none."""
        return self._sender(endpoint, request)[0]

    def _sender(self, endpoint: Endpoint, request: Command) -> tuple[User, str]:
        """The user of a request, and the address that it is judged by. One that its handler judges
        again is not proven again: a signature costs as much as its body is long."""
        if self._proven() is not request:
            self._its_sender = self._prove(endpoint, request)
            self._proven = ref(request)
        return self._its_sender

    def _prove(self, endpoint: Endpoint, request: Command) -> tuple[User, str]:
        fields, is_inside = request.ext, isinstance(endpoint, InnerEndpoint)
        user = self._own if is_inside else self._signer(request, fields)
        caller = fields.get(CALLER)
        if caller is None:
            return user, endpoint.peer_host
        if user is not self._own:
            raise denied(f"user {user.name!r} tells of another one, and only nodes do")
        text, theirs = fields.get(CALLER_TEXT, "").encode(), fields.get(CALLER_SIGNATURE, "")
        return self._signed_by(request, caller, text, (), theirs), fields.get(CALLER_HOST, "")

    def _signer(self, request: Command, fields: Mapping[str, str]) -> User:
        """The user that has signed a request of Remoting."""
        name, text = fields.get(ACCESS_KEY, ""), signed_fields(fields, request.version)
        body = request.body, *request.more
        user = self._signed_by(request, name, text, body, fields.get(SIGNATURE, ""))
        kind = fields.get(BOUND)
        if kind != bound(request.code, fields) and (kind is not None or user is self._own):
            raise denied(f"the signature of user {name!r} is for another kind of request")
        return user

    def _signed_by(
        self, request: Command, name: str, text: bytes, body: Sequence[Body], theirs: str
    ) -> User:
        """The user of this name, who has signed this text and body."""
        if not name:
            raise denied(f"request {request.code} names no user; give the client its credentials")
        user = self._known(name)
        mine = signature(user.password if user is not None else UNKNOWN, text, body)
        is_right = hmac.compare_digest(mine.encode(), theirs.encode())
        if user is None or not is_right:
            raise denied(f"user {name!r} is not known, or its signature is not right")
        if user.status is UserStatus.DISABLED:
            raise denied(f"user {name!r} is disabled")
        return user

    def _known(self, name: str) -> User | None:
        return self._own if name and name == self._own.name else self._table.user(name)

    def _decide(self, user: User, host: str, need: Need) -> None:
        if need.kind is ResourceKind.CLUSTER:
            need = Need(need.kind, self._config.cluster_name, need.actions)
        acl = self._table.acl(user.name)
        rule = None if acl is None else acl.decides(need, host)
        if rule is None:
            raise denied(f"no rule allows {user.subject} {need} from {host}")
        if rule.decision is Decision.DENY:
            raise denied(f"the rule for {rule.resource} forbids {user.subject} {need} from {host}")


def anything(_: Need) -> None:
    """Everything may be done."""


def denied(why: str) -> AccessDenied:
    return AccessDenied(f"{ACCESS_DENIED[0]}{why}")
