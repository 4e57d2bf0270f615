"""The needs of each request: `needs_of`.

They are those of RocketMQ's DefaultAuthorizationContextBuilder, but for these:

- A request that names no topic and no group needs the cluster (`Get`, or `Update` if it changes
  something). RocketMQ lets every user send most of them.
- A retry topic is its group's: who may `Sub` the group may read it and write to it. RocketMQ looks
  at the group that the request names beside it, whichever that is.
- Who may `Sub` a topic may ask for the bounds of its queues, too.
- A message that is named by its place in the log needs the topic that it is stored in, whichever
  the request names: to see it, to send it back, to have a consumer take it, to end its transaction.
- A producer is asked about the transactions of its group for topics that it may `Pub`.
- Requests of ours: the ranges of Spark's sources are reads, its sinks write to topics and are named
  as groups are.

Nodes that share a secret ask each other without users (`signing.py`). The state of a replica, which
nameservers ask for, needs nothing, nor does a reply to the topic of replies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from saturnmq.broker import bodies
from saturnmq.broker.access.model import Need, ResourceKind
from saturnmq.protocol import admin_headers, checked, headers
from saturnmq.protocol.access_words import Action
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.command_reading import header_of
from saturnmq.protocol.frame import Frame, decode_frame
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.topics import RETRY_PREFIX, retry_topic

Actions = frozenset[Action]
Needs = Iterable[Need]
Rule = Callable[[Any, Command], Needs]  # takes the header, and the request

CREATE, DELETE = frozenset({Action.CREATE}), frozenset({Action.DELETE})
GET, UPDATE = frozenset({Action.GET}), frozenset({Action.UPDATE})
PUB, SUB = frozenset({Action.PUB}), frozenset({Action.SUB})
READ, COMMIT = SUB | GET, SUB | UPDATE
LISTING = GET | {Action.LIST}
CLUSTER = ResourceKind.CLUSTER


def topic(name: str, actions: Actions) -> Need:
    """Actions on a topic; on a retry topic, its group's."""
    if name.startswith(RETRY_PREFIX):
        return group(name.removeprefix(RETRY_PREFIX), (actions - PUB) | SUB)
    return Need(ResourceKind.TOPIC, name, actions)


def group(name: str, actions: Actions) -> Need:
    return Need(ResourceKind.GROUP, name, actions)


def topic_of(frame: bytes) -> str:
    """The topic that a whole frame of the log is stored in."""
    stored = decode_frame(frame, verify=False)
    assert isinstance(stored, Frame), f"the log gave {stored}"
    return stored.topic.decode(errors="replace")


def both(topic_name: str, group_name: str, actions: Actions) -> list[Need]:
    """Actions on a topic, by a group."""
    mine = group(group_name, actions)
    if topic_name == retry_topic(group_name):
        return [mine]
    return [topic(topic_name, actions), mine]


def acknowledged(topic_name: str, group_name: str) -> list[Need]:
    """The needs of a group that has popped a message of a topic, or of its own retry topic of that
    topic, which has both names."""
    own = retry_topic(group_name)
    for mark in ("_", "+"):
        if topic_name.startswith(own + mark):
            return [topic(topic_name.removeprefix(own + mark), SUB), group(group_name, SUB)]
    return both(topic_name, group_name, SUB)


def _named(body: Mapping[str, Any], items: str, name: str) -> set[str]:
    """The names in the items of a list."""
    listed = checked.items(body, items)
    return {
        checked.text(checked.as_table(each, f"an entry of {items}"), name, "") for each in listed
    }


def _cluster(actions: Actions) -> Rule:
    return lambda header, request: (Need(CLUSTER, "", actions),)


def _topic(actions: Actions) -> Rule:
    return lambda header, request: (topic(header.topic, actions),)


def _group(actions: Actions) -> Rule:
    return lambda header, request: (group(header.group, actions),)


def _both(actions: Actions) -> Rule:
    return lambda header, request: both(header.topic, header.group, actions)


