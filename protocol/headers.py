"""The fields of every request that our brokers and nameservers serve: the schema of the protocol.

`HEADERS` names the header of each request code; `broker/handlers/requests.py` and
`nameserver/server.py` decode with it before they call a handler, and the fuzzer (`drills/fuzz`)
makes its values from it. Names and meanings are RocketMQ's (docs/internals/protocol.md 2, 3), but
for the codes above 390000 and the fields that begin with `saturn`, which are ours. Fields that no
handler reads are left out. The long names of SEND_MESSAGE (10) stand beside the short ones (310,
320).
"""

from __future__ import annotations

from .admin_headers import ADMIN_HEADERS
from .batch import SIZES
from .checked import INT32_MAX, INT64_MAX
from .codes import RequestCode
from .epochs import EPOCH_MAX
from .header_fields import (
    INT32_MIN,
    INT64_MIN,
    Header,
    choice,
    flag,
    header,
    identity,
    int32,
    name,
    number,
    text,
)
from .nameserver_headers import NAMESERVER_HEADERS
from .pop_headers import EXPRESSION_MAX, EXPRESSION_TYPE_MAX, HANDLE_MAX, POP_HEADERS
from .route import QUEUES_MAX

EPOCH_BEGIN = 1 << 62  # a sink's epochs and partitions are below
ATTEMPT_MAX = 64  # bytes of the name of an attempt
ADDRESSES_MAX = 1 << 20  # characters of a list of addresses


@header
class NoFieldsHeader(Header):
    """A request with no fields; its body, if any, has everything."""


@header
class TopicHeader(Header):
    topic: str = name("topic")


@header
class QueueHeader(Header):
    topic: str = name("topic")
    queue_id: int = int32("queueId", least=INT32_MIN)


# sending


@header
class SendHeader(Header):
    """SEND_MESSAGE 10, SEND_MESSAGE_V2 310, SEND_BATCH_MESSAGE 320."""

    topic: str = name("b", long="topic")
    default_topic: str = name("c", long="defaultTopic", default="")
    default_queues: int = int32("d", long="defaultTopicQueueNums", default=4)
    queue_id: int = int32("e", long="queueId", default=-1, least=INT32_MIN)
    sys_flag: int = int32("f", long="sysFlag", default=0)
    born_timestamp: int | None = number("g", long="bornTimestamp", default=None, least=INT64_MIN)
    user_flag: int = int32("h", long="flag", default=0, least=INT32_MIN)
    properties: str = text("i", long="properties", default="")
    reconsume_times: int = int32("j", long="reconsumeTimes", default=0)
    max_reconsume_times: int = int32("l", long="maxReconsumeTimes", default=-1, least=INT32_MIN)
    batch: bool = flag("m", long="batch", default=False)
    sizes: bool = flag(SIZES, default=False)


@header
class ReplyHeader(SendHeader):
    """SEND_REPLY_MESSAGE 324, SEND_REPLY_MESSAGE_V2 325."""

    producer_group: str = name("a", long="producerGroup", default="")


@header
class SendBatchesHeader(Header):
    """SEND_BATCHES 390040: only the fields for topics that do not exist yet
    (protocol/batches.py)."""

    default_topic: str = name("c", default="")
    default_queues: int = int32("d", default=4)


@header
class RecallHeader(Header):
    """RECALL_MESSAGE 370."""

    topic: str = name("topic")
    handle: str = text("recallHandle", most=1024)


@header
class SendBackHeader(Header):
    """CONSUMER_SEND_MSG_BACK 36. With a handle, of ours, the message was popped from `topic`."""

    group: str = name("group")
    offset: int = number("offset", least=INT64_MIN)
    delay_level: int = int32("delayLevel", default=0, least=INT32_MIN)
    origin_message_id: str = text("originMsgId", default="")
    max_reconsume_times: int = int32("maxReconsumeTimes", default=-1, least=INT32_MIN)
    topic: str = name("originTopic", default="")
    handle: str = text("extraInfo", default="", most=HANDLE_MAX)


