"""What the members of a group tell of themselves and of each other, and what is made of it."""

import asyncio
from collections import Counter

import pytest
from saturnmq.client.admin.replicas import (
    Replica,
    Truncation,
    ask_state,
    find_members,
    find_replicas,
    parse_state,
)
from saturnmq.client.core import ClientCore
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import BrokerData
from saturnmq.protocol.signing import UNSIGNED
from saturnmq.runtime.errors import ConnectFailed, RequestTimeout, RouteNotFound, SaturnError

LITTLE = {"brokerName": "g", "brokerId": 1, "role": "slave", "epoch": 2, "end": 7}
MUCH = {
    "brokerName": "g",
    "brokerId": 0,
    "address": "a:1",
    "identity": "ab",
    "role": "master",
    "epoch": 11,
    "epochs": [[10, 0], [11, 12]],
    "start": 3,
    "end": 14,
    "flushed": 13,
    "confirmed": 8,
    "floor": 6,
    "lacks": "a disk",
    "forced": [10],
    "required": 2,
    "caughtUp": False,
    "master": "a:1",
    "refuses": "no room",
    "full": "the disk is full",
    "trouble": "a gap",
    "noFailover": "no etcd",
    "replicas": {"1": "b:1", "2": "c:1"},
    "total": 4,
    "truncated": [
        {"from": 5, "to": 9, "epoch": 10, "file": "f", "timeMs": 77},
        {"from": 1, "to": 2},
    ],
    "inSync": [1],
    "lagBytes": {"1": 15, "2": -1},
    "lagMs": {"1": 16},
}


def test_a_state_is_what_a_member_tells():
    assert parse_state(fastjson.dumps(MUCH), "z:9") == Replica(
        "g",
        0,
        "a:1",
        role="master",
        identity="ab",
        epoch=11,
        epochs=((10, 0), (11, 12)),
        start=3,
        end=14,
        flushed=13,
        confirmed=8,
        floor=6,
        lacks="a disk",
        forced=(10,),
        required=2,
        caught_up=False,
        master="a:1",
        refuses="no room",
        full="the disk is full",
        trouble="a gap",
        no_failover="no etcd",
        others={1: "b:1", 2: "c:1"},
        total=4,
        truncated=(Truncation(5, 9, 10, "f", 77), Truncation(1, 2, 0, "", 0)),
        slave_reports={1: (True, 15, 16), 2: (False, -1, None)},
    )


def test_what_a_state_leaves_out_has_a_default():
    told = parse_state(fastjson.dumps(LITTLE), "z:9")
    assert told == Replica("g", 1, "z:9", role="slave", epoch=2, end=7)
    found = (told.start, told.flushed, told.confirmed, told.floor, told.total, told.required)
    assert found == (0, 0, 0, 0, 0, 1)
    assert (told.caught_up, told.answers, told.no_failover, told.epochs) == (True, True, None, ())
    unknown = Replica("g", 1, "z:9")
    assert (unknown.role, unknown.epoch, unknown.end, unknown.required) == ("unknown", 0, 0, 1)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        *(({name: None}, name) for name in LITTLE),
        ({"epochs": [[1]]}, "an epoch is not a number and the offset where it begins"),
        ({"epochs": [[1, 2, 3]]}, "an epoch is not a number and the offset where it begins"),
        ({"epochs": ["12"]}, "an epoch is not a number and the offset where it begins"),
        ({"lagBytes": {"1": -2}}, "a number of the state is -2, not a number from -1"),
        ({"truncated": [{"from": 1}]}, "'to' is missing"),
        ({"truncated": [{"to": 1}]}, "'from' is missing"),
        ({"replicas": {"1": 2}}, "the address of a replica"),
    ],
)
def test_a_state_that_does_not_parse_names_the_member_and_the_field(changed, why):
    with pytest.raises(SaturnError, match=rf"^z:9 reports a state that does not parse: .*{why}"):
        parse_state(fastjson.dumps(LITTLE | changed), "z:9")


