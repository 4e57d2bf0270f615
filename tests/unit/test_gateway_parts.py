"""The pure parts of the gateway: checks, settings, routes, handles and codes."""

from __future__ import annotations

import zlib

import pytest
from saturnmq.gateway import v2
from saturnmq.gateway.checks import (
    RESERVED,
    check_delivery,
    check_invisible,
    check_message,
    group_of,
    topic_of,
)
from saturnmq.gateway.codes import NOT_MASTER, CallRefused, code_of, common, failure, status
from saturnmq.gateway.handles import (
    ReceiptHandle,
    TransactionId,
    parse_handle,
    parse_transaction,
)
from saturnmq.gateway.messages import check_digest, send_request, type_of
from saturnmq.gateway.routes import assignments, endpoints, message_queues, types_of
from saturnmq.gateway.settings import check_settings, completed
from saturnmq.gateway.topics import GroupFacts, TopicFacts
from saturnmq.protocol.pop_handle import PopHandle
from saturnmq.protocol.properties import decode_properties
from saturnmq.protocol.retry_policy import CustomizedRetryPolicy, ExponentialRetryPolicy
from saturnmq.protocol.route import BrokerData, QueueData, TopicConfig, TopicRoute
from saturnmq.runtime.errors import (
    ConnectionLost,
    FlushDiskTimeout,
    NoPermission,
    SaturnError,
    SystemBusy,
    SystemError_,
    TopicNotExist,
)

Code = v2.Code
BODY_MAX = 4 << 20


def message(body: bytes = b"x", user: dict[str, str] | None = None, **system: object):
    found = v2.Message(topic=v2.Resource(name="T"), body=body, user_properties=user or {})
    found.system_properties.message_id = "ID"
    found.system_properties.MergeFrom(v2.SystemProperties(**system))
    return found


