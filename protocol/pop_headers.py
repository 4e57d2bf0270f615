"""The fields of the requests of pop, a part of the schema in `headers.py`: names and meanings are
RocketMQ's (docs/internals/protocol.md 2.10).
"""

from __future__ import annotations

from .codes import RequestCode
from .header_fields import INT32_MIN, INT64_MIN, Header, flag, header, int32, name, number, text

EXPRESSION_TYPE_MAX = 32  # characters
EXPRESSION_MAX = 1 << 16  # characters; of a condition less (sql92.py)
ATTEMPT_ID_MAX = 256  # characters of the id of an ordered pop; Java's have 36
HANDLE_MAX = 1024  # characters
INVISIBLE_MAX_MS = 3 * 86_400_000  # as long as RocketMQ keeps messages by default


@header
class PopHeader(Header):
    """POP_MESSAGE 200050. A negative queue id means any queue; `initMode` 1 begins at the end of a
    queue that the group never read."""

    group: str = name("consumerGroup")
    topic: str = name("topic")
    queue_id: int = int32("queueId", default=-1, least=INT32_MIN)
    max_messages: int = int32("maxMsgNums", default=32, least=INT32_MIN)
    invisible_ms: int = number("invisibleTime", most=INVISIBLE_MAX_MS)
    poll_ms: int = number("pollTime", default=0, least=INT64_MIN)
    init_mode: int = int32("initMode", default=0)
    expression_type: str = text("expType", default="TAG", most=EXPRESSION_TYPE_MAX)
    subscription: str | None = text("exp", default=None, most=EXPRESSION_MAX)
    ordered: bool = flag("order", default=False)
    attempt_id: str = text("attemptId", default="", most=ATTEMPT_ID_MAX)


@header
class PeekHeader(Header):
    """PEEK_MESSAGE 200052."""

    group: str = name("consumerGroup")
    topic: str = name("topic")
    queue_id: int = int32("queueId", default=-1, least=INT32_MIN)
    max_messages: int = int32("maxMsgNums", default=32, least=INT32_MIN)


@header
class AckHeader(Header):
    """ACK_MESSAGE 200051."""

    group: str = name("consumerGroup")
    topic: str = name("topic")
    queue_id: int = int32("queueId", least=INT32_MIN)
    offset: int = number("offset", least=INT64_MIN)
    handle: str = text("extraInfo", most=HANDLE_MAX)


@header
class ChangeInvisibleHeader(AckHeader):
    """CHANGE_MESSAGE_INVISIBLETIME 200053. `saturnUnseen`: no consumer has had the message, so that
    it was popped counts for nothing."""

    invisible_ms: int = number("invisibleTime", most=INVISIBLE_MAX_MS)
    unseen: bool = flag("saturnUnseen", default=False)


@header
class NotificationHeader(Header):
    """NOTIFICATION 200054."""

    group: str = name("consumerGroup")
    topic: str = name("topic")
    queue_id: int = int32("queueId", default=-1, least=INT32_MIN)
    poll_ms: int = number("pollTime", default=0, least=INT64_MIN)
    ordered: bool = flag("order", default=False)
    attempt_id: str = text("attemptId", default="", most=ATTEMPT_ID_MAX)


@header
class PollingInfoHeader(Header):
    """POLLING_INFO 200055."""

    group: str = name("consumerGroup")
    topic: str = name("topic")
    queue_id: int = int32("queueId", least=INT32_MIN)


@header
class EndPollHeader(Header):
    """END_POLL 390041: `opaque` is that of a POP_MESSAGE on the same connection."""

    opaque: int = int32("opaque", least=INT32_MIN)


_C = RequestCode

POP_HEADERS: dict[RequestCode, type[Header]] = {
    _C.POP_MESSAGE: PopHeader,
    _C.PEEK_MESSAGE: PeekHeader,
    _C.ACK_MESSAGE: AckHeader,
    _C.CHANGE_MESSAGE_INVISIBLETIME: ChangeInvisibleHeader,
    _C.NOTIFICATION: NotificationHeader,
    _C.POLLING_INFO: PollingInfoHeader,
    _C.END_POLL: EndPollHeader,
}
