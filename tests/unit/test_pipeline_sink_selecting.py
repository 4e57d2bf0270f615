"""Rows find their queue: by key as producers do it, by the columns that name it, by topic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saturnmq.protocol.jhash import jhash
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.runtime.errors import MessageIllegal, SaturnError

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
np = pytest.importorskip("numpy", reason="numpy is not installed")

from saturnmq.pipeline.selecting import Selector, by_key, java_hashes, split  # noqa: E402

TWO = [MessageQueue("orders", name, number) for name in ("a", "b") for number in (0, 1, 2)]


def groups(batch, topic, selector, layout=lambda topic: TWO):
    found = Selector(topic, selector, layout).groups(batch)
    return [
        (group.topic, group.queue, None if group.rows is None else group.rows.tolist())
        for group in found
    ]


texts = st.lists(st.none() | st.text(max_size=40), max_size=30)


@given(texts, st.integers(0, 5))
def test_hashes_are_those_of_java(found, skipped):
    array = pa.array(found, pa.string())[skipped:]
    assert java_hashes(array).tolist() == [jhash(text or "") for text in found[skipped:]]


@given(texts, st.integers(1, 20))
def test_a_key_has_the_queue_that_a_producer_would_choose(found, queues):
    places = by_key(pa.array(found, pa.string()), queues).tolist()
    assert places == [abs(jhash(text)) % queues if text else -1 for text in found]


@given(st.lists(st.integers(-1, 3), max_size=50))
def test_a_split_keeps_the_order_of_each_part_and_loses_none(codes):
    parts = list(split(np.array(codes, np.int64), None))
    if len(set(codes)) == 1:
        assert parts == [(codes[0], None)]
    else:
        assert {code: rows.tolist() for code, rows in parts} == {
            code: [row for row, each in enumerate(codes) if each == code] for code in codes
        }


def test_round_robin_leaves_the_queue_open_and_takes_no_row_apart():
    batch = pa.record_batch({"body": [b"1", b"2"], "queueId": [0, 9]})
    assert groups(batch, "orders", "roundRobin") == [("orders", None, None)]


def test_rows_of_one_key_share_a_queue_and_rows_without_go_anywhere():
    keys = ["k1", None, "k2", "k1", "", "k2"]
    found = groups(pa.record_batch({"shardingKey": keys}), "orders", "shardingKey")
    one, two = (TWO[abs(jhash(key)) % 6] for key in ("k1", "k2"))
    assert one != two
    assert sorted(found, key=str) == sorted(
        [("orders", None, [1, 4]), ("orders", one, [0, 3]), ("orders", two, [2, 5])], key=str
    )


def test_topics_of_the_column_part_the_rows_and_the_option_wins():
    batch = pa.record_batch({"topic": ["x", "y", "x"], "shardingKey": ["k", "k", "l"]})
    assert groups(batch, None, "roundRobin") == [("x", None, [0, 2]), ("y", None, [1])]
    assert groups(batch, "orders", "roundRobin") == [("orders", None, None)]

    def layout(topic):
        return [MessageQueue(topic, "a", number) for number in range(2)]

    found = groups(batch, None, "shardingKey", layout)
    assert ("y", MessageQueue("y", "a", abs(jhash("k")) % 2), [1]) in found
    assert sum(len(rows) for _, _, rows in found) == 3
    with pytest.raises(MessageIllegal, match="row 1 of a batch has no topic: fill column 'topic'"):
        groups(pa.record_batch({"topic": ["x", None]}), None, "roundRobin")
    with pytest.raises(SaturnError, match="topic 'a b'"):
        groups(pa.record_batch({"topic": ["a b"]}), None, "roundRobin")


def test_columns_name_the_queue():
    batch = pa.record_batch({"brokerName": ["b", "a", "b"], "queueId": [2, 0, 2]})
    assert groups(batch, "orders", "column") == [
        ("orders", TWO[0], [1]),
        ("orders", TWO[5], [0, 2]),
    ]
    alone = pa.record_batch({"queueId": pa.array([1, 1], pa.int32())})
    assert groups(alone, "orders", "column", lambda topic: TWO[:3]) == [("orders", TWO[1], None)]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"queueId": [0]}, "needs a column 'brokerName': topic 'orders' lies on 2 brokers"),
        ({"queueId": [0, None], "brokerName": ["a", "a"]}, "row 1 of a batch has no queueId"),
        (
            {"queueId": [3], "brokerName": ["a"]},
            "no queue 3 on broker 'a': correct columns.*0 to 2",
        ),
        ({"queueId": [-1], "brokerName": ["a"]}, "no queue -1 on broker 'a'"),
        ({"queueId": [0], "brokerName": ["c"]}, "no queue 0 on broker 'c'"),
        ({"queueId": [0, 0], "brokerName": ["a", None]}, "no queue 0 on broker None"),
    ],
)
def test_a_row_without_a_place_is_an_error(columns, said):
    with pytest.raises(MessageIllegal, match=said):
        groups(pa.record_batch(columns), "orders", "column")