@header
class EndTransactionHeader(Header):
    """END_TRANSACTION 37."""

    group: str = name("producerGroup")
    half_offset: int = number("tranStateTableOffset")
    physical_offset: int = number("commitLogOffset")
    decision: int = int32("commitOrRollback")
    transaction_id: str = text("transactionId", default="")


# consuming


@header
class ReaderHeader(Header):
    """A request of a consumer, with the log that it has read (broker/tables/lost_offsets.py)."""

    term: int | None = number("saturnTerm", default=None, least=-1, most=EPOCH_MAX)
    epochs: str | None = text("saturnEpochs", default=None, most=4096)


@header
class SubscriberHeader(ReaderHeader):
    """A request whose messages are selected by an expression (broker/handlers/subscriptions.py)."""

    expression_type: str = text("expressionType", default="TAG", most=EXPRESSION_TYPE_MAX)
    subscription: str | None = text("subscription", default=None, most=EXPRESSION_MAX)


@header
class PullHeader(SubscriberHeader):
    """PULL_MESSAGE 11, LITE_PULL_MESSAGE 361."""

    group: str = name("consumerGroup")
    topic: str = name("topic")
    queue_id: int = int32("queueId", least=INT32_MIN)
    queue_offset: int = number("queueOffset", least=INT64_MIN)
    max_messages: int = int32("maxMsgNums", default=32, least=INT32_MIN)
    max_bytes: int = int32("maxMsgBytes", default=INT32_MAX, least=INT32_MIN)
    sys_flag: int = int32("sysFlag", default=0)
    commit_offset: int = number("commitOffset", default=0, least=INT64_MIN)
    suspend_ms: int = number("suspendTimeoutMillis", default=0, least=INT64_MIN)
    sub_version: int = number("subVersion", default=0, least=INT64_MIN)
    moves: int | None = number("saturnMoves", default=None, most=INT64_MAX)


@header
class QueryOffsetHeader(ReaderHeader):
    """QUERY_CONSUMER_OFFSET 14."""

    group: str = name("consumerGroup")
    topic: str = name("topic")
    queue_id: int = int32("queueId", least=INT32_MIN)
    zero_if_not_found: bool = flag("setZeroIfNotFound", default=True)


@header
class UpdateOffsetHeader(ReaderHeader):
    """UPDATE_CONSUMER_OFFSET 15."""

    group: str = name("consumerGroup")
    topic: str = name("topic")
    queue_id: int = int32("queueId")
    offset: int = number("commitOffset")
    moves: int | None = number("saturnMoves", default=None, most=INT64_MAX)


@header
class MaxOffsetHeader(QueueHeader):
    """GET_MAX_OFFSET 30."""

    committed: bool = flag("committed", default=True)


@header
class SearchOffsetHeader(QueueHeader):
    """SEARCH_OFFSET_BY_TIMESTAMP 29."""

    timestamp: int = number("timestamp", least=INT64_MIN)
    boundary: str = choice("boundaryType", "LOWER", "UPPER", default="LOWER")


@header
class ViewMessageHeader(Header):
    """VIEW_MESSAGE_BY_ID 33."""

    offset: int = number("offset", least=INT64_MIN)


@header
class QueryMessageHeader(Header):
    """QUERY_MESSAGE 12."""

    topic: str = name("topic")
    key: str = text("key", most=INT32_MAX >> 16)
    max_messages: int | None = int32("maxNum", default=None)
    begin_timestamp: int = number("beginTimestamp", default=0, least=INT64_MIN)
    end_timestamp: int = number("endTimestamp", default=INT64_MAX, least=INT64_MIN)
    unique_key: bool = flag("_UNIQUE_KEY_QUERY", default=False)


# clients


