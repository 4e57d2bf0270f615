"""Makes requests for brokers and nameservers from the schema. Pure: a seed gives the same ones.

Most fields of most requests are right, so that the wrong one is reached.
"""

from __future__ import annotations

import random
from typing import Any

from saturnmq.drills.fuzz.mutations import bent, spoiled, written
from saturnmq.protocol.batch import encode_batch_item
from saturnmq.protocol.batches import PARTS_MAX, BatchPart, encode_parts
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.header_fields import (
    ChoiceField,
    FlagField,
    Header,
    HeaderField,
    IdentityField,
    NumberField,
    TextField,
)
from saturnmq.protocol.headers import HEADERS

RIGHT = 0.8  # of the fields
TOPICS = ("orders", "absent", "%RETRY%readers", "%DLQ%readers", "SCHEDULE_TOPIC_XXXX", "TBW102")
NAMES = ("readers", "orders", "DefaultCluster", "broker-a", "a b", "ä", "x" * 255, "%", "@", "0")
PROPERTIES = (
    "",
    "TAGS\x01a\x02",
    "DELAY\x013\x02WAIT\x01true\x02",
    "\x01\x02",
    "a",
    "UNIQ_KEY\x01\x02",
)
ANYTHING = (None, "", " ", "-1", "9" * 400, "1e9", "true", "[]", "\x00", "\ud7ff\uffff", "%s%n")
QUEUE = {"topic": "orders", "brokerName": "broker-a", "queueId": 0}
SUBSCRIPTION = {
    "topic": "orders",
    "subString": "a || b",
    "expressionType": "TAG",
    "subVersion": 1,
    "codeSet": [97],
    "tagsSet": ["a"],
    "classFilterMode": False,
}
LOCKS = {"consumerGroup": "readers", "clientId": "me", "mqSet": [QUEUE]}
TOPIC = {"topicName": "orders", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "order": False}
VERSION = {"counter": 1, "stateVersion": 100_000, "timestamp": 1}
BODIES: dict[RequestCode, Any] = {
    RequestCode.HEART_BEAT: {
        "clientID": "me",
        "producerDataSet": [{"groupName": "writers"}],
        "consumerDataSet": [
            {
                "groupName": "readers",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "unitMode": False,
                "subscriptionDataSet": [SUBSCRIPTION],
            }
        ],
    },
    RequestCode.LOCK_BATCH_MQ: LOCKS,
    RequestCode.UNLOCK_BATCH_MQ: LOCKS,
    RequestCode.CHECK_CLIENT_CONFIG: {"clientId": "me", "subscriptionData": SUBSCRIPTION},
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: {
        "groupName": "readers",
        "consumeEnable": True,
        "retryQueueNums": 1,
        "retryMaxTimes": 16,
        "brokerId": 0,
        "whichBrokerWhenConsumeSlowly": 1,
        "groupSysFlag": 0,
        "consumeTimeoutMinute": 15,
        "attributes": {"+priority.factor": "5"},
        "groupRetryPolicy": {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000]}},
    },
    RequestCode.SPLIT_RANGE: [[0, 0, 10], [1, 0, 5]],
    RequestCode.REGISTER_BROKER: {
        "filterServerList": [],
        "topicConfigSerializeWrapper": {
            "dataVersion": VERSION,
            "topicConfigTable": {"orders": TOPIC},
        },
    },
    RequestCode.QUERY_DATA_VERSION: VERSION,
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: ["broker-a", "broker-b"],
}
SENDS = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)

Request = tuple[RequestCode, dict[str, str], bytes]


class RequestMaker:
    """Requests of these codes, drawn from `rng`."""

    def __init__(self, rng: random.Random, codes: list[RequestCode]) -> None:
        self._rng = rng
        self._codes = codes

    def draw(self) -> Request:
        """A code, the fields of its header, and a body."""
        code = self._rng.choice(self._codes)
        return code, self._header(HEADERS[code]), self._body(code)

    def _header(self, header: type[Header]) -> dict[str, str]:
        ext = {}
        for field in header.FIELDS.values():
            value = self._right(field) if self._rng.random() < RIGHT else self._wrong(field)
            if value is not None:
                ext[field.name] = value
        return ext

    def _right(self, field: HeaderField) -> str | None:
        rng = self._rng
        match field:
            case NumberField():
                near = [field.least, field.most, 0, 1, 2, 7, 100, 100_000, 1 << 20, 1 << 31]
                return str(rng.choice([n for n in near if field.least <= n <= field.most]))
            case TextField():
                if field.name in ("i", "properties"):
                    return rng.choice(
                        ("", "TAGS\x01a\x02", "DELAY\x013\x02WAIT\x01true\x02", "\x01\x02")
                    )
                if field.name in ("b", "topic"):
                    return rng.choice(TOPICS)
                return rng.choice(NAMES)[: field.most]
            case FlagField():
                return rng.choice(("true", "false", None))
            case ChoiceField():
                return rng.choice(field.words)
            case IdentityField():
                return rng.choice(("", "0" * 32, "a1" * 16))
        raise TypeError(f"the fuzzer knows no values of a {type(field).__name__}")

    def _wrong(self, field: HeaderField) -> str | None:
        rng = self._rng
        match field:
            case NumberField():
                return rng.choice((str(field.least - 1), str(field.most + 1), *ANYTHING))
            case TextField():
                return rng.choice(("x" * min(field.most + 1, 100_000), "\x01" * 20, *ANYTHING))
            case _:
                return rng.choice(ANYTHING)

    def _part(self) -> BatchPart:
        rng = self._rng
        body = self._batch()
        return BatchPart(
            topic=rng.choice(TOPICS if rng.random() < RIGHT else (*NAMES, "x" * 300)),
            queue_id=rng.choice((-(1 << 31), -1, 0, 1, 3, 4, 65_536, (1 << 31) - 1)),
            sys_flag=rng.choice((0, 1, 0x10, 0x30, 1 << 30, -1)),
            born_ms=rng.choice((-(1 << 63), -1, 0, 1, 1_700_000_000_000, (1 << 63) - 1)),
            body=body if rng.random() < RIGHT else spoiled(rng, body),
        )

    def _batch(self) -> bytes:
        rng = self._rng
        batch = bytearray()
        for _ in range(rng.randrange(1, 4)):
            encode_batch_item(batch, rng.randbytes(rng.randrange(40)), b"TAGS\x01a\x02")
        return bytes(batch)

    def _body(self, code: RequestCode) -> bytes:
        rng = self._rng
        if code in SENDS or code == RequestCode.STAGE:
            body = self._batch()
            return body if rng.random() < RIGHT else spoiled(rng, body)
        if code == RequestCode.SEND_BATCHES:
            body = encode_parts(self._part() for _ in range(rng.choice((1, 2, 8, PARTS_MAX + 1))))
            return body if rng.random() < RIGHT else spoiled(rng, body)
        if code not in BODIES:
            return b"" if rng.random() < RIGHT else rng.randbytes(20)
        document = BODIES[code]
        if rng.random() > RIGHT / 2:
            document = bent(rng, document)
        body = written(document)
        return body if rng.random() < RIGHT else spoiled(rng, body)


def codes_of(handlers: set[int]) -> list[RequestCode]:
    """The codes of the schema that a node answers, in a fixed order."""
    return [code for code in HEADERS if int(code) in handlers]
