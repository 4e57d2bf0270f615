"""fastjson's two deviations are read, strict JSON is written."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from saturnmq.protocol import fastjson
from saturnmq.protocol.route import BrokerData, QueueData, TopicRoute
from saturnmq.runtime.errors import MalformedFrame

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=60)
@given(values)
def test_strict_json_round_trips_through_both_parsers(value: object) -> None:
    data = fastjson.dumps(value)
    assert fastjson.loads(data) == value
    parser = fastjson._JsonParser(json.dumps(value, indent=1))
    assert parser.value(0) == value


@settings(max_examples=60)
@given(
    st.dictionaries(st.tuples(st.text("ab%_"), st.text("cd"), st.integers(0, 9)), st.integers(0, 9))
)
def test_message_queue_maps_round_trip(table: dict[tuple[str, str, int], int]) -> None:
    assert fastjson.loads(fastjson.dumps_mq_map(table)) == table
    body = fastjson.dumps({"offsetTable": fastjson.mq_map(table), "n": 1})
    assert fastjson.loads(body) == {"offsetTable": table, "n": 1}


def test_message_queue_key_is_a_bare_object() -> None:
    data = fastjson.dumps_mq_map({("T", "b", 0): {"maxOffset": 4}})
    assert data == b'{{"brokerName":"b","queueId":0,"topic":"T"}:{"maxOffset":4}}'


def test_object_keys_in_any_field_order_and_unquoted_integers_are_read() -> None:
    data = (
        b' { "x" : { { "topic":"T", "queueId":3 ,"brokerName":"b"} : {0:"a:1",1 :[1.5,-2e3]} } } '
    )
    assert fastjson.loads(data) == {"x": {("T", "b", 3): {"0": "a:1", "1": [1.5, -2000.0]}}}


def test_integer_keys_are_written_quoted() -> None:
    assert fastjson.dumps({0: "a"}) == b'{"0":"a"}'


def test_escapes_survive_the_tolerant_parser() -> None:
    assert fastjson.loads(b'{1:"a\\"\\u00e9\\n\\\\"}') == {"1": 'a"\xe9\n\\'}


@pytest.mark.parametrize(
    "bad",
    [b"", b"{", b"{1:", b"{1:2", b"{1:2,}", b"[1", b'{1:"a}', b"{1:tru}", b"{1:2} x", b"{a:1}",
     b"{{}:1}", b'{{"topic":1}:1}', b"\xff", b'{1:"\\q"}', b"{1:-}", b"{1:01}x"],
)  # fmt: skip
def test_bad_json_is_malformed(bad: bytes) -> None:
    with pytest.raises(MalformedFrame):
        fastjson.loads(bad)


def test_deep_nesting_is_refused_not_a_crash() -> None:
    with pytest.raises(MalformedFrame, match="nested"):
        fastjson.loads(b"{0:" * 100_000)


def test_route_reads_unquoted_ids_and_writes_quoted_ones() -> None:
    data = (
        b'{"brokerDatas":[{"brokerAddrs":{0:"127.0.0.1:10911"},"brokerName":"broker-a",'
        b'"cluster":"DefaultCluster"}],"queueDatas":[{"brokerName":"broker-a","perm":7,'
        b'"readQueueNums":8,"topicSysFlag":0,"writeQueueNums":8}]}'
    )
    route = TopicRoute.from_json(fastjson.loads(data))
    assert route == TopicRoute(
        [QueueData("broker-a", 8, 8, 7)],
        [BrokerData("DefaultCluster", "broker-a", {0: "127.0.0.1:10911"})],
    )
    assert b'"brokerAddrs":{"0":"127.0.0.1:10911"}' in fastjson.dumps(route.to_json())


def test_a_request_is_strict_but_for_integer_keys() -> None:
    data = b' {"a,1:{2:" : {0 :"x\\"{3:",-1:[1,2,{4:5}]}, "n":[7,8]} '
    wanted = {"a,1:{2:": {"0": 'x"{3:', "-1": [1, 2, {"4": 5}]}, "n": [7, 8]}
    assert fastjson.loads_request(data) == fastjson.loads(data) == wanted
    for wrong in (b'{{"topic":"T","brokerName":"b","queueId":0}:1}', b"{0:", b'{1:"a', b"[01]"):
        with pytest.raises(MalformedFrame):
            fastjson.loads_request(wrong)


def test_a_request_has_so_many_integer_keys_and_no_more() -> None:
    def with_keys(count: int) -> bytes:
        return b"{%b}" % b",".join(b"%d:0" % number for number in range(count))

    assert len(fastjson.loads_request(with_keys(fastjson.QUOTED_MAX))) == fastjson.QUOTED_MAX
    one_more = with_keys(fastjson.QUOTED_MAX + 1)
    with pytest.raises(MalformedFrame, match="write them as texts"):
        fastjson.loads_request(one_more)
    assert len(fastjson.loads(one_more)) == fastjson.QUOTED_MAX + 1, (
        "a file or an answer may have them"
    )


@settings(max_examples=100)
@given(st.dictionaries(st.integers(-9, 9), st.text('\\"{,1: \n', max_size=12), min_size=1))
def test_strings_that_look_like_keys_are_left_alone(table: dict[int, str]) -> None:
    data = b"{%b}" % b",".join(
        b"%d :%b" % (key, json.dumps(value).encode()) for key, value in table.items()
    )
    wanted = {str(key): value for key, value in table.items()}
    assert fastjson.loads_request(data) == wanted
    assert fastjson.loads_request(b'{"' + b"\\" * 6 + b'":%b}' % data) == {"\\" * 3: wanted}


def test_a_request_that_is_not_strict_has_so_many_strings() -> None:
    with pytest.raises(MalformedFrame, match="strings and integer keys"):
        fastjson.loads_request(b"{1:[%b" % (b'"",' * (fastjson.STRINGS_MAX + 1)))


@settings(max_examples=60)
@given(values)
def test_quoting_integer_keys_leaves_everything_else_as_it_is(value: object) -> None:
    data = json.dumps(value, indent=1).encode()
    assert fastjson._with_quoted_keys(data) == data