def _acknowledged(header: Any, request: Command) -> Needs:
    return acknowledged(header.topic, header.group)


def _checked(header: admin_headers.CheckAccessHeader, request: Command) -> Needs:
    if not header.topic:
        return ()
    return (topic(header.topic, PUB if header.publishes else PUB | READ),)


def _nothing(header: Any, request: Command) -> Needs:
    return ()


def _heartbeat(header: Any, request: Command) -> Needs:
    for each in checked.items(bodies.document(request), "consumerDataSet"):
        consumer = checked.as_table(each, "a consumer")
        name = checked.text(consumer, "groupName")
        yield group(name, SUB)
        for subscribed in checked.items(consumer, "subscriptionDataSet"):
            data = checked.as_table(subscribed, "a subscription")
            yield from both(checked.text(data, "topic", ""), name, SUB)


def _unregistration(header: headers.UnregisterClientHeader, request: Command) -> Needs:
    return (group(header.consumer_group, SUB),) if header.consumer_group else ()


def _locks(header: Any, request: Command) -> Needs:
    body = bodies.document(request)
    name = checked.text(body, "consumerGroup", "")
    yield group(name, SUB)
    for queue in _named(body, "mqSet", "topic"):
        yield from both(queue, name, SUB)


def _subscription(header: Any, request: Command) -> Needs:
    document = bodies.document(request)
    data = checked.table(document, "subscriptionData")
    return both(checked.text(data, "topic", ""), checked.text(document, "group", ""), SUB)


def _assignment(header: Any, request: Command) -> Needs:
    asked = bodies.assignment_question(request)
    return both(asked.topic, asked.group, SUB)


def _request_mode(header: Any, request: Command) -> Needs:
    group_name, topic_name, _ = bodies.request_mode(request)
    return both(topic_name, group_name, UPDATE)


def _batch_ack(header: Any, request: Command) -> Needs:
    asked = checked.items(bodies.document(request), "acks")
    acks = (checked.as_table(each, "an entry of acks") for each in asked)
    named = {(checked.text(each, "t", ""), checked.text(each, "c", "")) for each in acks}
    for topic_name, group_name in named:
        yield from acknowledged(topic_name, group_name)


def _topics(header: Any, request: Command) -> Needs:
    named = _named(bodies.document(request), "topicConfigList", "topicName")
    return [topic(name, CREATE) for name in named]


def _new_group(header: Any, request: Command) -> Needs:
    return (group(checked.text(bodies.document(request), "groupName", ""), CREATE),)


def _new_groups(header: Any, request: Command) -> Needs:
    named = _named(bodies.document(request), "groupConfigList", "groupName")
    return [group(name, CREATE) for name in named]


def _consume_stats(header: Any, request: Command) -> Needs:
    named = [header.topic] if header.topic else []
    named += [each for each in header.topics.split(";") if each]
    return [group(header.group, GET), *(topic(name, GET) for name in named)]


def _cloned(header: Any, request: Command) -> Needs:
    topics = [topic(header.topic, UPDATE)] if header.topic else []
    return [group(header.source, GET), group(header.target, UPDATE), *topics]


def _seen(topic_name: str, group_name: str | None) -> list[Need]:
    """A topic is looked at, and a group, if one is named."""
    groups = [group(group_name, GET)] if group_name else []
    return [topic(topic_name, GET), *groups]


def _correction(header: Any, request: Command) -> Needs:
    return _seen(header.topic, header.compared)


def _queue_entries(header: Any, request: Command) -> Needs:
    return _seen(header.topic, header.group)


def _sink(header: Any, request: Command) -> Needs:
    return (group(header.sink, PUB),)


def _staged(header: Any, request: Command) -> Needs:
    return [topic(header.topic, PUB), group(header.sink, PUB)]


