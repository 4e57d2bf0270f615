"""Values that a message takes and refuses, in the compiled class and in its reference."""

from __future__ import annotations

import copy
import pickle
from array import array
from typing import Any

import pytest
from saturnmq.protocol.batch import encode_batch_item, iterate_batch, put_batch_item
from saturnmq.protocol.kernels import Message
from saturnmq.protocol.kernels import put_batch_item as compiled_put
from saturnmq.protocol.message_reference import Message as Reference
from saturnmq.runtime.errors import InvalidParameter, MessageIllegal

BOTH = pytest.mark.parametrize("kind", [Message, Reference])
WORDS = array("i", [1, 2])
ODD_BODIES = [
    WORDS,
    memoryview(WORDS),
    memoryview(b"abcdef")[::2],
    memoryview(b"abcdef").cast("B", (2, 3)),
    memoryview(array("d")),
]


@BOTH
@pytest.mark.parametrize("body", ODD_BODIES)
def test_the_length_of_a_body_counts_bytes(kind: Any, body: Any) -> None:
    message = kind("T", body)
    assert message.body == memoryview(body).tobytes()
    message.body = b"another"
    message.body = body
    assert (message.body, len(message.body)) == (
        memoryview(body).tobytes(),
        memoryview(body).nbytes,
    )


@BOTH
def test_a_body_of_bytes_is_not_copied(kind: Any) -> None:
    for body in (b"x", bytearray(b"x"), memoryview(b"x")):
        assert kind("T", body).body is body


@pytest.mark.parametrize("put", [put_batch_item, compiled_put])
@pytest.mark.parametrize("body", [WORDS, memoryview(WORDS)])
def test_an_entry_of_a_batch_holds_all_bytes_of_a_body(put: Any, body: Any) -> None:
    buffer, encoded = bytearray(100), bytearray()
    size = put(buffer, 0, body, b"id", -1, b"")
    encode_batch_item(encoded, body, b"")
    assert [each.body for each in iterate_batch(encoded)] == [WORDS.tobytes()]
    assert buffer[:size] == encoded


@BOTH
@pytest.mark.parametrize("body", ["text", None, 5, [1]])
def test_a_body_without_bytes_is_refused_with_what_is_taken(kind: Any, body: Any) -> None:
    told = rf"of type {type(body).__name__}: give bytes, .*\.encode"
    with pytest.raises(MessageIllegal, match=told):
        kind("T", body)
    message = kind("T", b"x")
    with pytest.raises(MessageIllegal, match=told):
        message.body = body


@BOTH
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sharding_key", 5),
        ("tag", b"x"),
        ("keys", 5),
        ("keys", [b"x"]),
        ("delay_level", -1),
        ("delay_level", 1.5),
        ("delay_level", True),
        ("delay_level", "3"),
    ],
)
def test_a_value_that_cannot_travel_is_refused_when_it_is_given(
    kind: Any, name: str, value: Any
) -> None:
    with pytest.raises(InvalidParameter, match=f"{name} of a message is .*: give"):
        kind("T", b"x", **{name: value})
    with pytest.raises(InvalidParameter, match=f"{name} of a message is .*: give"):
        setattr(kind("T", b"x"), name, value)


@BOTH
def test_a_topic_is_text(kind: Any) -> None:
    with pytest.raises(InvalidParameter, match="topic of a message is None"):
        kind(None, b"x")


@BOTH
def test_a_tag_is_given_by_its_name(kind: Any) -> None:
    with pytest.raises(TypeError, match="positional"):
        kind("T", b"x", "tag")


def through_pickle(message: Any) -> Any:
    return pickle.loads(pickle.dumps(message))


class Numbered(Message):
    __slots__ = ("__dict__", "number")

    def __init__(self, number: int) -> None:
        super().__init__("T", b"%d" % number, tag="numbered", flag=number)
        self.number = number
        self.note = "kept"


class NumberedReference(Reference):
    def __init__(self, number: int) -> None:
        super().__init__("T", b"%d" % number, tag="numbered", flag=number)
        self.number = number
        self.note = "kept"


@pytest.mark.parametrize("kind", [Numbered, NumberedReference])
@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))]
)
def test_a_message_with_a_constructor_of_its_own_can_be_copied_and_pickled(
    kind: Any, again: Any
) -> None:
    found = again(kind(4))
    assert type(found) is kind
    assert (found.topic, found.body, found.tag, found.flag) == ("T", b"4", "numbered", 4)
    assert (found.number, found.note) == (4, "kept")