def refusal_of(work) -> int:
    with pytest.raises(CallRefused) as refused:
        work()
    assert str(refused.value)
    return refused.value.grpc_code


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (message(b""), Code.MESSAGE_BODY_EMPTY),
        (message(bytes(BODY_MAX + 1)), Code.MESSAGE_BODY_TOO_LARGE),
        (message(message_id=" "), Code.ILLEGAL_MESSAGE_ID),
        (message(tag=""), Code.ILLEGAL_MESSAGE_TAG),
        (message(tag="a|b"), Code.ILLEGAL_MESSAGE_TAG),
        (message(tag="a\x01b"), Code.ILLEGAL_MESSAGE_TAG),
        (message(keys=["good", " "]), Code.ILLEGAL_MESSAGE_KEY),
        (message(keys=["a\x02"]), Code.ILLEGAL_MESSAGE_KEY),
        (message(message_group=""), Code.ILLEGAL_MESSAGE_GROUP),
        (message(message_group="g" * 64), Code.ILLEGAL_MESSAGE_GROUP),
        (message(user={"KEYS": "x"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message(user={"TIMER_OUT_MS": "1"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message(user={"a": "\x02UNIQ_KEY\x01x"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message(user={"": "x"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message(user={f"p{n}": "x" for n in range(129)}), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (message(user={"a": "x" * (16 << 10)}), Code.MESSAGE_PROPERTIES_TOO_LARGE),
    ],
)
def test_a_message_with_a_fault_is_refused_with_the_code_of_the_fault(wrong, code) -> None:
    assert refusal_of(lambda: check_message(wrong, BODY_MAX)) == code


def test_a_message_at_its_limits_is_taken() -> None:
    properties = {f"p{n}": "x" * 100 for n in range(128)}
    check_message(message(bytes(BODY_MAX), properties, message_group="g" * 63), BODY_MAX)
    # Consumers see these, and may send them on with the message.
    check_message(message(user={"__SHARDINGKEY": "g", "__transactionId__": "t"}), BODY_MAX)


def test_a_recovery_duration_beyond_an_hour_is_refused() -> None:
    wrong = message()
    wrong.system_properties.orphaned_transaction_recovery_duration.FromSeconds(3601)
    assert refusal_of(lambda: check_message(wrong, BODY_MAX)) == Code.BAD_REQUEST


@pytest.mark.parametrize("name", ["", "a b", "é", "x" * 128, "rmq_sys_x", "TBW102"])
def test_a_topic_that_nobody_may_use_is_refused(name) -> None:
    assert refusal_of(lambda: topic_of(v2.Resource(name=name))) == Code.ILLEGAL_TOPIC


def test_a_topic_with_every_allowed_character_is_taken() -> None:
    assert topic_of(v2.Resource(name="a|B%9_-")) == "a|B%9_-"
    assert topic_of(v2.Resource(name="%DLQ%G")) == "%DLQ%G"


@pytest.mark.parametrize("name", ["", "a b", "x" * 121])
def test_a_group_with_a_wrong_name_is_refused(name) -> None:
    assert refusal_of(lambda: group_of(v2.Resource(name=name))) == Code.ILLEGAL_CONSUMER_GROUP


def test_times_out_of_their_range_are_refused() -> None:
    now_ms, day_ms = 1_700_000_000_000, 86_400_000
    check_delivery(now_ms + day_ms, now_ms)
    check_delivery(0, now_ms)  # in the past: at once
    assert refusal_of(lambda: check_delivery(now_ms + day_ms + 1, now_ms)) == (
        Code.ILLEGAL_DELIVERY_TIME
    )
    good = v2.ReceiveMessageRequest()
    good.invisible_duration.FromSeconds(10)
    assert check_invisible(good.invisible_duration) == 10_000
    for seconds in (0, 9, 12 * 3600 + 1, -5, 1 << 40):
        wrong = v2.ReceiveMessageRequest()
        wrong.invisible_duration.seconds = seconds
        refused = refusal_of(lambda wrong=wrong: check_invisible(wrong.invisible_duration))
        assert refused == Code.ILLEGAL_INVISIBLE_TIME


def test_the_type_of_a_message_follows_from_its_fields() -> None:
    delayed = message(message_group="g")
    delayed.system_properties.delivery_timestamp.FromSeconds(1)
    Type = v2.MessageType
    assert type_of(message()) == Type.NORMAL
    assert type_of(message(message_group="g")) == Type.FIFO
    assert type_of(delayed) == Type.DELAY
    assert type_of(message(message_type=Type.TRANSACTION)) == Type.TRANSACTION


def test_the_request_of_a_message_has_the_properties_that_remoting_knows() -> None:
    sent = message(
        b"body",
        {"mine": "1"},
        tag="A",
        keys=["k1", "k2"],
        message_group="g",
        trace_context="t",
        born_host="h",
        message_type=v2.MessageType.TRANSACTION,
    )
    sent.system_properties.born_timestamp.FromMilliseconds(42)
    sent.system_properties.orphaned_transaction_recovery_duration.FromSeconds(30)
    request = send_request(sent, "T", -1, 99)
    assert request.body == b"body"
    assert (request.ext["b"], request.ext["e"], request.ext["g"]) == ("T", "-1", "42")
    assert decode_properties(request.ext["i"].encode()) == {
        "mine": "1",
        "UNIQ_KEY": "ID",
        "TAGS": "A",
        "KEYS": "k1 k2",
        "__SHARDINGKEY": "g",
        "TRAN_MSG": "true",
        "PGROUP": "T",
        "CHECK_IMMUNITY_TIME_IN_SECONDS": "30",
        "TRACE_CONTEXT": "t",
        "__BORNHOST": "h",
    }


def test_a_wild_time_of_birth_is_replaced() -> None:
    sent = message()
    sent.system_properties.born_timestamp.seconds = -5
    assert send_request(sent, "T", 0, 99).ext["g"] == "99"
    sent.system_properties.born_timestamp.seconds = 1 << 62
    assert send_request(sent, "T", 0, 99).ext["g"] == "99"


def test_a_zlib_body_is_passed_on_as_compressed_and_another_one_refused() -> None:
    packed = message(zlib.compress(b"x" * 100), body_encoding=v2.Encoding.GZIP)
    request = send_request(packed, "T", 0, 1)
    assert request.body == packed.body
    assert request.ext["f"] == str(1 | 3 << 8)
    wrong = message(b"plain", body_encoding=v2.Encoding.GZIP)
    assert refusal_of(lambda: send_request(wrong, "T", 0, 1)) == Code.MESSAGE_CORRUPTED


def test_a_wrong_digest_is_refused_and_a_right_one_taken_in_either_case() -> None:
    digest = "9dd4e461268c8034f5c8564e155c67a6"  # MD5 of x
    for text in (digest, digest.upper(), ""):
        check_digest(message(body_digest=v2.Digest(type=v2.DigestType.MD5, checksum=text)))
    wrong = message(body_digest=v2.Digest(type=v2.DigestType.MD5, checksum=digest[::-1]))
    assert refusal_of(lambda: check_digest(wrong)) == Code.MESSAGE_CORRUPTED


def test_reserved_names_are_those_of_the_proxy_at_least() -> None:
    theirs = (
        "TRACE_ON MSG_REGION KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP "
        "MIN_OFFSET MAX_OFFSET BUYER_ID ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG "
        "RECONSUME_TIME UNIQ_KEY MAX_RECONSUME_TIMES CONSUME_START_TIME POP_CK POP_CK_OFFSET "
        "1ST_POP_TIME TRAN_PREPARED_QUEUE_OFFSET DUP_INFO EXTEND_UNIQ_INFO INSTANCE_ID "
        "CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE "
        "INNER_MULTI_QUEUE_OFFSET TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_DELIVER_MS "
        "TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY "
        "TIMER_DELAY_LEVEL __BORNHOST BORN_TIMESTAMP DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID "
        "__CRC32#"
    )
    assert set(theirs.split()) <= RESERVED
    surfacing = {"__SHARDINGKEY", "__transactionId__", "TRACE_CONTEXT"}
    assert not surfacing & RESERVED


# settings


def settings_of(kind: int, language: str = "JAVA", **changes: object):
    asked = v2.Settings(client_type=kind, user_agent=v2.UA(language=v2.Language[language]))
    asked.request_timeout.FromSeconds(3)
    asked.access_point.addresses.add(host="h", port=1)
    if kind == v2.ClientType.PRODUCER:
        asked.publishing.topics.add(name="T", resource_namespace="ns")
    else:
        asked.subscription.group.name = "G"
        asked.subscription.subscriptions.add().topic.name = "T"
    return asked


def test_a_producer_gets_an_exponential_backoff_and_a_limit_of_bodies() -> None:
    asked = settings_of(v2.ClientType.PRODUCER)
    found = completed(asked, body_max=BODY_MAX, group=GroupFacts())
    assert found.backoff_policy.max_attempts == 3
    assert found.backoff_policy.WhichOneof("strategy") == "exponential_backoff"
    assert found.publishing.max_body_size == BODY_MAX
    assert found.publishing.validate_message_type
    assert list(found.publishing.topics) == list(asked.publishing.topics)
    assert found.access_point == asked.access_point
    assert found.request_timeout == asked.request_timeout
    assert found.HasField("metric")
    assert not found.metric.on


@pytest.mark.parametrize(
    ("language", "strategy"),
    [("NODE_JS", "exponential_backoff"), ("PYTHON", "customized_backoff")],
)
def test_a_push_consumer_gets_the_backoff_that_its_language_reads(language, strategy) -> None:
    asked = settings_of(v2.ClientType.PUSH_CONSUMER, language)
    asked.subscription.long_polling_timeout.FromSeconds(7)
    found = completed(asked, body_max=BODY_MAX, group=GroupFacts(fifo=True, attempts=4))
    assert found.backoff_policy.max_attempts == 4
    assert found.backoff_policy.WhichOneof("strategy") == strategy
    assert found.subscription.fifo
    assert found.subscription.receive_batch_size == 32
    assert found.subscription.long_polling_timeout.seconds == 20
    assert found.subscription.group == asked.subscription.group
    assert list(found.subscription.subscriptions) == list(asked.subscription.subscriptions)


LONG_WAITS_MS = 1_200_000, 1_800_000, 3_600_000, 7_200_000
WAITS = CustomizedRetryPolicy((1_500, 30_000))
GROWING = ExponentialRetryPolicy(500, 2_000, 3)
HALF_A_DAY_MS = 12 * 3_600_000  # the longest invisible time that a client may ask for


@pytest.mark.parametrize(
    ("policy", "language", "waits_ms"),
    [
        (
            CustomizedRetryPolicy(),
            "JAVA",
            [1000, 5000, 10_000, 30_000, *range(60_000, 600_001, 60_000), *LONG_WAITS_MS],
        ),
        (WAITS, "JAVA", [1_500, 30_000]),
        (WAITS, "PYTHON", [1_500, 30_000]),
        (CustomizedRetryPolicy((10 * HALF_A_DAY_MS,)), "GOLANG", [HALF_A_DAY_MS]),
        (GROWING, "PYTHON", [500, 1_500, 2_000]),
    ],
)
def test_a_push_consumer_is_told_the_waits_of_its_group(policy, language, waits_ms) -> None:
    told = told_policy(policy, language).customized_backoff
    assert [each.ToMilliseconds() for each in told.next] == waits_ms


@pytest.mark.parametrize(
    ("policy", "language", "told_ms"),
    [
        (GROWING, "JAVA", (500, 2_000, 3.0)),
        (GROWING, "NODE_JS", (500, 2_000, 3.0)),
        (WAITS, "NODE_JS", (1_500, 30_000, 2.0)),
        (CustomizedRetryPolicy(), "NODE_JS", (5_000, 7_200_000, 2.0)),
    ],
)
def test_a_push_consumer_is_told_the_growth_of_the_waits_of_its_group(
    policy, language, told_ms
) -> None:
    told = told_policy(policy, language).exponential_backoff
    assert (told.initial.ToMilliseconds(), told.max.ToMilliseconds(), told.multiplier) == told_ms


def told_policy(policy, language):
    asked = settings_of(v2.ClientType.PUSH_CONSUMER, language)
    group = GroupFacts(attempts=4, retry_policy=policy)
    return completed(asked, body_max=BODY_MAX, group=group).backoff_policy


@pytest.mark.parametrize(("asked_s", "found_s"), [(1, 5), (7, 7), (60, 20)])
def test_a_simple_consumer_keeps_its_time_of_waiting_within_bounds(asked_s, found_s) -> None:
    asked = settings_of(v2.ClientType.SIMPLE_CONSUMER)
    asked.subscription.long_polling_timeout.FromSeconds(asked_s)
    found = completed(asked, body_max=BODY_MAX, group=GroupFacts())
    assert found.subscription.long_polling_timeout.seconds == found_s


@pytest.mark.parametrize(
    ("kind", "part", "code"),
    [
        (None, "publishing", Code.UNRECOGNIZED_CLIENT_TYPE),
        (0, "publishing", Code.UNRECOGNIZED_CLIENT_TYPE),
        (77, "subscription", Code.UNRECOGNIZED_CLIENT_TYPE),
        (1, None, Code.BAD_REQUEST),
        (1, "subscription", Code.BAD_REQUEST),
        (2, "publishing", Code.BAD_REQUEST),
        (3, "publishing", Code.BAD_REQUEST),
        (4, None, Code.BAD_REQUEST),
        (5, "subscription", Code.NOT_IMPLEMENTED),
        (6, "subscription", Code.NOT_IMPLEMENTED),
    ],
)
def test_settings_of_no_client_are_refused(kind, part, code) -> None:
    asked = v2.Settings(client_type=kind)
    if part is not None:
        getattr(asked, part).SetInParent()
    assert refusal_of(lambda: check_settings(asked)) == code


# routes

ROUTE = TopicRoute(
    [
        QueueData("b", 2, 2),
        QueueData("a", 3, 2),
        QueueData("slaves-only", 4, 4),
        QueueData("read", 2, 2, perm=4),
    ],
    [
        BrokerData("c", "a", {0: "10.0.0.1:1", 1: "10.0.0.2:1"}),
        BrokerData("c", "b", {0: "10.0.0.3:1"}),
        BrokerData("c", "slaves-only", {1: "10.0.0.4:1"}),
        BrokerData("c", "read", {0: "10.0.0.5:1"}),
    ],
)
TOPIC = v2.Resource(name="T", resource_namespace="ns")


def test_a_route_names_masters_only_in_an_order_that_stays() -> None:
    asked = []

    def endpoints_of(broker: str):
        asked.append(broker)
        return endpoints("1.2.3.4:5")

    found = message_queues(TOPIC, ROUTE, [1], endpoints_of)
    both, read = v2.Permission.READ_WRITE, v2.Permission.READ
    assert [(q.broker.name, q.id, q.permission) for q in found] == [
        ("a", 0, both), ("a", 1, both), ("a", 2, read),
        ("b", 0, both), ("b", 1, both),
        ("read", 0, read), ("read", 1, read),
    ]  # fmt: skip
    assert all(queue.topic == TOPIC and queue.broker.id == 0 for queue in found)
    other = TopicRoute(ROUTE.queues[::-1], ROUTE.brokers[::-1])
    assert message_queues(TOPIC, other, [1], endpoints_of) == found
    assert set(asked) == {"a", "b", "read"}


def test_an_assignment_is_one_for_each_broker_or_for_each_queue_in_order() -> None:
    def ids(fifo: bool, address: str = "h:1") -> list[tuple[str, int]]:
        found = assignments(TOPIC, ROUTE, [1], lambda _: endpoints(address), fifo=fifo)
        queues = [each.message_queue for each in found]
        return [(queue.broker.name, queue.id) for queue in queues]

    assert [broker for broker, _ in ids(False)] == ["a", "b", "read"]
    assert all(any_queue < 0 for _, any_queue in ids(False))
    assert ids(False) == ids(False)
    # Node's client (1.0.8) takes up a broker's new address only with another id.
    assert not set(ids(False)) & set(ids(False, "h:2"))
    assert ids(True) == [
        *(("a", n) for n in range(3)), *((broker, n) for broker in ("b", "read") for n in (0, 1)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("address", "scheme"),
    [("1.2.3.4:5", "IPv4"), ("[::1]:5", "IPv6"), ("broker.example:5", "DOMAIN_NAME")],
)
def test_an_address_has_the_scheme_that_it_is_written_in(address, scheme) -> None:
    found = endpoints(address)
    assert found.scheme == v2.AddressScheme[scheme]
    assert [(each.host, each.port) for each in found.addresses] == [
        (address.rpartition(":")[0].strip("[]"), 5)
    ]


@pytest.mark.parametrize(
    ("attribute", "types"),
    [
        (None, [1]), ("NORMAL", [1]), ("FIFO", [2]), ("DELAY", [3]), ("TRANSACTION", [4]),
        ("MIXED", [1, 2, 3, 4]), ("UNSPECIFIED", [1]), ("SOMETHING", [1]),
    ],
)  # fmt: skip
def test_a_topic_takes_the_types_that_its_attribute_says(attribute, types) -> None:
    attributes = {"message.type": attribute} if attribute else {}
    assert types_of(TopicConfig("T", attributes=attributes)) == types
    assert types_of(None) == [1]


def test_a_message_group_has_one_queue_in_the_cluster() -> None:
    facts = TopicFacts(ROUTE, [2])
    places = {f"group-{n}": facts.place_of(f"group-{n}") for n in range(100)}
    assert set(places.values()) == {("a", 0), ("a", 1), ("b", 0), ("b", 1)}
    again = TopicFacts(TopicRoute(ROUTE.queues[::-1], ROUTE.brokers[::-1]), [2])
    assert all(again.place_of(group) == place for group, place in places.items())


# handles and codes


def test_a_handle_survives_its_text_and_a_forged_one_is_refused() -> None:
    handle = ReceiptHandle(
        PopHandle(1, 1_700_000_000_000, 30_000, 0, 1, "broker-a", 3, 77), 123_456
    )
    assert parse_handle(str(handle)) == handle
    good = str(handle)
    for wrong in (
        "",
        " ",
        good + " 1",
        good.rpartition(" ")[0],
        good.replace("77", "x"),
        "9" * 2000,
    ):
        assert refusal_of(lambda wrong=wrong: parse_handle(wrong)) == Code.INVALID_RECEIPT_HANDLE


def test_the_id_of_a_transaction_survives_its_text_and_a_forged_one_is_refused() -> None:
    for message_id, broker in (("01AB", "broker-a"), ("my-own-id", "b"), ("é", "a-b-c")):
        found = TransactionId(message_id, 5, 600, broker)
        assert parse_transaction(str(found), message_id) == found
        for wrong, of in ((str(found), "other"), (message_id, message_id), (str(found), "")):
            refused = refusal_of(lambda wrong=wrong, of=of: parse_transaction(wrong, of))
            assert refused == Code.INVALID_TRANSACTION_ID
    assert refusal_of(lambda: parse_transaction("ID-x-1-b", "ID")) == Code.INVALID_TRANSACTION_ID
    assert refusal_of(lambda: parse_transaction("ID--1-1-b", "ID")) == Code.INVALID_TRANSACTION_ID


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TopicNotExist("x"), Code.TOPIC_NOT_FOUND),
        (NoPermission("x"), Code.FORBIDDEN),
        (SystemBusy("[OVERLOAD]"), Code.TOO_MANY_REQUESTS),
        (SystemBusy(f"{NOT_MASTER}no master"), Code.HA_NOT_AVAILABLE),
        (FlushDiskTimeout(), Code.MASTER_PERSISTENCE_TIMEOUT),
        (ConnectionLost("x"), Code.PROXY_TIMEOUT),
        (SystemError_("x"), Code.INTERNAL_SERVER_ERROR),
        (SaturnError("x", code=12345), Code.INTERNAL_SERVER_ERROR),
        (CallRefused(Code.ILLEGAL_TOPIC, "x"), Code.ILLEGAL_TOPIC),
    ],
)
def test_an_error_of_remoting_has_a_code_of_grpc(error, code) -> None:
    assert code_of(error) == code
    assert failure(error).code == code


def test_results_that_differ_are_told_as_such() -> None:
    good, bad = status(Code.OK), status(Code.FORBIDDEN, "why")
    assert common([good, good]) == good
    assert common([bad]) == bad
    assert common([good, bad]).code == Code.MULTIPLE_RESULTS