@pytest.mark.parametrize(
    ("state", "may_lack"),
    [
        ({"role": "master"}, False),
        ({"role": "master", "lacks": "a disk"}, True),
        ({"role": "recovering"}, True),
        ({"role": "unsure"}, True),
        ({"role": "slave"}, False),  # of a group without a message
        ({"role": "slave", "caught_up": False}, True),  # whose disk is new
        ({"role": "slave", "end": 9}, True),  # copied from a master that tells no epochs
        ({"role": "slave", "epochs": ((1, 0),)}, False),
        ({"role": "slave", "epochs": ((1, 0),), "caught_up": False}, True),
        ({"role": "slave", "epochs": ((1, 0),), "lacks": "a disk"}, True),
        ({"role": "fenced"}, False),
        ({"role": "fenced", "end": 9}, True),
        ({"role": "fenced", "epochs": ((1, 0),)}, False),
        ({"role": "fenced", "epochs": ((1, 0),), "caught_up": False}, True),
    ],
)
def test_who_may_lack_what_was_acknowledged_says_so(state, may_lack):
    assert Replica("g", 1, "a:1", **state).may_lack is may_lack


@pytest.mark.parametrize(
    ("epochs", "end", "position"),
    [
        ((), 9, (0, 9)),
        (((2, 0),), 0, (0, 0)),
        (((2, 0),), 1, (2, 1)),
        (((2, 0), (5, 10)), 10, (2, 10)),
        (((2, 0), (5, 10)), 11, (5, 11)),
    ],
)
def test_a_log_is_as_new_as_the_last_epoch_that_something_was_written_in(epochs, end, position):
    assert Replica("g", 1, "a:1", epochs=epochs, end=end).position == position


class Core:
    """A network of nodes that tell these states, and of nameservers that list these brokers."""

    signing = UNSIGNED
    invoke_each = ClientCore.invoke_each

    def __init__(self, states=(), **nameservers):
        self.states = dict(states)  # by address; None: it is silent
        self.lists = nameservers  # brokers, a body or an error by the address of a nameserver
        self.nameservers = list(nameservers)
        self.asked = Counter()

    async def invoke(self, address, command, timeout, ok=()):
        self.asked[address] += 1
        if address in self.lists:
            assert command.code == RequestCode.GET_BROKER_CLUSTER_INFO
            return self.listed(self.lists[address])
        assert command.code == RequestCode.REPLICA_STATE
        assert 0 in ok
        if address not in self.states:
            raise ConnectFailed(f"nobody listens at {address}")
        if self.states[address] is None:
            await asyncio.sleep(10 * timeout)
        return Command(0, {}, fastjson.dumps(self.states[address] | {"address": address}))

    def listed(self, told):
        if isinstance(told, Exception):
            raise told
        if isinstance(told, dict):
            brokers = {name: BrokerData("C", name, ids).to_json() for name, ids in told.items()}
            told = fastjson.dumps({"brokerAddrTable": brokers})
        return Command(0, {}, told)


def found(replicas):
    return [(each.group, each.broker_id, each.address) for each in replicas]


def state(broker_id, role="slave", **more):
    return {**LITTLE, "brokerId": broker_id, "role": role, **more}


def test_members_are_found_through_each_other_and_each_is_asked_once():
    states = {
        "a:1": state(1, master="b:1", replicas={"1": "a:1"}),
        "b:1": state(0, "master", replicas={"1": "a:1", "3": "c:1"}),
        "c:1": state(3, master="b:1", replicas={"4": "d:1"}),
    }
    core = Core(states, ns={"g": {1: "a:1"}})
    replicas = asyncio.run(find_replicas(core, "g"))
    assert found(replicas) == [("g", 0, "b:1"), ("g", 1, "a:1"), ("g", 3, "c:1")]
    assert core.asked == {"ns": 1, "a:1": 1, "b:1": 1, "c:1": 1}


def test_who_does_not_answer_is_known_by_what_the_others_call_it():
    states = {"a:1": state(1, master="b:1", replicas={"2": "c:1"})}
    replicas = asyncio.run(find_members(Core(states), "g", ["a:1", "d:1"]))
    assert found(replicas) == [("g", -1, "d:1"), ("g", 0, "b:1"), ("g", 1, "a:1"), ("g", 2, "c:1")]
    assert [each.error for each in replicas if not each.answers] == [
        f"nobody listens at {address}" for address in ("d:1", "b:1", "c:1")
    ]


