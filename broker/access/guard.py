"""The guard before a broker's services: it finds out whose a request is, and whether its user may
do what it asks for.

A request over Remoting is signed as a whole. One that came over gRPC has the signature that the
client made of the call's time (`saturnDateTime`), which the gateway passes on: this broker's own
one, or one of another node. So users are known to brokers alone.

A request that the guard refuses is answered NO_PERMISSION (16), with a remark that begins with
`access denied: `. The remark tells neither a wrong name from a wrong password, nor whether a topic
exists.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from functools import partial
from weakref import WeakKeyDictionary

from saturnmq.broker.access.model import Decision, Need, ResourceKind, User, UserStatus
from saturnmq.broker.access.needs import needs_of
from saturnmq.broker.access.table import AccessTable, super_user
from saturnmq.broker.config import BrokerConfig
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.credentials import (
    ACCESS_KEY,
    DATE_TIME,
    SIGNATURE,
    Credentials,
    signature,
    signed_fields,
)
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import ACCESS_DENIED, AccessDenied

Judge = Callable[[Need], None]
"""AccessDenied: the user must not do this."""

UNKNOWN = "\0"  # the password of a user that does not exist: its signature is made all the same
# Members prove themselves with the secret that they share; the state of a replica is no secret.
OF_NODES = frozenset({RequestCode.FENCE, RequestCode.PROMOTE, RequestCode.SLAVE_LEAVES})
OPEN = frozenset({RequestCode.REPLICA_STATE})


class AccessGuard:
    def __init__(self, config: BrokerConfig, table: AccessTable, own: Credentials) -> None:
        """`own`: the credentials of this node, whose user need not be in the table."""
        self._config = config
        self._table = table
        self._own = super_user(own)
        self._beats: WeakKeyDictionary[Endpoint, str] = WeakKeyDictionary()  # names of users

    def check(self, endpoint: Endpoint, request: Command) -> None:
        """AccessDenied: the request is not answered. InvalidParameter: it cannot be read."""
        code = request.code
        if code in OPEN or (code in OF_NODES and self._config.signing.refuses):
            return
        judge = self.judge(endpoint, request)
        if judge is not anything:
            for need in needs_of(request):
                judge(need)
        if code == RequestCode.HEART_BEAT:
            self._beats[endpoint] = request.ext.get(ACCESS_KEY, "")

    def judge(self, endpoint: Endpoint, request: Command) -> Judge:
        """The judge of the user of a request, also for needs that only a handler can tell.
        AccessDenied: it has no user."""
        code, config = str(request.code), self._config
        if code in config.authentication_whitelist:
            return anything
        return self._judge_of(self.user_of(request), endpoint, code)

    def may(self, endpoint: Endpoint, need: Need) -> bool:
        """Whether the user whose client has sent the last heartbeat over this connection may do
        something."""
        user = self._known(self._beats.get(endpoint, ""))
        try:
            if user is not None:
                self._judge_of(user, endpoint)(need)
        except AccessDenied:
            return False
        return user is not None

    def _judge_of(self, user: User, endpoint: Endpoint, code: str = "") -> Judge:
        config = self._config
        if not config.authorization or user.is_super or code in config.authorization_whitelist:
            return anything
        return partial(self._decide, user, endpoint.peer_host)

    def user_of(self, request: Command) -> User:
        """The user that has signed a request. AccessDenied: there is none."""
        fields = request.ext
        name = fields.get(ACCESS_KEY, "")
        if not name:
            raise denied(f"request {request.code} names no user; give the client its credentials")
        user = self._known(name)
        when = fields.get(DATE_TIME)
        text = signed_fields(fields, request.version) if when is None else when.encode()
        body = () if when is not None else (request.body, *request.more)
        mine = signature(user.password if user is not None else UNKNOWN, text, body)
        theirs = fields.get(SIGNATURE, "")
        is_right = hmac.compare_digest(mine.encode(), theirs.encode())
        if user is None or not is_right:
            raise denied(f"user {name!r} is not known, or its signature is not right")
        if user.status is UserStatus.DISABLED:
            raise denied(f"user {name!r} is disabled")
        return user

    def _known(self, name: str) -> User | None:
        return self._own if name == self._own.name else self._table.user(name)

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
