"""What goes to a broker when a message failed: its offset, or where that fails all of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from consumer_world import HOST
from frame_rig import plain_frame
from saturnmq.client.consumer.results import DEAD_LETTER
from saturnmq.client.consumer.send_back import SendBack
from saturnmq.client.core import ClientCore
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.message import MessageQueue, ReceivedMessage
from saturnmq.protocol.properties import decode_properties, encode_properties
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import ConnectionLost, error_for

BACK, SEND = 36, 310
RETRY = "%RETRY%G"


def failed(*, sys_flag: int = 0, **properties: str) -> ReceivedMessage:
    """A message of topic T on broker `a` that was delivered three times."""
    frame = plain_frame(
        physical_offset=4711,
        queue_offset=12,
        queue_id=5,
        flag=9,
        sys_flag=sys_flag,
        born_host=HOST,
        store_host=HOST,
        reconsume_times=2,
        body=b"body",
        properties=bytes(encode_properties({"UNIQ_KEY": "U", **properties})),
    )
    (message,) = decode_frames(frame, True, "a", frozenset())
    return message


class Brokers:
    """What SendBack uses of ClientCore, and what it asked; `answers` gives a response code, or
    None: no answer."""

    client_id = "me"

    def __init__(
        self, answers: Callable[[int], int | None], *names: str, masters: str = "abcd"
    ) -> None:
        self.runtime: Any = self
        self.random = random.Random(7)
        self.answers = answers
        self.masters = masters
        self.retry_queues = [MessageQueue(RETRY, name, 3) for name in names]
        self.asked: list[tuple[str, Command]] = []

    def now_ms(self) -> int:
        return 1_700_000_000_000

    async def route(self, topic: str, *, create: bool) -> None:
        assert (topic, create) == (RETRY, True), "a new topic may be made"

    def publish_queues(self, topic: str) -> list[MessageQueue]:
        return self.retry_queues if topic == RETRY else []

    master_address = ClientCore.master_address

    def broker_address(self, name: str) -> str | None:
        return f"{name}:1" if name in self.masters else None

    async def invoke(
        self, address: str, request: Command, timeout_s: float, ok: Any = frozenset({0})
    ) -> None:
        assert 0 < timeout_s < 60
        self.asked.append((address, request))
        code = self.answers(request.code)
        if code is None:
            raise ConnectionLost(f"{address} does not answer")
        if code not in ok:
            raise error_for(code, "refused")


def send_back(
    brokers: Any, message: ReceivedMessage, *, most: int = -1, level: int | None = None
) -> bool:
    levels = () if level is None else (level,)
    return asyncio.run(SendBack(brokers, "G", most)(message, *levels))


@pytest.mark.parametrize(("most", "said"), [(-1, None), (0, "0"), (2, "2")])
@pytest.mark.parametrize("level", [None, DEAD_LETTER, 3])
def test_a_broker_is_told_which_message_failed_and_how_often_it_may(
    level: int | None, most: int, said: str | None
) -> None:
    brokers = Brokers(lambda _: 0)
    message = failed()
    assert send_back(brokers, message, most=most, level=level)
    ((address, request),) = brokers.asked
    assert (address, request.code) == ("a:1", BACK)
    expected = {
        "offset": "4711",
        "group": "G",
        "delayLevel": str(level or 0),
        "originMsgId": message.message_id,
        "originTopic": "T",
        "unitMode": "false",
        "bname": "a",
    }
    assert request.ext == expected | ({} if said is None else {"maxReconsumeTimes": said})


@pytest.mark.parametrize(("most", "said"), [(-1, None), (0, "0"), (2, "2")])
@pytest.mark.parametrize(("level", "delay"), [(None, "5"), (0, "5"), (3, "3"), (9, "9")])
def test_a_message_that_its_broker_does_not_take_goes_to_the_retry_topic_of_another(
    level: int | None, delay: str, most: int, said: str | None
) -> None:
    brokers = Brokers({BACK: 1, SEND: 0}.get, "a", "b")
    kept = {"UNIQ_KEY": "U", "TAGS": "x"}
    dropped = {"TRAN_MSG": "true", "__CRC32#": "1", "MAX_RECONSUME_TIMES": "7"}
    message = failed(sys_flag=0xD, **kept, **dropped)
    assert send_back(brokers, message, most=most, level=level)
    assert [request.code for _, request in brokers.asked] == [BACK, SEND]
    address, request = brokers.asked[1]
    assert address == "b:1", "the one that failed is the last to be asked"
    ext = dict(request.ext)
    assert decode_properties(ext.pop("i").encode()) == {
        **kept,
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": message.offset_message_id,
        "RECONSUME_TIME": "3",
        "DELAY": delay,
    } | ({} if said is None else {"MAX_RECONSUME_TIMES": said})
    assert ext == {
        "a": "CLIENT_INNER_PRODUCER",
        "b": RETRY,
        "c": "TBW102",
        "d": "4",
        "e": "3",
        "f": "1",  # compressed as before, and no part of a transaction
        "g": "1700000000000",
        "h": "9",
        "j": "3",
        "k": "false",
        "m": "false",
        "n": "b",
    } | ({} if said is None else {"l": said})
    assert bytes(request.body) == b"body"


@pytest.mark.parametrize("code", [10, 11, 12])
def test_a_copy_that_is_stored_short_of_its_ack_mode_is_not_taken(code: int) -> None:
    brokers = Brokers({BACK: 1, SEND: code}.get, "a", "b")
    assert not send_back(brokers, failed()), "the next master may not have it"
    assert [request.code for _, request in brokers.asked] == [BACK, SEND]


def test_a_second_retry_keeps_the_first_topic_and_id() -> None:
    brokers = Brokers({BACK: None, SEND: 0}.get, "a")
    assert send_back(brokers, failed(RETRY_TOPIC="first", ORIGIN_MESSAGE_ID="id"))
    address, request = brokers.asked[1]
    assert address == "a:1", "there is no other one"
    properties = decode_properties(request.ext["i"].encode())
    assert (properties["RETRY_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == ("first", "id")


def test_retries_are_spread_over_the_brokers_that_did_not_fail() -> None:
    brokers = Brokers({BACK: 1, SEND: 0}.get, "a", "b", "c", "d")

    async def many() -> None:
        hand_back: Any = SendBack(brokers, "G", -1)  # type: ignore[arg-type]
        for _ in range(40):
            assert await hand_back(failed())

    asyncio.run(many())
    assert {address for address, request in brokers.asked if request.code == SEND} == {
        "b:1",
        "c:1",
        "d:1",
    }


@pytest.mark.parametrize(
    ("brokers", "level"),
    [
        (Brokers(lambda _: 1, "b"), 0),
        (Brokers(lambda _: None, "b"), 0),
        (Brokers(lambda _: 1), 0),
        (Brokers({BACK: 1, SEND: 0}.get, "b", masters="a"), 0),
        (Brokers({BACK: 1, SEND: 0}.get, "b"), DEAD_LETTER),
    ],
    ids=["refused", "lost", "no queue", "no master", "an ordered one, which must stay in line"],
)
def test_what_no_broker_takes_stays_with_the_caller(brokers: Brokers, level: int) -> None:
    assert not send_back(brokers, failed(), level=level)


def test_without_its_master_a_message_goes_to_the_retry_topic_of_another_broker() -> None:
    brokers = Brokers(lambda _: 0, "a", "b", masters="b")
    assert send_back(brokers, failed())
    assert [(address, request.code) for address, request in brokers.asked] == [("b:1", SEND)]