def test_a_node_that_is_silent_is_waited_for_so_long():
    with pytest.raises(RequestTimeout, match=r"^a:1 does not answer in 0\.01 s$"):
        asyncio.run(ask_state(Core({"a:1": None}), "a:1", 0.01))


def test_a_slave_lags_by_what_its_master_says_or_by_what_both_have():
    master = state(
        0,
        "master",
        end=100,
        inSync=[1],
        replicas={"1": "b:1", "2": "c:1", "3": "d:1", "4": "e:1"},
        lagBytes={"1": 5},
        lagMs={"1": 6},
    )
    states = {"a:1": master, "b:1": state(1), "c:1": state(2), "d:1": state(3, end=101)}
    replicas = asyncio.run(find_members(Core(states), "g", ["a:1"]))
    lags = [(each.in_sync, each.lag_bytes, each.lag_ms) for each in replicas]
    assert lags == [
        (None, None, None),
        (True, 5, 6),
        (False, 93, None),
        (False, 0, None),
        (False, None, None),
    ]
    without = asyncio.run(find_members(Core({"b:1": state(1)}), "g", ["b:1"]))
    assert [(each.in_sync, each.lag_bytes) for each in without] == [(None, None)]


def test_of_two_slaves_with_one_id_the_master_tells_of_the_one_that_follows_it():
    master = state(
        0, "master", end=100, inSync=[1], replicas={"1": "b:1"}, lagBytes={"1": 0}, lagMs={"1": 1}
    )
    states = {"a:1": master, "b:1": state(1, end=100), "c:1": state(1, end=30)}
    replicas = asyncio.run(find_members(Core(states), "g", states))
    told = {each.address: (each.in_sync, each.lag_bytes, each.lag_ms) for each in replicas}
    assert told["b:1"] == (True, 0, 1)
    assert told["c:1"] == (False, 70, None)


@pytest.mark.parametrize("first", ["a:1", "b:1"])
def test_of_two_masters_the_newer_one_tells_of_the_slaves(first):
    new = state(0, "master", epoch=3, inSync=[1], replicas={"1": "c:1"}, lagBytes={"1": 0})
    old = state(0, "master", epoch=2, end=100)
    states = {"a:1": new, "b:1": old, "c:1": state(1, master="a:1")}
    replicas = asyncio.run(find_members(Core(states), "g", [first, *states]))
    assert [(each.in_sync, each.lag_bytes) for each in replicas if not each.is_master] == [
        (True, 0)
    ]


def test_groups_are_those_that_any_nameserver_lists():
    states = {"a:1": state(0, "master"), "b:1": state(0, "master", brokerName="h")}
    one, two, none = {"g": {0: "a:1"}}, {"h": {0: "b:1"}}, ConnectFailed("nobody")
    both = [("g", 0, "a:1"), ("h", 0, "b:1")]
    assert found(asyncio.run(find_replicas(Core(states, x=one, y=two)))) == both
    assert found(asyncio.run(find_replicas(Core(states, x=one, y=two), "h"))) == both[1:]
    assert found(asyncio.run(find_replicas(Core(states, x=none, y=two)))) == both[1:]
    assert found(asyncio.run(find_replicas(Core(states, x=b"[]", y=two)))) == both[1:]


@pytest.mark.parametrize(
    ("lists", "why"),
    [
        ({}, "no nameserver is known"),
        ({"x": ConnectFailed("nobody")}, "nobody"),
        ({"x": b"[]"}, "the body is a JSON list of 0"),
        ({"x": {}}, "no broker is called 'g'; no broker is registered"),
        ({"x": {"gg": {0: "a:1"}}}, "no broker is called 'g'; did you mean 'gg'"),
        ({"x": {"other": {0: "a:1"}, "h": {0: "b:1"}}}, "called 'g'; the groups are h, other. A"),
    ],
)
def test_a_group_that_is_not_found_says_why(lists, why):
    with pytest.raises(SaturnError, match=why):
        asyncio.run(find_replicas(Core(**lists), "g"))


def test_brokers_without_an_address_are_no_members():
    with pytest.raises(RouteNotFound, match="'g'; no broker is registered"):
        asyncio.run(find_replicas(Core(x={"g": {}}), "g"))
