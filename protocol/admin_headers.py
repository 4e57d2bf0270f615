"""The fields of requests of operators' tools, a part of the schema in `headers.py`: names and
meanings are RocketMQ's (docs/internals/protocol.md 2.5)."""

from __future__ import annotations

from .codes import RequestCode
from .header_fields import (
    INT32_MIN,
    INT64_MIN,
    NAME_MAX,
    Header,
    choice,
    flag,
    header,
    int32,
    name,
    number,
    text,
)

SUBJECT_MAX = 300  # characters of a kind and a name
ENTRIES_MAX = 10_000  # of a queue that one answer may have
NAMES_MAX = 1 << 16  # characters of a list of groups or topics


@header
class ConsumeStatsHeader(Header):
    """GET_CONSUME_STATS 208. `topics`, joined by semicolons, go before `topic`."""

    group: str = name("consumerGroup")
    topic: str | None = name("topic", default=None)
    topics: str = text("topicList", default="", most=NAMES_MAX)


@header
class BrokerConsumeStatsHeader(Header):
    """GET_BROKER_CONSUME_STATS 317."""

    ordered_only: bool = flag("isOrder", default=False)


@header
class ResetOffsetHeader(Header):
    """INVOKE_BROKER_TO_RESET_OFFSET 222."""

    topic: str = name("topic")
    group: str = name("group")
    timestamp: int = number("timestamp", default=-1, least=INT64_MIN)
    queue_id: int = int32("queueId", default=-1, least=INT32_MIN)
    offset: int = number("offset", default=-1, least=INT64_MIN)


@header
class CloneOffsetsHeader(Header):
    """CLONE_GROUP_OFFSET 314. With `offline` the topic may be one that the source group does not
    subscribe to now."""

    source: str = name("srcGroup")
    target: str = name("destGroup")
    topic: str | None = name("topic", default=None)
    offline: bool = flag("offline", default=False)


@header
class GroupTopicHeader(Header):
    """QUERY_CONSUME_TIME_SPAN 303, QUERY_SUBSCRIPTION_BY_CONSUMER 345."""

    topic: str = name("topic")
    group: str = name("group")


@header
class ConsumerStatusHeader(GroupTopicHeader):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS 223: of one client, or of all of the group."""

    client_id: str | None = name("clientAddr", default=None)


@header
class ForbiddingHeader(GroupTopicHeader):
    """UPDATE_AND_GET_GROUP_FORBIDDEN 353: without `readable` nothing is changed."""

    readable: str = choice("readable", "TRUE", "FALSE", default="")


@header
class CorrectionHeader(Header):
    """QUERY_CORRECTION_OFFSET 308: groups are joined by commas."""

    topic: str = name("topic")
    compared: str | None = name("compareGroup", default=None)
    left_out: str = text("filterGroups", default="", most=NAMES_MAX)


@header
class ExchangeHaHeader(Header):
    """EXCHANGE_BROKER_HA_INFO 906: with an address if the broker shall follow another master."""

    master_ha_address: str | None = name("masterHaAddress", default=None)


@header
class StatisticHeader(Header):
    """VIEW_BROKER_STATS_DATA 315."""

    figure: str = name("statsName")
    key: str = text("statsKey", most=1024)


@header
class QueueEntriesHeader(Header):
    """QUERY_CONSUME_QUEUE 321."""

    topic: str = name("topic")
    queue_id: int = int32("queueId")
    index: int = number("index")
    count: int = number("count", least=1, most=ENTRIES_MAX)
    group: str | None = name("consumerGroup", default=None)


@header
class ConsumeDirectlyHeader(Header):
    """CONSUME_MESSAGE_DIRECTLY 309: sent to the broker, which sends it on with the message."""

    group: str = name("consumerGroup")
    client_id: str = name("clientId")
    message_id: str = text("msgId", most=64)
    topic: str | None = name("topic", default=None)


@header
class UserHeader(Header):
    """AUTH_CREATE_USER 3001, AUTH_UPDATE_USER 3002, AUTH_DELETE_USER 3003, AUTH_GET_USER 3004.
    `repeated`, ours: it may have been done already; and so may what a slave passes on."""

    username: str = text("username", most=NAME_MAX)
    repeated: bool = flag("saturnRepeated", default=False)
    passed_on: bool = flag("saturnPassedOn", default=False)


@header
class UserFilterHeader(Header):
    """AUTH_LIST_USER 3005."""

    part: str = text("filter", default="", most=NAME_MAX)


@header
class SubjectHeader(Header):
    """AUTH_CREATE_ACL 3006, AUTH_UPDATE_ACL 3007, AUTH_GET_ACL 3009."""

    subject: str = text("subject", most=SUBJECT_MAX)


@header
class DeleteAclHeader(SubjectHeader):
    """AUTH_DELETE_ACL 3008: the rule for one resource, or all rules."""

    policy_type: str = text("policyType", default="", most=NAME_MAX)
    resource: str = text("resource", default="", most=SUBJECT_MAX)
    passed_on: bool = flag("saturnPassedOn", default=False)


@header
class AclFilterHeader(Header):
    """AUTH_LIST_ACL 3010."""

    subject: str = text("subjectFilter", default="", most=SUBJECT_MAX)
    resource: str = text("resourceFilter", default="", most=SUBJECT_MAX)


@header
class CheckAccessHeader(Header):
    """CHECK_ACCESS 390008: may the user of the request do something with the topic, or publish to
    it? Without a topic: is the user known?"""

    topic: str | None = name("topic", default=None)
    publishes: bool = flag("saturnPublishes", default=False)


_C = RequestCode
ADMIN_HEADERS: dict[RequestCode, type[Header]] = {
    _C.GET_CONSUME_STATS: ConsumeStatsHeader,
    _C.GET_BROKER_CONSUME_STATS: BrokerConsumeStatsHeader,
    _C.INVOKE_BROKER_TO_RESET_OFFSET: ResetOffsetHeader,
    _C.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: ConsumerStatusHeader,
    _C.CLONE_GROUP_OFFSET: CloneOffsetsHeader,
    _C.QUERY_CONSUME_TIME_SPAN: GroupTopicHeader,
    _C.QUERY_SUBSCRIPTION_BY_CONSUMER: GroupTopicHeader,
    _C.QUERY_CORRECTION_OFFSET: CorrectionHeader,
    _C.UPDATE_AND_GET_GROUP_FORBIDDEN: ForbiddingHeader,
    _C.EXCHANGE_BROKER_HA_INFO: ExchangeHaHeader,
    _C.VIEW_BROKER_STATS_DATA: StatisticHeader,
    _C.QUERY_CONSUME_QUEUE: QueueEntriesHeader,
    _C.CONSUME_MESSAGE_DIRECTLY: ConsumeDirectlyHeader,
    _C.AUTH_CREATE_USER: UserHeader,
    _C.AUTH_UPDATE_USER: UserHeader,
    _C.AUTH_DELETE_USER: UserHeader,
    _C.AUTH_GET_USER: UserHeader,
    _C.AUTH_LIST_USER: UserFilterHeader,
    _C.AUTH_CREATE_ACL: SubjectHeader,
    _C.AUTH_UPDATE_ACL: SubjectHeader,
    _C.AUTH_DELETE_ACL: DeleteAclHeader,
    _C.AUTH_GET_ACL: SubjectHeader,
    _C.AUTH_LIST_ACL: AclFilterHeader,
    _C.CHECK_ACCESS: CheckAccessHeader,
}