@header
class UnregisterClientHeader(Header):
    """UNREGISTER_CLIENT 35."""

    producer_group: str | None = name("producerGroup", default=None)
    consumer_group: str | None = name("consumerGroup", default=None)


@header
class ConsumerGroupHeader(Header):
    group: str = name("consumerGroup")


@header
class ConsumerListHeader(Header):
    group: str = name("consumerGroup")
    wants_pops: bool = flag("saturnPops", default=False)  # the topics that the group pops


@header
class ProducerGroupHeader(Header):
    group: str = name("producerGroup")


@header
class RunningInfoHeader(Header):
    """GET_CONSUMER_RUNNING_INFO 307: sent to the broker, which sends it on to the client."""

    group: str = name("consumerGroup")
    client_id: str = name("clientId")
    stacks: bool = flag("jstackEnable", default=False)


# administration


@header
class CreateTopicHeader(Header):
    """UPDATE_AND_CREATE_TOPIC 17."""

    topic: str = name("topic")
    read_queues: int = number("readQueueNums", default=8, least=1, most=QUEUES_MAX)
    write_queues: int = number("writeQueueNums", default=8, least=1, most=QUEUES_MAX)
    perm: int = number("perm", default=6, most=7)
    sys_flag: int = int32("topicSysFlag", default=0)
    order: bool = flag("order", default=False)
    attributes: str = text("attributes", default="", most=1 << 16)


@header
class DeleteGroupHeader(Header):
    """DELETE_SUBSCRIPTIONGROUP 207."""

    group: str = name("groupName")
    clean_offset: bool = flag("cleanOffset", default=False)


@header
class GroupHeader(Header):
    group: str = name("group")


@header
class CopyTableHeader(Header):
    """The tables that slaves copy, 21 43 45 201 390007: `known` is the version of the table at the
    asker."""

    known: str = text("saturnKnown", default="", most=64)


# nodes of a group


@header
class FenceHeader(Header):
    """FENCE 390002."""

    epoch: int = number("epoch", least=1, most=EPOCH_MAX)
    term: int = number("term", default=-1, least=-1, most=EPOCH_MAX)


@header
class PromoteHeader(Header):
    """PROMOTE 390003."""

    epoch: int = number("epoch", least=1, most=EPOCH_MAX)
    end: int = number("end", default=0)
    force: bool = flag("force", default=False)
    insist: bool = flag("insist", default=False)


@header
class ReadLogHeader(Header):
    """READ_LOG 390004."""

    broker_name: str = name("brokerName")
    identity: str = identity("identity")
    offset: int = number("offset")
    size: int = number("size", least=1)


@header
class SlaveLeavesHeader(Header):
    """SLAVE_LEAVES 390005."""

    address: str = name("brokerAddr", default="")


# ranges and sinks of the pipeline


@header
class ReadQueueHeader(SubscriberHeader):
    """READ_QUEUE 390020."""

    topic: str = name("topic")
    queue_id: int = int32("queueId")
    offset: int = number("offset")
    end: int = number("end")
    max_bytes: int = number("maxBytes", default=1 << 20)


@header
class SplitRangeHeader(Header):
    """SPLIT_RANGE 390021."""

    topic: str = name("topic")
    max_bytes: int = number("maxBytes")
    max_rows: int = number("maxRows", default=INT32_MAX)
    first_only: bool = flag("firstOnly", default=False)


@header
class SinkHeader(Header):
    sink: str = name("sink")


@header
class FinishEpochHeader(SinkHeader):
    """FINISH_EPOCH 390032."""

    epoch: int = number("epoch", most=EPOCH_BEGIN - 1)


@header
class AttemptHeader(FinishEpochHeader):
    """The key of what one attempt at one partition of an epoch has staged."""

    partition: int = number("partition", most=EPOCH_BEGIN - 1)
    attempt: str = name("attempt", most=ATTEMPT_MAX)