_C = RequestCode
RULES: dict[RequestCode, Rule] = {
    _C.SEND_MESSAGE: _topic(PUB),
    _C.SEND_MESSAGE_V2: _topic(PUB),
    _C.SEND_BATCH_MESSAGE: _topic(PUB),
    _C.SEND_BATCHES: _nothing,  # `SendService.on_send_batches` looks at each batch
    _C.SEND_REPLY_MESSAGE: _nothing,  # `ReplyService.on_reply` looks at the topic
    _C.SEND_REPLY_MESSAGE_V2: _nothing,
    _C.RECALL_MESSAGE: _topic(PUB),
    _C.END_TRANSACTION: _nothing,  # `EndService.on_end` looks at the message
    _C.CONSUMER_SEND_MSG_BACK: _group(SUB),  # and `RetryService.on_send_back` at the message
    _C.PULL_MESSAGE: _both(SUB),
    _C.LITE_PULL_MESSAGE: _both(SUB),
    _C.POP_MESSAGE: _both(SUB),
    _C.PEEK_MESSAGE: _both(SUB),
    _C.ACK_MESSAGE: _acknowledged,
    _C.BATCH_ACK_MESSAGE: _batch_ack,
    _C.CHANGE_MESSAGE_INVISIBLETIME: _acknowledged,
    _C.NOTIFICATION: _both(SUB),
    _C.POLLING_INFO: _both(READ),
    _C.END_POLL: _nothing,  # a request of the same connection
    _C.QUERY_MESSAGE: _topic(READ),
    _C.VIEW_MESSAGE_BY_ID: _nothing,  # `QueryService.on_view_message` looks at the message
    _C.QUERY_CONSUMER_OFFSET: _both(READ),
    _C.UPDATE_CONSUMER_OFFSET: _both(COMMIT),
    _C.SEARCH_OFFSET_BY_TIMESTAMP: _topic(READ),
    _C.GET_MAX_OFFSET: _topic(READ),
    _C.GET_MIN_OFFSET: _topic(READ),
    _C.GET_EARLIEST_MSG_STORETIME: _topic(READ),
    _C.HEART_BEAT: _heartbeat,
    _C.UNREGISTER_CLIENT: _unregistration,
    _C.GET_CONSUMER_LIST_BY_GROUP: _group(READ),
    _C.LOCK_BATCH_MQ: _locks,
    _C.UNLOCK_BATCH_MQ: _locks,
    _C.CHECK_CLIENT_CONFIG: _subscription,
    _C.QUERY_ASSIGNMENT: _assignment,
    _C.SET_MESSAGE_REQUEST_MODE: _request_mode,
    _C.GET_ALL_MESSAGE_REQUEST_MODE: _cluster(LISTING),
    _C.GET_CONSUMER_CONNECTION_LIST: _group(GET),
    _C.GET_CONSUMER_RUNNING_INFO: _group(GET),
    _C.CONSUME_MESSAGE_DIRECTLY: _group(SUB),  # and `ClientQuestions` at the message
    _C.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _both(GET),
    _C.GET_PRODUCER_CONNECTION_LIST: _cluster(GET),
    _C.GET_ALL_PRODUCER_INFO: _cluster(GET),
    _C.UPDATE_AND_CREATE_TOPIC: _topic(CREATE),
    _C.UPDATE_AND_CREATE_TOPIC_LIST: _topics,
    _C.UPDATE_AND_CREATE_STATIC_TOPIC: _topic(CREATE),
    _C.DELETE_TOPIC_IN_BROKER: _topic(DELETE),
    _C.GET_TOPIC_CONFIG: _topic(GET),
    _C.GET_TOPIC_STATS_INFO: _topic(GET),
    _C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _new_group,
    _C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _new_groups,
    _C.DELETE_SUBSCRIPTIONGROUP: _group(DELETE),
    _C.GET_SUBSCRIPTIONGROUP_CONFIG: _group(GET),
    _C.GET_CONSUME_STATS: _consume_stats,
    _C.GET_BROKER_CONSUME_STATS: _cluster(GET),
    _C.QUERY_CONSUME_TIME_SPAN: _both(GET),
    _C.QUERY_SUBSCRIPTION_BY_CONSUMER: _both(GET),
    _C.INVOKE_BROKER_TO_RESET_OFFSET: _both(UPDATE),
    _C.CLONE_GROUP_OFFSET: _cloned,
    _C.QUERY_TOPIC_CONSUME_BY_WHO: _topic(GET),
    _C.QUERY_TOPICS_BY_CONSUMER: _group(GET),
    _C.QUERY_CORRECTION_OFFSET: _correction,
    _C.UPDATE_AND_GET_GROUP_FORBIDDEN: _both(UPDATE),
    _C.EXCHANGE_BROKER_HA_INFO: _cluster(UPDATE),
    _C.GET_ALL_TOPIC_CONFIG: _cluster(LISTING),
    _C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _cluster(LISTING),
    _C.GET_ALL_CONSUMER_OFFSET: _cluster(GET),
    _C.GET_ALL_DELAY_OFFSET: _cluster(GET),
    _C.GET_TIMER_CHECK_POINT: _cluster(GET),
    _C.GET_TIMER_METRICS: _cluster(GET),
    _C.GET_BROKER_HA_STATUS: _cluster(GET),
    _C.GET_BROKER_EPOCH_CACHE: _cluster(GET),
    _C.REPLICA_STATE: _nothing,
    _C.FENCE: _cluster(UPDATE),
    _C.PROMOTE: _cluster(UPDATE),
    _C.SLAVE_LEAVES: _cluster(UPDATE),
    _C.READ_LOG: _cluster(UPDATE),  # the messages of all topics
    _C.READ_QUEUE: _topic(SUB),
    _C.SPLIT_RANGE: _topic(READ),
    _C.QUEUE_BOUNDS: _topic(READ),
    _C.STAGE: _staged,
    _C.PUBLISH: _sink,
    _C.FINISH_EPOCH: _sink,
    _C.ABORT_STAGE: _sink,
    _C.SINK_STATE: _sink,
    _C.GET_BROKER_CONFIG: _cluster(GET),
    _C.UPDATE_BROKER_CONFIG: _cluster(UPDATE),
    _C.GET_BROKER_RUNTIME_INFO: _cluster(GET),
    _C.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _cluster(LISTING),
    _C.VIEW_BROKER_STATS_DATA: _cluster(GET),
    _C.QUERY_CONSUME_QUEUE: _queue_entries,
    _C.DELETE_EXPIRED_COMMITLOG: _cluster(UPDATE),
    _C.CLEAN_EXPIRED_CONSUMEQUEUE: _cluster(UPDATE),
    _C.CLEAN_UNUSED_TOPIC: _cluster(UPDATE),
    _C.AUTH_CREATE_USER: _cluster(UPDATE),
    _C.AUTH_UPDATE_USER: _cluster(UPDATE),
    _C.AUTH_DELETE_USER: _cluster(UPDATE),
    _C.AUTH_GET_USER: _cluster(GET),
    _C.AUTH_LIST_USER: _cluster(GET),
    _C.AUTH_CREATE_ACL: _cluster(UPDATE),
    _C.AUTH_UPDATE_ACL: _cluster(UPDATE),
    _C.AUTH_DELETE_ACL: _cluster(UPDATE),
    _C.AUTH_GET_ACL: _cluster(GET),
    _C.AUTH_LIST_ACL: _cluster(GET),
    _C.GET_ALL_ACCESS: _cluster(UPDATE),  # and a super user: it has all passwords
    _C.CHECK_ACCESS: _checked,
}


@bodies.refusing
def needs_of(request: Command) -> list[Need]:
    """All needs of a request; the one of the cluster has no name.
    InvalidParameter: a field or the body cannot be read."""
    code = RequestCode(request.code)
    return list(RULES[code](header_of(request, headers.HEADERS[code]), request))
