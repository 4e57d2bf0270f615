"""How far a delay level was delivered, as the copies in the log tell it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from saturnmq.broker.delay.delivered import KEYS_MAX, first_undelivered
from saturnmq.store.message_store import MessageStore, PendingMessage
from store_rig import CONFIG, dispatch, flush, new_disk, open_store

LEVEL = 3
WAITS = "SCHEDULE_TOPIC_XXXX"


def put(
    store: MessageStore,
    topic: str = "T",
    *,
    key: str = "U",
    level: int = LEVEL,
    attempt: int = 0,
    real_topic: str = "T",
    size: int = 1,
) -> None:
    """A message that waits, if this is its topic, or the copy that was delivered of one."""
    names = {"UNIQ_KEY": key, "DELAY": str(level), "REAL_TOPIC": real_topic, "REAL_QID": "0"}
    text = "".join(f"{name}\x01{value}\x02" for name, value in names.items() if value)
    queue = level - 1 if topic == WAITS else 0
    message = PendingMessage(topic, queue, bytes(size), text.encode(), reconsume_times=attempt)
    store.put(message)
    dispatch(store)


@pytest.mark.parametrize("delivered", range(6))
def test_a_level_goes_on_at_the_first_message_without_a_copy(delivered: int) -> None:
    store = open_store(new_disk())
    for number in range(5):
        put(store, WAITS, key=f"U{number}")
        put(store, WAITS, key=f"V{number}", level=LEVEL + 1)
    for number in range(delivered):
        put(store, key=f"U{number}")
    assert first_undelivered(store, LEVEL, 0) == min(delivered, 5)
    assert first_undelivered(store, LEVEL + 1, 0) == 0
    assert first_undelivered(store, LEVEL - 1, 0) == 0, "where nothing waits"
    for start in range(7):
        assert first_undelivered(store, LEVEL, start) == max(start, min(delivered, 5))


def test_each_attempt_of_a_message_has_a_copy_of_its_own() -> None:
    store = open_store(new_disk())
    for attempt in (1, 2):
        put(store, WAITS, attempt=attempt)
    assert first_undelivered(store, LEVEL, 0) == 0
    put(store, attempt=1)
    assert first_undelivered(store, LEVEL, 0) == 1
    put(store, attempt=2)
    assert first_undelivered(store, LEVEL, 0) == 2


@pytest.mark.parametrize("without", ["key", "real_topic"])
def test_a_message_without_an_id_or_a_topic_counts_as_not_delivered(without: str) -> None:
    store = open_store(new_disk())
    put(store, WAITS, **{without: ""})
    put(store, **{without: ""})
    assert first_undelivered(store, LEVEL, 0) == 0


def test_a_copy_that_may_be_of_another_message_does_not_count() -> None:
    store = open_store(new_disk())
    put(store)  # from before it waited
    put(store, WAITS)
    put(store, level=LEVEL + 1)
    put(store, attempt=1)
    put(store, "other")
    assert first_undelivered(store, LEVEL, 0) == 0
    put(store)
    assert first_undelivered(store, LEVEL, 0) == 1
    put(store, WAITS, size=2)  # another message with this id: which of the two was delivered?
    put(store)
    assert first_undelivered(store, LEVEL, 0) == 0


def test_a_message_that_was_sent_twice_has_two_copies() -> None:
    store = open_store(new_disk())
    put(store, WAITS)
    put(store)
    put(store, WAITS)
    assert first_undelivered(store, LEVEL, 0) == 1
    put(store, WAITS, key="V")
    assert first_undelivered(store, LEVEL, 0) == 1
    put(store)
    assert first_undelivered(store, LEVEL, 0) == 2
    put(store, key="V")
    assert first_undelivered(store, LEVEL, 0) == 3


def test_more_alike_than_are_looked_up_count_as_not_delivered() -> None:
    store = open_store(new_disk())
    for _ in range(KEYS_MAX):
        put(store, WAITS)
    for _ in range(KEYS_MAX):
        put(store)
    assert first_undelivered(store, LEVEL, 0) == 0


def test_offsets_are_those_of_the_queue_whose_first_messages_are_gone() -> None:
    store = open_store(new_disk(), config=replace(CONFIG, file_reserved_hours=0))
    for number in range(12):
        put(store, WAITS, key=f"U{number}", size=2000)
    for number in range(10):
        put(store, key=f"U{number}")
    flush(store)
    store.flush_derived()
    store.checkpoint()
    store.clean_on_request()
    ticket = store.begin_clean()
    assert ticket is not None
    ticket.run()
    assert 0 < store.min_offset(WAITS, LEVEL - 1) < 10
    assert first_undelivered(store, LEVEL, 0) == 10