@header
class StageHeader(AttemptHeader):
    """STAGE 390030."""

    seq: int = int32("seq")
    topic: str = name("topic")
    queue_id: int = int32("queueId")
    sys_flag: int = int32("sysFlag", default=0)
    born_timestamp: int | None = number("bornTimestamp", default=None, least=INT64_MIN)


@header
class PublishHeader(AttemptHeader):
    """PUBLISH 390031: with the counts of the sender."""

    chunks: int = int32("chunks")
    rows: int = number("rows")
    bytes: int = number("bytes")


@header
class AbortStageHeader(FinishEpochHeader):
    """ABORT_STAGE 390033: of one partition, one attempt, or all."""

    partition: int = number("partition", default=-1, least=-1, most=EPOCH_BEGIN - 1)
    attempt: str = name("attempt", default="", most=ATTEMPT_MAX)


@header
class SinkStateHeader(SinkHeader):
    """SINK_STATE 390034."""

    brokers: str = text("brokers", default="", most=ADDRESSES_MAX)
    replace: bool = flag("replace", default=False)


_C = RequestCode
HEADERS: dict[RequestCode, type[Header]] = {
    **POP_HEADERS,
    **ADMIN_HEADERS,
    **NAMESERVER_HEADERS,
    _C.SEND_MESSAGE: SendHeader,
    _C.SEND_MESSAGE_V2: SendHeader,
    _C.SEND_REPLY_MESSAGE: ReplyHeader,
    _C.SEND_REPLY_MESSAGE_V2: ReplyHeader,
    _C.SEND_BATCH_MESSAGE: SendHeader,
    _C.SEND_BATCHES: SendBatchesHeader,
    _C.CONSUMER_SEND_MSG_BACK: SendBackHeader,
    _C.RECALL_MESSAGE: RecallHeader,
    _C.END_TRANSACTION: EndTransactionHeader,
    _C.PULL_MESSAGE: PullHeader,
    _C.LITE_PULL_MESSAGE: PullHeader,
    _C.QUERY_MESSAGE: QueryMessageHeader,
    _C.QUERY_CONSUMER_OFFSET: QueryOffsetHeader,
    _C.UPDATE_CONSUMER_OFFSET: UpdateOffsetHeader,
    _C.SEARCH_OFFSET_BY_TIMESTAMP: SearchOffsetHeader,
    _C.GET_MAX_OFFSET: MaxOffsetHeader,
    _C.GET_MIN_OFFSET: QueueHeader,
    _C.GET_EARLIEST_MSG_STORETIME: QueueHeader,
    _C.VIEW_MESSAGE_BY_ID: ViewMessageHeader,
    _C.HEART_BEAT: NoFieldsHeader,
    _C.UNREGISTER_CLIENT: UnregisterClientHeader,
    _C.GET_CONSUMER_LIST_BY_GROUP: ConsumerListHeader,
    _C.LOCK_BATCH_MQ: NoFieldsHeader,
    _C.UNLOCK_BATCH_MQ: NoFieldsHeader,
    _C.CHECK_CLIENT_CONFIG: NoFieldsHeader,
    _C.QUERY_ASSIGNMENT: NoFieldsHeader,
    _C.SET_MESSAGE_REQUEST_MODE: NoFieldsHeader,
    _C.GET_ALL_MESSAGE_REQUEST_MODE: NoFieldsHeader,
    _C.BATCH_ACK_MESSAGE: NoFieldsHeader,
    _C.GET_CONSUMER_CONNECTION_LIST: ConsumerGroupHeader,
    _C.GET_CONSUMER_RUNNING_INFO: RunningInfoHeader,
    _C.GET_PRODUCER_CONNECTION_LIST: ProducerGroupHeader,
    _C.GET_ALL_PRODUCER_INFO: NoFieldsHeader,
    _C.UPDATE_AND_CREATE_TOPIC: CreateTopicHeader,
    _C.UPDATE_AND_CREATE_TOPIC_LIST: NoFieldsHeader,
    _C.UPDATE_AND_CREATE_STATIC_TOPIC: TopicHeader,
    _C.DELETE_TOPIC_IN_BROKER: TopicHeader,
    _C.GET_TOPIC_CONFIG: TopicHeader,
    _C.GET_TOPIC_STATS_INFO: TopicHeader,
    _C.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: NoFieldsHeader,
    _C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: NoFieldsHeader,
    _C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: NoFieldsHeader,
    _C.DELETE_SUBSCRIPTIONGROUP: DeleteGroupHeader,
    _C.GET_SUBSCRIPTIONGROUP_CONFIG: GroupHeader,
    _C.QUERY_TOPIC_CONSUME_BY_WHO: TopicHeader,
    _C.QUERY_TOPICS_BY_CONSUMER: GroupHeader,
    _C.GET_ALL_TOPIC_CONFIG: CopyTableHeader,
    _C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: CopyTableHeader,
    _C.GET_ALL_CONSUMER_OFFSET: CopyTableHeader,
    _C.GET_ALL_DELAY_OFFSET: CopyTableHeader,
    _C.GET_ALL_ACCESS: CopyTableHeader,
    _C.GET_TIMER_CHECK_POINT: NoFieldsHeader,
    _C.GET_TIMER_METRICS: NoFieldsHeader,
    _C.GET_BROKER_HA_STATUS: NoFieldsHeader,
    _C.GET_BROKER_EPOCH_CACHE: NoFieldsHeader,
    _C.GET_BROKER_CONFIG: NoFieldsHeader,
    _C.UPDATE_BROKER_CONFIG: NoFieldsHeader,
    _C.GET_BROKER_RUNTIME_INFO: NoFieldsHeader,
    _C.DELETE_EXPIRED_COMMITLOG: NoFieldsHeader,
    _C.CLEAN_EXPIRED_CONSUMEQUEUE: NoFieldsHeader,
    _C.CLEAN_UNUSED_TOPIC: NoFieldsHeader,
    _C.REPLICA_STATE: NoFieldsHeader,
    _C.FENCE: FenceHeader,
    _C.PROMOTE: PromoteHeader,
    _C.READ_LOG: ReadLogHeader,
    _C.SLAVE_LEAVES: SlaveLeavesHeader,
    _C.READ_QUEUE: ReadQueueHeader,
    _C.SPLIT_RANGE: SplitRangeHeader,
    _C.QUEUE_BOUNDS: TopicHeader,
    _C.STAGE: StageHeader,
    _C.PUBLISH: PublishHeader,
    _C.FINISH_EPOCH: FinishEpochHeader,
    _C.ABORT_STAGE: AbortStageHeader,
    _C.SINK_STATE: SinkStateHeader,
    _C.GET_BROKER_CLUSTER_INFO: NoFieldsHeader,
    _C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: NoFieldsHeader,
    _C.GET_SYSTEM_TOPIC_LIST_FROM_NS: NoFieldsHeader,
    _C.REGISTER_TOPIC_IN_NAMESRV: TopicHeader,
    _C.GET_UNIT_TOPIC_LIST: NoFieldsHeader,
    _C.GET_HAS_UNIT_SUB_TOPIC_LIST: NoFieldsHeader,
    _C.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: NoFieldsHeader,
    _C.UPDATE_NAMESRV_CONFIG: NoFieldsHeader,
    _C.GET_NAMESRV_CONFIG: NoFieldsHeader,
    _C.GET_CONTROLLER_CONFIG: NoFieldsHeader,
    _C.UPDATE_CONTROLLER_CONFIG: NoFieldsHeader,
    _C.CONTROLLER_GET_METADATA_INFO: NoFieldsHeader,
    _C.CONTROLLER_GET_SYNC_STATE_DATA: NoFieldsHeader,
}
