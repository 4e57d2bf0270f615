"""Offsets as options, checkpoint and reports have them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saturnmq.pipeline.offsets import (
    dumps,
    from_json,
    parse,
    parse_assignment,
    parse_times,
    plan_in,
    start_in,
    to_json,
)
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.protocol.topics import check_topic
from saturnmq.runtime.errors import ConfigError, InvalidParameter

names = st.sampled_from(("orders", "a", "%RETRY%g", "Z-1", "_plan"))
queues = st.builds(MessageQueue, names, names, st.integers(0, 20))


offsets_of = st.dictionaries(queues, st.integers(0, 1 << 60))


@given(offsets_of, st.booleans(), st.none() | offsets_of)
def test_what_is_written_is_read(offsets, planned, start):
    plan = {"parts": 1} if planned else None
    value = json.loads(json.dumps(to_json(offsets, plan, start)))
    assert (from_json(value), plan_in(value), start_in(value)) == (offsets, plan, start)


def test_equal_offsets_are_equal_text():
    one = {
        MessageQueue("b", "y", 10): 1,
        MessageQueue("b", "y", 9): 2,
        MessageQueue("a", "z", 0): 3,
    }
    other = dict(reversed(one.items()))
    assert dumps(one) == dumps(other) == '{"a":{"z":{"0":3}},"b":{"y":{"9":2,"10":1}}}'
    assert list(to_json(one, {"parts": 1})) == ["a", "b", "$plan"]


def test_a_topic_is_called_as_the_plan_of_an_older_checkpoint():
    plan = {"parts": 2, "maxBytes": 9}
    offsets = {MessageQueue("_plan", "parts", 0): 5}
    both = json.loads(json.dumps(to_json(offsets, plan)))
    assert (from_json(both), plan_in(both)) == (offsets, plan)
    assert (from_json(to_json(offsets)), plan_in(to_json(offsets))) == (offsets, None)
    older = {"orders": {"b": {"0": 5}}, "_plan": plan}
    assert (from_json(older), plan_in(older)) == ({MessageQueue("orders", "b", 0): 5}, plan)
    for name in ("$plan", "$start"):
        with pytest.raises(InvalidParameter, match=rf"\{name}"):
            check_topic(name)


def test_marks_are_offsets_of_options_only():
    text = '{"orders":{"broker-a":{"0":-2,"1":-1,"2":7}}}'
    assert list(parse(text, "startingOffsets").values()) == [-2, -1, 7]
    with pytest.raises(ConfigError, match="checkpoint"):
        from_json(json.loads(text))
    assert parse_times('{"t":{"b":{"3":1700000000000}}}', "x") == {
        MessageQueue("t", "b", 3): 1700000000000
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{orders", "is no JSON"),
        ("[1]", "no JSON object"),
        ('{"orders":{"broker-a":[0,1]}}', "orders.broker-a is"),
        ('{"orders":{"0":5}}', "orders.0 is 5"),
        ('{"orders":5}', "orders is 5"),
        ('{"orders":{"a":{"x":5}}}', "'x' is no queue id"),
        ('{"orders":{"a":{"0":"5"}}}', 'orders.a.0 is "5"'),
        ('{"orders":{"a":{"0":-3}}}', "orders.a.0 is -3"),
        ('{"orders":{"a":{"0":true}}}', "orders.a.0 is true"),
        ('{"orders":{"a":{"0":1.5}}}', "orders.a.0 is 1.5"),
    ],
)
def test_wrong_offsets_are_told_by_option_and_place(text, why):
    with pytest.raises(ConfigError) as caught:
        parse(text, "startingOffsets")
    line = str(caught.value).splitlines()[0]
    assert line.startswith("startingOffsets: ")
    assert why in line
    assert line.endswith('write it as {"orders":{"broker-a":{"0":1200,"1":-1}}}')


def test_an_assignment_lists_queues():
    found = parse_assignment('{"o":{"b":[1,0,1]},"a":{"b":[2]}}')
    assert found == [
        MessageQueue("a", "b", 2),
        MessageQueue("o", "b", 0),
        MessageQueue("o", "b", 1),
    ]
    for text in ('{"o":{"b":{"0":1}}}', '{"o":{"b":[-1]}}', "{}", '{"o":[0]}'):
        with pytest.raises(ConfigError, match=r"^assign: "):
            parse_assignment(text)
