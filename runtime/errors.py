"""Every error that SaturnMQ raises on purpose, and its Remoting response code.

Servers raise these from a handler, and the endpoint answers `code` and the text as remark; clients
rebuild them from a response with `error_for`. The client's retry rules read only the attributes
below, never the texts.

| attribute | meaning |
|---|---|
| `code` | the Remoting response code (docs/internals/protocol.md 1.8); local errors have 1 |
| `retriable` | the same request may succeed on another broker, or later |
| `refresh_route` | the caller's route is probably stale: ask a nameserver before the next try |
| `outcome` | `rejected`: the request had no effect; `unknown`: it may have taken effect |

RocketMQ's rule followed here: 10, 11 and 12 are successes with a warning (the message is stored),
so their outcome is `unknown`: the log holds the message, but not with the durability that was asked
for.
"""

import difflib
from collections.abc import Iterable
from typing import ClassVar, Literal

Outcome = Literal["rejected", "unknown"]


class SaturnError(Exception):
    """The root. `str(error)` names the value, the limit and the way out."""

    code: int = 1
    retriable: ClassVar[bool] = False
    refresh_route: ClassVar[bool] = False
    outcome: Outcome = "rejected"

    def __init__(self, message: str = "", *, code: int | None = None) -> None:
        super().__init__(message or type(self).__doc__ or type(self).__name__)
        if code is not None:
            self.code = code


class SystemError_(SaturnError):
    """The server failed on this request"""

    code = 1
    retriable = True
    outcome = "unknown"


class SystemBusy(SaturnError):
    """The server is over a limit, or is no master now, and did not look at the request"""

    code = 2
    retriable = True
    refresh_route = True


class InSyncReplicasNotEnough(SystemBusy):
    """Refused before it was stored: fewer replicas are in sync than the topic's mode needs"""

    code = 1  # as RocketMQ answers it; the remark distinguishes it from other failures


class UnsupportedRequest(SaturnError):
    """The server does not know this request code"""

    code = 3


class TransactionFailed(SaturnError):
    """There is no open transaction of this name and group"""

    code = 4


class FlushDiskTimeout(SaturnError):
    """Stored, but not flushed to disk in time"""

    code = 10
    retriable = True
    outcome = "unknown"


class SlaveNotAvailable(SaturnError):
    """Stored on the master, but no slave is close enough to replicate it"""

    code = 11
    retriable = True
    outcome = "unknown"


class FlushSlaveTimeout(SaturnError):
    """Stored on the master, but not replicated in time"""

    code = 12
    retriable = True
    outcome = "unknown"


class MessageIllegal(SaturnError):
    """The message breaks a rule of the store: size, name or layout"""

    code = 13


class ServiceNotAvailable(SaturnError):
    """The store takes no writes: disk full, failed flush, or shutting down"""

    code = 14
    retriable = True
    refresh_route = True


class VersionNotSupported(SaturnError):
    """The peer's version is not supported"""

    code = 15


class NoPermission(SaturnError):
    """The broker or the topic does not permit this"""

    code = 16
    retriable = True
    refresh_route = True


class AccessDenied(NoPermission):
    """The user is not known, has not signed the request, or may not do this"""

    retriable = False
    refresh_route = False


class TopicNotExist(SaturnError):
    """The topic does not exist here and may not be created"""

    code = 17
    retriable = True
    refresh_route = True


class TopicExistAlready(SaturnError):
    """The topic exists already"""

    code = 18


class PullNotFound(SaturnError):
    """No message at this offset yet"""

    code = 19


class PullRetryImmediately(SaturnError):
    """Nothing matched in this range; pull again from nextBeginOffset"""

    code = 20


class PullOffsetMoved(SaturnError):
    """The offset lies outside the queue; go on from nextBeginOffset"""

    code = 21


class QueryNotFound(SaturnError):
    """Nothing is stored under this key"""

    code = 22


class SubscriptionParseFailed(SaturnError):
    """The filter expression is not valid"""

    code = 23


class FilterNotSupported(SubscriptionParseFailed):
    """The broker does not filter by this type of expression"""

    code = 1  # as RocketMQ answers it; the remark distinguishes it from other failures


class SubscriptionNotExist(SaturnError):
    """The group has not subscribed to this topic here; send a heartbeat first"""

    code = 24
    retriable = True


class SubscriptionNotLatest(SaturnError):
    """The group's subscription here is older than the request's; send a heartbeat first"""

    code = 25
    retriable = True


class GroupNotExist(SaturnError):
    """The subscription group does not exist and may not be created"""

    code = 26


class FilterDataNotExist(SaturnError):
    """The SQL92 filter is not known here"""

    code = 27
    retriable = True


class FilterDataNotLatest(SaturnError):
    """The SQL92 filter here is older than the request's"""

    code = 28
    retriable = True


class InvalidParameter(SaturnError):
    """A field of the request is missing or out of range"""

    code = 29


