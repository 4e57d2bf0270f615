"""JSON bodies of requests: what is taken, and that everything else is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from saturnmq.broker import bodies
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import InvalidParameter
from saturnmq.runtime.steps import at_once

SUBSCRIPTION = {
    "classFilterMode": False,
    "codeSet": [97, "98"],
    "expressionType": "TAG",
    "subString": "a || b",
    "subVersion": "12",
    "tagsSet": ["a", "b"],
    "topic": "orders",
}
CONSUMER = {
    "groupName": "readers",
    "consumeType": "CONSUME_PASSIVELY",
    "messageModel": "CLUSTERING",
    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
    "subscriptionDataSet": [SUBSCRIPTION],
}
BEAT = {
    "clientID": "me",
    "producerDataSet": [{"groupName": "writers"}],
    "consumerDataSet": [CONSUMER],
}
LOCKS = {
    "consumerGroup": "readers",
    "clientId": "me",
    "mqSet": [{"topic": "orders", "brokerName": "broker-a", "queueId": "1"}],
}


def read_heartbeat(request: Command) -> bodies.Heartbeat:
    return at_once(bodies.heartbeat(request))


def read_locks(request: Command) -> bodies.Locks:
    return at_once(bodies.locks(request))


def read_subscription_to_check(request: Command) -> Any:
    return at_once(bodies.subscription_to_check(request))


def request(body: Any) -> Command:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Command.request(RequestCode.HEART_BEAT, {}, raw)


def test_a_heartbeat_is_read_with_numbers_as_numbers() -> None:
    beat = read_heartbeat(request(BEAT))
    assert (beat.client_id, beat.producer_groups, beat.liveness_only) == ("me", ("writers",), False)
    (consumer,) = beat.consumers
    assert (consumer.group, consumer.message_model) == ("readers", "CLUSTERING")
    assert consumer.subscriptions == ({**SUBSCRIPTION, "codeSet": [97, 98], "subVersion": 12},)
    assert fastjson.dumps(consumer.subscriptions), "an operator asks for it"


def test_a_heartbeat_may_leave_everything_out() -> None:
    assert read_heartbeat(request({})) == bodies.Heartbeat("", (), (), liveness_only=False)
    found = read_heartbeat(request({"consumerDataSet": [{"groupName": "G"}], "withoutSub": True}))
    assert found.liveness_only
    assert found.consumers == (bodies.Consumer("G", "", "", "", ()),)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"clientID": 7}, "clientID is 7, not a text"),
        ({"producerDataSet": 7}, "producerDataSet is 7, not a list of at most 1000"),
        ({"producerDataSet": [{}] * 1001}, "a JSON list of 1001, not a list of at most 1000"),
        ({"producerDataSet": [7]}, "a producer is 7, not an object"),
        ({"consumerDataSet": ["x"]}, "a consumer is 'x', not an object"),
        ({"consumerDataSet": [{"groupName": "a b"}]}, "outside a-z"),
        ({"consumerDataSet": [{**CONSUMER, "consumeType": []}]}, "consumeType is a JSON list of 0"),
        ({"consumerDataSet": [{**CONSUMER, "subscriptionDataSet": [1]}]}, "a subscription is 1"),
    ],
)
def test_a_heartbeat_of_another_shape_is_refused_by_name(change: Any, told: str) -> None:
    with pytest.raises(InvalidParameter, match=told):
        read_heartbeat(request({**BEAT, **change}))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"subVersion": "x"}, "subVersion is 'x', not a number"),
        ({"codeSet": [1 << 63]}, "a tag's code is"),
        ({"codeSet": [None]}, "a tag's code is None"),
        ({"tagsSet": [7]}, "tagsSet is 7, not a text"),
        ({"subString": ["a"]}, "subString is a JSON list"),
        ({"topic": None, "expressionType": 5}, "expressionType is 5"),
    ],
)
def test_a_subscription_of_another_shape_is_refused_by_name(change: Any, told: str) -> None:
    with pytest.raises(InvalidParameter, match=told):
        read_subscription_to_check(request({"subscriptionData": {**SUBSCRIPTION, **change}}))


def test_locks_are_read_and_of_another_shape_refused() -> None:
    queue = MessageQueue("orders", "broker-a", 1)
    assert read_locks(request(LOCKS)) == bodies.Locks("readers", "me", (queue,))
    for change, told in (
        ({"mqSet": [{"topic": "orders"}]}, "brokerName is None, not a text"),
        ({"mqSet": [{**LOCKS["mqSet"][0], "queueId": -1}]}, "queueId is -1, not a number from 0"),
        ({"mqSet": {"": None}}, "mqSet is a JSON dict of 1, not a list"),
        ({"clientId": {}}, "clientId is a JSON dict"),
    ):
        with pytest.raises(InvalidParameter, match=told):
            read_locks(request({**LOCKS, **change}))


@pytest.mark.parametrize("raw", [b"", b"7", b"[]", b"{", b'"x"', b"\xff", b'{"a":' * 2000])
def test_a_body_that_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidParameter, match="the body is not"):
        bodies.document(request(raw))


def test_a_number_of_more_than_64_bits_can_be_written_again() -> None:
    found = bodies.document(request(b'{"x":%d,"a":{1:2}}' % 2**70))
    assert found == {"x": float(2**70), "a": {"1": 2}}
    assert fastjson.dumps(found)


def retrying(delays: object, kind: str = "customized") -> dict[str, Any]:
    return {"groupRetryPolicy": {"type": kind.upper(), f"{kind}RetryPolicy": delays}}


@pytest.mark.parametrize(
    "policy",
    [
        {},
        {"groupRetryPolicy": None},
        retrying({"next": [0, 1000, 2**40]}),
        retrying({"initial": 5000, "max": 7_200_000, "multiplier": 2}, "exponential"),
        retrying(None, "exponential"),
    ],
)
def test_a_retry_policy_of_rocketmq_is_kept_as_it_is(policy: dict[str, Any]) -> None:
    _, settings = bodies.group(request({"groupName": "G", **policy}))
    wanted = {name: value for name, value in policy.items() if value is not None}
    assert settings == {"groupName": "G", **wanted}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"groupName": ""}, "the group name is empty"),
        ({"retryQueueNums": 10**9}, "retryQueueNums is 1000000000, not a number .* to 1024"),
        ({"retryMaxTimes": 1 << 31}, "retryMaxTimes is"),
        ({"brokerId": -1}, "brokerId is -1"),
        ({"consumeEnable": "yes"}, "consumeEnable is 'yes', not true or false"),
        ({"attributes": ["+a=b"]}, "attributes is"),
        ({"attributes": {"+a": 5}}, r"attribute \+a is 5"),
        ({"groupRetryPolicy": "CUSTOMIZED"}, "groupRetryPolicy is 'CUSTOMIZED'"),
        ({"groupRetryPolicy": {"type": "LINEAR"}}, "the type of groupRetryPolicy is 'LINEAR'"),
        (retrying({"next": []}), "next of customizedRetryPolicy names no delay"),
        (retrying({"next": [1000, -1]}), "a delay of next is -1"),
        (retrying({"next": [1] * 1001}), "next is .*, not a list of at most 1000"),
        (retrying({"next": 7}), "next is 7"),
        (retrying({"initial": -5}, "exponential"), "'initial'.* -5|initial.* -5"),
        (retrying({"multiplier": "two"}, "exponential"), "multiplier"),
    ],
)
def test_settings_of_a_group_out_of_their_bounds_are_refused(change: Any, told: str) -> None:
    with pytest.raises(InvalidParameter, match=told):
        bodies.group(request({"groupName": "G", **change}))
    several = {"groupConfigList": [{"groupName": "F"}, {"groupName": "G", **change}]}
    with pytest.raises(InvalidParameter, match=told):
        at_once(bodies.groups(request(several)))


def test_settings_of_a_group_are_taken_as_what_they_mean_and_what_we_do_not_know_is_kept() -> None:
    sent = {"groupName": "G", "retryQueueNums": "2", "consumeEnable": "False", "newer": [1]}
    name, settings = bodies.group(request({**sent, "attributes": None}))
    assert name == "G"
    assert settings == {**sent, "retryQueueNums": 2, "consumeEnable": False}


@pytest.mark.parametrize("depth", [230, 253])
def test_settings_that_could_not_be_written_within_their_table_are_refused(depth: int) -> None:
    """They could be written alone and were taken; then no group could be saved any more."""
    deep: Any = []
    for _ in range(depth):
        deep = [deep]
    sent = request({"groupName": "G", "newer": deep})
    if depth < 240:
        fastjson.dumps({"subscriptionGroupTable": {"G": bodies.group(sent)[1]}})
        return
    with pytest.raises(InvalidParameter, match="Recursion limit"):
        bodies.group(sent)


def test_a_large_body_is_read_in_steps() -> None:
    consumers = [{**CONSUMER, "subscriptionDataSet": [SUBSCRIPTION] * 200}, *[CONSUMER] * 100]
    work = bodies.heartbeat(request({**BEAT, "consumerDataSet": consumers}))
    steps = sum(1 for _ in work)
    assert steps > 300 / bodies.SUBSCRIPTIONS
    beat = read_heartbeat(request({**BEAT, "consumerDataSet": consumers}))
    assert [len(each.subscriptions) for each in beat.consumers] == [200, *[1] * 100]
    queues = [{**LOCKS["mqSet"][0], "queueId": number} for number in range(1_000)]
    steps = sum(1 for _ in bodies.locks(request({**LOCKS, "mqSet": queues})))
    assert steps >= 1_000 / bodies.QUEUES
    assert len(read_locks(request({**LOCKS, "mqSet": queues})).queues) == 1_000
