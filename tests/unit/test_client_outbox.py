"""The compiled way into a batch against the plain one: the same entries, or none at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saturnmq.client.kernels import Outbox
from saturnmq.client.producer.accumulator import Accumulator
from saturnmq.client.producer.batch_reference import Outbox as ReferenceOutbox
from saturnmq.protocol.batch import iterate_batch
from saturnmq.protocol.ids import UniqueIds
from saturnmq.protocol.message import Message
from saturnmq.protocol.properties import CLIENT_PROPERTIES, decode_properties

kernel_only = pytest.mark.skipif(Outbox is ReferenceOutbox, reason="needs the compiled outbox")


class Clock:
    def now_ms(self):
        return 1_700_000_000_000


class Lock:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def accumulator(batch_bytes=4096, alone_from=1000):
    wakes = []
    made = Accumulator(
        Lock(),
        Clock().now_ms,
        UniqueIds(Clock(), "127.0.0.1", 1),
        lambda: wakes.append(1),
        lambda batch, timeout: None,
        None,
        batch_bytes=batch_bytes,
        buffer_bytes=1 << 20,
        alone_from=alone_from,
        first_queue=lambda: 0,
    )
    made.wakes = wakes
    return made


def opened(**sizes):
    """An accumulator whose lane "T" has an open batch with one message in it."""
    made = accumulator(**sizes)
    made.append(made.lane("T", None), b"first", b"", 0, "")
    return made


def entries(made):
    return list(iterate_batch(made.lanes["T"].open.body))


words = st.text(st.characters(blacklist_characters="\x01\x02", blacklist_categories=["Cs"]))


def are_plain(properties):
    """Whether the properties need no look but the kernel's."""
    texts = [text for pair in properties.items() for text in pair]
    return all(text and "\0" not in text for text in texts) and not CLIENT_PROPERTIES.intersection(
        properties
    )


@kernel_only
@given(st.binary(min_size=1, max_size=900), st.dictionaries(words, words), st.integers(0, 9))
def test_an_offered_message_is_encoded_as_any_other(body, properties, flag):
    made = opened()
    handle = made.offer(Message("T", body, properties=properties, flag=flag))
    if not are_plain(properties):
        assert handle is None
        assert len(entries(made)) == 1
        return
    assert handle is not None
    entry = entries(made)[1]
    assert (bytes(entry.body), entry.flag) == (body, flag)
    found = decode_properties(entry.properties)
    assert found.pop("UNIQ_KEY") == handle.message_id
    assert found.pop("WAIT") == "true"
    assert found == properties


@kernel_only
@pytest.mark.parametrize(
    "message",
    [
        Message("T", b""),
        Message("T", b"x" * 1000),  # to be compressed
        Message("T", bytearray(b"x")),
        Message("other", b"x"),
        Message("T", b"x", delay_level=3),
        Message("T", b"x", sharding_key="s"),
        Message("T", b"x", properties={"UNIQ_KEY": "1"}),
        Message("T", b"x", properties={"a\x01": "1"}),
        Message("T", b"x", properties={"a": "\x02"}),
        Message("T", b"x", properties={"a": 1}),
        Message("T", b"x", properties={"a": ""}),
        Message("T", b"x", properties={"": "a"}),
        Message("T", b"x", properties={"a": "\0"}),
        Message("T", b"x", properties={"a": "\ud800"}),
        Message("T", b"x", properties={"a": "y" * 33_000}),
        "not a message",
    ],
    ids=repr,
)
def test_what_asks_for_more_is_left_alone(message):
    made = opened()
    assert made.offer(message) is None
    assert len(entries(made)) == 1


offered = st.builds(
    lambda topic, body, properties, flag: Message(topic, body, properties=properties, flag=flag),
    st.sampled_from(["T"] * 9 + ["other"]),
    st.sampled_from([b"x", b"y" * 300] * 9 + [b"", b"z" * 1000, bytearray(b"other")]),
    st.dictionaries(st.sampled_from(["a", "b", "c", "DELAY"]), words, max_size=2),
    st.integers(0, 9),
)


@kernel_only
@given(st.lists(offered, max_size=9))
def test_messages_that_are_offered_together_go_as_each_would_or_not_at_all(messages):
    one, all_of_them = opened(), opened()
    before = bytes(all_of_them.lanes["T"].open.body)
    handles = all_of_them.offer_all(messages)
    alone = [one.offer(message) for message in messages]
    batch = all_of_them.lanes["T"].open
    if not messages or None in alone:
        assert handles is None
        assert (bytes(batch.body), batch.count) == (before, 1)
        return
    ids = batch.id_head, one.lanes["T"].open.id_head
    assert bytes(batch.body) == bytes(one.lanes["T"].open.body).replace(*reversed(ids))
    assert [handle.batch for handle in handles] == [batch] * len(messages)
    assert [handle.index for handle in handles] == [handle.index for handle in alone]


@kernel_only
def test_only_messages_are_offered_together():
    made = opened()
    handles = made.offer_all(Message("T", b"%d" % n) for n in range(3))
    assert [bytes(entry.body) for entry in entries(made)] == [b"first", b"0", b"1", b"2"]
    assert [handle.index for handle in handles] == [1, 2, 3]
    assert made.offer_all(["no message"]) is None
    assert made.offer_all([Message("T", b"x"), "no message"]) is None
    assert len(entries(made)) == 4


@kernel_only
def test_a_full_batch_takes_no_more():
    made = opened(batch_bytes=4096)
    accepted = 0
    while made.offer(Message("T", b"x" * 100)) is not None:
        accepted += 1
        assert accepted < 4096
    batch = made.lanes["T"].open
    assert batch.count == accepted + 1 == len(entries(made))
    assert batch.bytes <= len(batch.buffer)


@kernel_only
def test_nothing_enters_a_batch_that_was_taken_or_a_producer_that_closes():
    made = opened()
    made.pop(made.lanes["T"])
    assert made.offer(Message("T", b"x")) is None
    made.append(made.lanes["T"], b"again", b"", 0, "")
    assert made.offer(Message("T", b"x")) is not None
    made.refuse_offers()
    made.append(made.lanes["T"], b"on its way before", b"", 0, "")
    assert made.offer(Message("T", b"x")) is None


def test_the_loop_is_woken_once_for_all_that_waits():
    made = accumulator()
    lane = made.lane("T", None)
    for n in range(200):
        if made.offer(Message("T", b"%d" % n * 20)) is None:
            made.append(lane, b"%d" % n * 20, b"", 0, "")
    assert len(made.wakes) == 1
    assert made.take_dirty() == [lane]
    bodies = []
    while made.head(lane) is not None:
        batch = made.pop(lane)
        bodies += [bytes(entry.body) for entry in iterate_batch(batch.body)]
        batch.attempts = 1
        made.finish(batch)
    assert bodies == [b"%d" % n * 20 for n in range(200)]
    assert made.buffered == 0
