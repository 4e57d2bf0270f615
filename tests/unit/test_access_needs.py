"""The accesses that requests need."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from saturnmq.broker.access.needs import RULES, needs_of
from saturnmq.broker.handlers import requests
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.headers import HEADERS
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import InvalidParameter

C = RequestCode
RETRY = "%RETRY%g"


def needs(code: int, ext: dict[str, Any] | None = None, body: Any = b"") -> set[str]:
    data = body if isinstance(body, bytes) else fastjson.dumps(body)
    fields = {name: str(value) for name, value in (ext or {}).items()}
    return {str(each) for each in needs_of(Command.request(code, fields, data))}


def test_every_request_that_is_served_has_a_rule() -> None:
    """The table of services is read from the source: a service needs a whole broker."""
    source = Path(requests.__file__).read_text()
    served = {RequestCode[name] for name in re.findall(r"^ +code\.([A-Z0-9_]+): s\.", source, re.M)}
    assert len(served) > 90
    assert RULES.keys() == served
    assert RULES.keys() <= HEADERS.keys()


@pytest.mark.parametrize(
    ("code", "ext", "body", "expected"),
    [
        (C.SEND_MESSAGE_V2, {"a": "p", "b": "orders"}, b"x", {"Pub of Topic:orders"}),
        (C.SEND_MESSAGE, {"producerGroup": "p", "topic": "orders"}, b"", {"Pub of Topic:orders"}),
        (C.SEND_MESSAGE_V2, {"a": "g", "b": RETRY}, b"x", {"Sub of Group:g"}),
        (C.SEND_MESSAGE_V2, {"a": "mine", "b": RETRY}, b"x", {"Sub of Group:g"}),
        (C.SEND_MESSAGE_V2, {"a": "g", "b": "%DLQ%g"}, b"x", {"Pub of Topic:%DLQ%g"}),
        (
            C.HEART_BEAT,
            {},
            {
                "clientID": "c",
                "producerDataSet": [{"groupName": "p"}],
                "consumerDataSet": [
                    {
                        "groupName": "g",
                        "subscriptionDataSet": [{"topic": "orders"}, {"topic": RETRY}],
                    }
                ],
            },
            {"Sub of Group:g", "Sub of Topic:orders"},
        ),
        (C.HEART_BEAT, {}, {"clientID": "c", "producerDataSet": [{"groupName": "p"}]}, set()),
        (
            C.HEART_BEAT,
            {},
            {
                "consumerDataSet": [
                    {"groupName": "g", "subscriptionDataSet": [{"topic": RETRY + "2"}]}
                ]
            },
            {"Sub of Group:g", "Sub of Group:g2"},
        ),
        (
            C.LOCK_BATCH_MQ,
            {},
            {"consumerGroup": "g", "mqSet": [{"topic": "orders"}, {"topic": RETRY}]},
            {"Sub of Group:g", "Sub of Topic:orders"},
        ),
        (
            C.UNLOCK_BATCH_MQ,
            {},
            {"consumerGroup": "g", "mqSet": [{"topic": "orders"}]},
            {"Sub of Group:g", "Sub of Topic:orders"},
        ),
        (C.UNREGISTER_CLIENT, {"clientID": "c", "producerGroup": "p"}, b"", set()),
        (C.UNREGISTER_CLIENT, {"clientID": "c", "consumerGroup": "g"}, b"", {"Sub of Group:g"}),
        (
            C.CHECK_CLIENT_CONFIG,
            {},
            {"group": "g", "subscriptionData": {"topic": "orders"}},
            {"Sub of Group:g", "Sub of Topic:orders"},
        ),
        (
            C.BATCH_ACK_MESSAGE,
            {},
            {"acks": [{"c": "g", "t": "orders"}, {"c": "g", "t": "orders"}, {"c": "h", "t": "b"}]},
            {"Sub of Group:g", "Sub of Topic:orders", "Sub of Group:h", "Sub of Topic:b"},
        ),
        (
            C.UPDATE_AND_CREATE_TOPIC_LIST,
            {},
            {"topicConfigList": [{"topicName": "a"}, {"topicName": "b"}]},
            {"Create of Topic:a", "Create of Topic:b"},
        ),
        (
            C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            {},
            {"groupConfigList": [{"groupName": "a"}]},
            {"Create of Group:a"},
        ),
        (C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, {"groupName": "a"}, {"Create of Group:a"}),
        (
            C.GET_CONSUME_STATS,
            {"consumerGroup": "g", "topicList": "a;b"},
            b"",
            {"Get of Group:g", "Get of Topic:a", "Get of Topic:b"},
        ),
        (
            C.CLONE_GROUP_OFFSET,
            {"srcGroup": "a", "destGroup": "b", "topic": "t"},
            b"",
            {"Get of Group:a", "Update of Group:b", "Update of Topic:t"},
        ),
        (C.GET_BROKER_CONFIG, {}, b"", {"Get of Cluster:"}),
        (C.UPDATE_BROKER_CONFIG, {}, b"", {"Update of Cluster:"}),
        (C.AUTH_CREATE_USER, {"username": "bob"}, b"{}", {"Update of Cluster:"}),
        (C.GET_ALL_ACCESS, {}, b"", {"Update of Cluster:"}),
        (C.CHECK_ACCESS, {}, b"", set()),
        (C.CHECK_ACCESS, {"topic": "t"}, b"", {"Get/Pub/Sub of Topic:t"}),
        (C.CHECK_ACCESS, {"topic": "t", "saturnPublishes": "true"}, b"", {"Pub of Topic:t"}),
        (
            C.QUERY_ASSIGNMENT,
            {},
            {"consumerGroup": "g", "topic": "orders", "clientId": "c"},
            {"Sub of Group:g", "Sub of Topic:orders"},
        ),
    ],
)
def test_a_request_needs(code: int, ext: dict[str, Any], body: Any, expected: set[str]) -> None:
    assert needs(code, ext, body) == expected


PULL = {"queueId": 0, "queueOffset": 0, "maxMsgNums": 1, "sysFlag": 0}


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("orders", {"Sub of Group:g", "Sub of Topic:orders"}),
        (RETRY, {"Sub of Group:g"}),
        (f"{RETRY}_orders", {"Sub of Group:g", "Sub of Group:g_orders"}),
        (f"{RETRY}+orders", {"Sub of Group:g", "Sub of Group:g+orders"}),
        ("%RETRY%other", {"Sub of Group:g", "Sub of Group:other"}),
        ("%DLQ%g", {"Sub of Group:g", "Sub of Topic:%DLQ%g"}),
    ],
)
def test_a_group_reads_its_own_retry_topic_and_no_other(topic: str, expected: set[str]) -> None:
    ext = {"consumerGroup": "g", "topic": topic, **PULL}
    assert needs(C.PULL_MESSAGE, ext) == expected
    assert needs(C.LITE_PULL_MESSAGE, ext) == expected


@pytest.mark.parametrize("mark", ["_", "+"])
def test_a_group_acknowledges_what_came_again_of_a_topic(mark: str) -> None:
    ext = {"consumerGroup": "g", "topic": f"{RETRY}{mark}orders", "queueId": 0, "offset": 0}
    ext |= {"extraInfo": "x", "invisibleTime": 1000}
    expected = {"Sub of Group:g", "Sub of Topic:orders"}
    assert needs(C.ACK_MESSAGE, ext) == needs(C.CHANGE_MESSAGE_INVISIBLETIME, ext) == expected
    acks = {"acks": [{"c": "g", "t": f"{RETRY}{mark}orders"}]}
    assert needs(C.BATCH_ACK_MESSAGE, {}, acks) == expected


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", {"consumerDataSet": 3}, {"consumerDataSet": [3]}]
)
def test_a_body_that_cannot_be_read_is_refused(body: Any) -> None:
    with pytest.raises(InvalidParameter):
        needs(C.HEART_BEAT, {}, body)