class ConsumerNotOnline(SaturnError):
    """No member of the group is connected"""

    code = 206


class ConsumeTimeout(SaturnError):
    """The consumer did not answer in time"""

    code = 207
    outcome = "unknown"


class NoMessage(SaturnError):
    """No such message"""

    code = 208


class FlowControl(SaturnError):
    """The server limits this client's rate"""

    code = 215
    retriable = True


class GoAway(SaturnError):
    """The server shuts down; connect again and repeat"""

    code = 1500
    retriable = True
    refresh_route = True


class IllegalOperation(SaturnError):
    """This cannot be done to that message"""

    code = 604


class ForeignGroup(SaturnError):
    """The two nodes belong to different groups of brokers, whatever their names are"""

    code = 390004


class SignatureNeeded(SaturnError):
    """The node takes this from those only who share its replicationSecret"""

    code = 390006


class StageLost(SaturnError):
    """The broker does not have (all of) what was staged any more: stage it again"""

    code = 390030


class TransactionEnded(SaturnError):
    """The transaction has ended, and not as it was to end now"""

    code = 390050


# Local errors: raised on this side of the wire, never sent.


class RequestTimeout(SaturnError):
    """No answer in time"""

    retriable = True
    outcome = "unknown"


class ConnectionLost(SaturnError):
    """The connection closed before the answer came"""

    retriable = True
    refresh_route = True
    outcome: Outcome = "unknown"


class ConnectFailed(ConnectionLost):
    """No connection could be opened, so the request was never sent"""

    outcome = "rejected"


class MalformedFrame(SaturnError):
    """The bytes are not a Remoting frame or not the JSON they should be"""


class RouteNotFound(SaturnError):
    """No nameserver knows a route for this topic"""

    code = 17
    retriable = True
    refresh_route = True


class ClientClosed(SaturnError):
    """This client was closed"""


class ClientForked(ClientClosed):
    """This client belongs to the process that forked"""


class TaskFailed(SaturnError):
    """A task of this process failed in an unforeseen way: a bug, of ours or of a listener"""


class ConfigError(SaturnError):
    """A setting is unknown, missing or out of range"""


class ListenerError(SaturnError):
    """A listener broke a rule; its messages are delivered again"""

    messages = 0  # their number since the last report of this kind to the application

    def __str__(self) -> str:
        count = f" ({self.messages} messages so far)" if self.messages > 1 else ""
        return super().__str__() + count


class WrongListenerResult(ListenerError):
    """A listener returned what is neither None nor a ConsumeResult"""


class ListenerRaisedExit(ListenerError):
    """A listener raised SystemExit, KeyboardInterrupt or their like, which end programs"""


class ListenerStuck(ListenerError):
    """A listener has not returned for long"""


class OffsetsLocked(SaturnError):
    """Another consumer keeps its offsets in this file"""


class OffsetsNotSaved(SaturnError):
    """A file of offsets cannot be written"""


class DirectoryLocked(SaturnError):
    """Another broker uses this data directory"""


class StoreDamaged(SaturnError):
    """The files on disk contradict each other"""


_LOCAL = frozenset(
    (
        RequestTimeout,
        ConnectionLost,
        ConnectFailed,
        MalformedFrame,
        RouteNotFound,
        ClientClosed,
        TaskFailed,
        ConfigError,
        ListenerError,
        OffsetsLocked,
        OffsetsNotSaved,
        DirectoryLocked,
        StoreDamaged,
    )
)

BY_CODE: dict[int, type[SaturnError]] = {
    cls.code: cls for cls in SaturnError.__subclasses__() if cls not in _LOCAL
}


NO_SUCH_FILTER = "The broker does not support consumer to filter message by"
# Ours, and RocketMQ's.
ACCESS_DENIED = ("access denied: ", "User:", "check signature failed", "username cannot be null")
NOT_ENOUGH_REPLICAS = ("[IN_SYNC_REPLICAS_NOT_ENOUGH]", "in-sync replicas not enough")


def error_for(code: int, remark: str | None) -> SaturnError:
    """The error of a response. An unknown code becomes a SystemError_ that keeps the number."""
    cls = BY_CODE.get(code)
    if cls is SystemError_ and remark is not None and remark.startswith(NOT_ENOUGH_REPLICAS):
        cls = InSyncReplicasNotEnough
    if cls is SystemError_ and remark is not None and remark.startswith(NO_SUCH_FILTER):
        cls = FilterNotSupported
    if cls is NoPermission and remark is not None and remark.startswith(ACCESS_DENIED):
        cls = AccessDenied
    if cls is None:
        return SystemError_(f"{remark or 'no remark'} (response code {code})", code=code)
    return cls(remark or "")


def nearest(name: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """`; did you mean 'flights'?`: the end of an error about an unknown `name`, empty when no name
    comes near."""
    found = difflib.get_close_matches(name, list(names), 1, cutoff)
    return f"; did you mean {found[0]!r}?" if found else ""
