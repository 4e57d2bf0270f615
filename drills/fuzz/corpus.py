"""Inputs that once ended, froze or filled a node, or raised what nobody foresaw. Each run of a
target begins with those of its kind; docs/withstood.md has the stories.

Their number stays small: a defect gets a test of its own, and an input here if a node or a reader
can be given it alone.
"""

from __future__ import annotations

from typing import NamedTuple

from saturnmq.protocol.codes import RequestCode

NINES = "9" * 400
_INTEGER_KEYS = b"{" + b",".join(b"%d:0" % number for number in range(70_000)) + b"}"
_STAGE = {"sink": "kept", "epoch": "0", "partition": "0", "attempt": "a", "seq": "0"}
_BROKER = {
    "clusterName": "DefaultCluster",
    "brokerName": "kept",
    "brokerAddr": "192.0.2.1:10911",
    "brokerId": "0",
}


class KeptRequest(NamedTuple):
    """One request. `refused`: it must not be answered with success."""

    what: str
    code: RequestCode
    ext: dict[str, str]
    body: bytes = b""
    refused: bool = True


def _topic(**changes: str) -> dict[str, str]:
    right = {"topic": "kept", "perm": "6", "readQueueNums": "1", "writeQueueNums": "1"}
    return {**right, "topicFilterType": "SINGLE_TAG", **changes}


def _groups(count: int) -> bytes:
    groups = b",".join(b'{"groupName":"g%d"}' % number for number in range(count))
    return b'{"clientID":"kept","producerDataSet":[%b]}' % groups


def _registered(epoch: int) -> bytes:
    return (
        b'{"topicConfigSerializeWrapper":{"dataVersion":{"counter":1,"stateVersion":%d,'
        b'"timestamp":1},"topicConfigTable":{}}}' % epoch
    )


OF_BROKERS = (
    *(
        KeptRequest(f"a topic whose {name} is no number", RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
        for name in ("perm", "readQueueNums", "writeQueueNums", "topicSysFlag")
        for ext in [_topic(**{name: NINES})]
    ),
    KeptRequest(
        "a group with a number of 60 digits",
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        {},
        b'{"groupName":"kept","retryMaxTimes":%b}' % (b"9" * 60),
    ),
    KeptRequest(
        "a group with 10^9 retry queues",
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        {},
        b'{"groupName":"kept","retryQueueNums":1000000000}',
    ),
    KeptRequest("FENCE with 400 digits", RequestCode.FENCE, {"epoch": NINES}),
    KeptRequest("PROMOTE with 400 digits", RequestCode.PROMOTE, {"epoch": NINES, "force": "true"}),
    *(
        KeptRequest(f"a heartbeat with {count} groups", RequestCode.HEART_BEAT, {}, _groups(count))
        for count in (20_000, 100_000)
    ),
    KeptRequest(
        "STAGE with a time of 400 digits",
        RequestCode.STAGE,
        {**_STAGE, "topic": "TBW102", "queueId": "0", "bornTimestamp": NINES},
    ),
    KeptRequest(
        "STAGE with a flag of 2^40",
        RequestCode.STAGE,
        {**_STAGE, "topic": "TBW102", "queueId": "0", "sysFlag": str(1 << 40)},
    ),
    KeptRequest(
        "FINISH_EPOCH with 2^62 - 1",
        RequestCode.FINISH_EPOCH,
        {"sink": "kept", "epoch": str((1 << 62) - 1)},
        refused=False,
    ),
    KeptRequest(
        "the offset of a queue that does not exist",
        RequestCode.UPDATE_CONSUMER_OFFSET,
        {"consumerGroup": "kept", "topic": "TBW102", "queueId": "99999", "commitOffset": "1"},
    ),
    KeptRequest("70,000 integer keys", RequestCode.SPLIT_RANGE, {"size": "1"}, _INTEGER_KEYS),
    KeptRequest("a header of 300 kB", RequestCode.GET_BROKER_HA_STATUS, {"unknown": "x" * 300_000}),
    KeptRequest(
        "a header of 2,000 fields",
        RequestCode.GET_BROKER_HA_STATUS,
        {f"unknown{number}": "x" for number in range(2_000)},
    ),
)
OF_NAMESERVERS = (
    KeptRequest(
        "a broker in an epoch that can be",
        RequestCode.REGISTER_BROKER,
        _BROKER,
        _registered(100_000),
        refused=False,
    ),
    *(
        KeptRequest(
            f"a broker in epoch {epoch}",
            RequestCode.REGISTER_BROKER,
            {**_BROKER, "brokerAddr": "192.0.2.2:10911"},
            _registered(epoch),
        )
        for epoch in (999_999_999, 1 << 62)
    ),
    KeptRequest(
        "another one says that a broker goes",
        RequestCode.UNREGISTER_BROKER,
        _BROKER,
        refused=False,
    ),
    *(
        KeptRequest("70,000 integer keys", code, _BROKER, _INTEGER_KEYS)
        for code in (RequestCode.QUERY_DATA_VERSION, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA)
    ),
    KeptRequest(
        "the election of a broker with an id of 400 digits",
        RequestCode.CONTROLLER_ELECT_MASTER,
        {**_BROKER, "brokerId": NINES, "designateElect": "true"},
    ),
)

CONDITIONS = (
    ("a > 0.5", {"a": "9" * 32_000 + "x"}),
    ("a = " + "9" * 4_301, {"a": "1"}),
    ("a = 1", {"a": "9" * 4_301}),
    ("(" * 300 + "a = 1" + ")" * 300, {"a": "1"}),
    (" OR ".join(f"a = '{number}'" for number in range(2_000)), {"a": "x"}),
)
"""A condition, and the properties of a message."""

_DEEP = b'{"a":' * 250 + b"1" + b"}" * 250
TABLES = (
    (
        "topics",
        b'{"topicConfigTable":{"kept":{"topicName":"kept","readQueueNums":1,"writeQueueNums":1,'
        b'"perm":%b}}}' % NINES.encode(),
    ),
    ("topics", b'{"topicConfigTable":{},"deletedTable":7}'),
    (
        "subscriptionGroup",
        b'{"subscriptionGroupTable":{"kept":{"groupName":"kept","newer":%b}}}' % _DEEP,
    ),
    (
        "subscriptionGroup",
        b'{"subscriptionGroupTable":{"kept":{"groupName":"kept","retryQueueNums":1000000000}}}',
    ),
    ("consumerOffset", b'{"offsetTable":{"kept@kept":{99999999999999999999:1}}}'),
    ("role", b'{"role":"MASTER","epoch":%b,"replicas":[{}]}' % NINES.encode()),
)
"""The name of a small file, and its content."""
