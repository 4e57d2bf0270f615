"""The route table's rules, without a network; `validate` runs after every step."""

import struct
import zlib
from collections.abc import Callable
from copy import deepcopy

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from saturnmq.nameserver.kv import ORDER_TOPIC_CONFIG, KvConfig
from saturnmq.nameserver.registration import Registration, parse_registration
from saturnmq.nameserver.routes import RouteTable
from saturnmq.protocol import fastjson
from saturnmq.protocol.nameserver_headers import RegisterBrokerHeader
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import DataVersion, TopicConfig
from saturnmq.runtime.errors import InvalidParameter, QueryNotFound, SaturnError, TopicNotExist


def parsed(command: Command) -> Registration:
    """The announcement in a request."""
    return parse_registration(RegisterBrokerHeader.decode(command.ext), command.body)


CLUSTER = "DefaultCluster"


def broker(
    name: str = "broker-a",
    broker_id: int = 0,
    address: str = "127.0.0.1:10911",
    topics: tuple[str, ...] = ("TBW102", "T"),
    counter: int = 1,
    epoch: int = 0,
    **more: object,
) -> Registration:
    table = {topic: TopicConfig(topic, 4, 4, 6) for topic in topics}
    version = DataVersion(counter, 1000, epoch)
    return Registration(
        CLUSTER, name, broker_id, address, f"{address}1", version=version, topics=table, **more
    )  # type: ignore[arg-type]


def test_first_registration_with_one_topic_is_refused_and_leaves_nothing() -> None:
    table = RouteTable()
    with pytest.raises(SaturnError, match="register broker failed") as caught:
        table.register(broker(topics=("T",)), 0)
    assert caught.value.code == 1
    assert table.cluster_info() == {"brokerAddrTable": {}, "clusterAddrTable": {}}
    table.register(broker(), 0)
    table.register(broker(topics=("U",), counter=2), 0)
    assert table.topics() == ["T", "TBW102", "U"]
    table.validate()


def test_slave_learns_the_master_and_adds_no_topics() -> None:
    table = RouteTable()
    slave = broker(broker_id=1, address="127.0.0.1:2", topics=("X", "Y"))
    assert table.register(slave, 0).master is None
    with pytest.raises(TopicNotExist):
        table.route("X")
    assert table.register(broker(), 0).master is None
    master = table.register(slave, 0).master
    assert master is not None
    assert (master.address, master.ha_address) == ("127.0.0.1:10911", "127.0.0.1:109111")
    assert table.route("T").brokers[0].addresses == {0: "127.0.0.1:10911", 1: "127.0.0.1:2"}
    assert table.topics() == ["T", "TBW102"]


def ours(broker_id: int, *topics: str, counter: int = 1, **more: object) -> Registration:
    """The announcement of one of our brokers in a group that has its identity."""
    address, identity = f"127.0.0.1:{broker_id + 1}", "ab" * 16
    return broker("broker-a", broker_id, address, topics, counter, identity=identity, **more)


def test_the_slaves_of_a_group_that_no_master_has_led_yet_are_read_from() -> None:
    table = RouteTable()
    table.register(ours(1, "TBW102", "T", whole=True), 0)
    table.register(ours(2, "TBW102", "U", whole=True), 0)
    assert table.topics() == ["T", "TBW102", "U"]
    route = table.route("T")
    assert route.brokers[0].addresses == {1: "127.0.0.1:2", 2: "127.0.0.1:3"}
    assert [(data.perm, data.read_queues) for data in route.queues] == [(4, 4)]
    table.register(ours(1, "V", counter=2), 1)
    assert table.route("V").queues[0].perm == 4
    table.take_changed()
    table.register(ours(0, "TBW102", "T", "W"), 2)
    assert table.topics() == ["T", "TBW102", "W"], "a master knows what is there"
    assert {data.perm for topic in table.topics() for data in table.route(topic).queues} == {6}
    assert set(table.take_changed()) == {"T", "TBW102", "U", "V", "W"}
    table.unregister("broker-a", "127.0.0.1:1")
    table.register(ours(1, "TBW102", "T", "U", counter=3, whole=True), 3)
    assert table.topics() == ["T", "TBW102", "W"], "what its master told last stays"
    table.validate()
    for broker_id in (1, 2):
        table.unregister("broker-a", f"127.0.0.1:{broker_id + 1}")
    assert table.topics() == []
    table.validate()
    table.register(ours(2, "TBW102", "T", whole=True), 4)
    assert table.route("T").queues[0].perm == 4


def test_a_slave_of_no_known_group_adds_no_topics() -> None:
    table = RouteTable()
    table.register(broker(broker_id=1, whole=True), 0)
    assert table.topics() == []


def test_with_acting_masters_only_the_smallest_id_adds_topics() -> None:
    table = RouteTable()
    table.register(ours(1, "TBW102", "T", enable_acting_master=True), 0)
    table.register(ours(2, "TBW102", "U", enable_acting_master=True), 0)
    table.register(ours(1, "V", counter=2, enable_acting_master=True), 1)
    assert table.topics() == ["T", "TBW102", "V"]
    assert table.route("T").brokers[0].addresses == {0: "127.0.0.1:2", 2: "127.0.0.1:3"}


def test_what_is_missing_in_a_table_that_says_it_is_whole_is_gone() -> None:
    table = RouteTable()
    table.register(broker(topics=("TBW102", "T", "U"), whole=True), 0)
    table.register(broker("broker-b", address="127.0.0.1:10921", topics=("T", "V"), whole=True), 0)
    table.take_changed()
    table.register(broker(topics=("TBW102", "U"), counter=1, whole=True), 1)
    assert len(table.route("T").queues) == 2, "the version says that nothing changed"
    table.register(broker(topics=("TBW102", "U"), counter=2, whole=True), 2)
    assert [data.broker_name for data in table.route("T").queues] == ["broker-b"]
    assert table.take_changed() == ["T"]
    table.register(broker(topics=("TBW102",), counter=3, whole=True), 3)
    with pytest.raises(TopicNotExist):
        table.route("U")
    assert table.topics() == ["T", "TBW102", "V"]
    table.validate()


def test_a_nameserver_that_was_down_during_a_deletion_hears_of_it_from_the_broker() -> None:
    """It was told to delete the topic, and the registration on its way brought it back."""
    table = RouteTable()
    table.register(broker(whole=True), 0)
    table.delete_topic("T")
    table.register(broker(counter=2, whole=True), 1)  # from before the deletion
    assert table.route("T").queues
    table.register(broker(topics=("TBW102", "U"), counter=3, whole=True), 2)
    with pytest.raises(TopicNotExist):
        table.route("T")


def test_queue_data_changes_only_with_the_version_and_vanished_topics_stay() -> None:
    table = RouteTable()
    table.register(broker(), 0)
    same = broker()
    same.topics["T"].write_queues = 16
    table.register(same, 0)
    assert table.route("T").queues[0].write_queues == 4
    newer = broker(topics=("T", "U"), counter=2)
    newer.topics["T"].write_queues = 16
    table.register(newer, 0)
    assert table.route("T").queues[0].write_queues == 16
    assert table.topics() == ["T", "TBW102", "U"]


def test_master_gone_keeps_topics_for_readers_and_last_address_removes_them() -> None:
    table = RouteTable()
    table.register(broker(), 0)
    table.register(broker(broker_id=1, address="127.0.0.1:2"), 0)
    table.unregister("broker-a", "127.0.0.1:10911")
    assert table.route("T").brokers[0].addresses == {1: "127.0.0.1:2"}
    table.unregister("broker-a", "127.0.0.1:2")
    with pytest.raises(TopicNotExist):
        table.route("T")
    assert table.topics() == []
    table.validate()


def test_connection_close_removes_only_what_it_registered_last() -> None:
    table = RouteTable()
    old, new = object(), object()
    table.register(broker(), 0, old)
    table.register(broker(), 0, new)
    assert table.connection_closed(old) == []
    assert table.topics() == ["T", "TBW102"]
    assert [live.address for live in table.connection_closed(new)] == ["127.0.0.1:10911"]
    assert table.topics() == []
    table.validate()


def test_silent_broker_expires_and_any_sign_of_life_delays_that() -> None:
    table = RouteTable()
    table.register(broker(timeout_ms=1000), 0)
    assert table.live("broker-a", "unknown:1") is None
    live = table.live("broker-a", "127.0.0.1:10911")
    assert live is not None
    table.heartbeat(live, 900)
    assert table.expire(1900) == []
    assert len(table.expire(1901)) == 1
    assert table.topics() == []


def test_address_under_a_new_id_leaves_the_old_one_and_older_state_is_ignored() -> None:
    table = RouteTable()
    table.register(broker(), 0)
    table.register(broker(broker_id=2), 0)
    assert table.cluster_info()["brokerAddrTable"]["broker-a"]["brokerAddrs"] == {
        "2": "127.0.0.1:10911"
    }
    newer = broker(address="127.0.0.1:5")
    newer.version.state_version = 7
    table.register(newer, 0)
    table.register(broker(address="127.0.0.1:6"), 0)
    assert table.route("T").brokers[0].master == "127.0.0.1:5"
    table.validate()


A, B = "127.0.0.1:1", "127.0.0.1:2"


def test_a_higher_epoch_takes_over_and_names_whom_it_deposed() -> None:
    table = RouteTable()
    table.register(broker(address=A, epoch=1), 0)
    table.register(broker(address=B, broker_id=1, epoch=1), 0)
    result = table.register(broker(address=B, epoch=2), 0)
    assert (result.taken, result.epoch) == (True, 2)
    assert result.deposed is not None
    assert result.deposed.address == A
    assert table.route("T").brokers[0].addresses == {0: B}
    follower = table.register(broker(address=A, broker_id=1, epoch=2), 0)
    assert follower.master is not None
    assert follower.master.address == B
    assert table.route("T").brokers[0].addresses == {0: B, 1: A}
    table.validate()


def test_a_master_that_is_not_taken_is_told_of_while_it_lives() -> None:
    """It may be the only one that has what its successor lost."""
    table, link = RouteTable(), object()
    table.register(broker(address=B, epoch=2), 0)
    assert table.cluster_info().keys() == {"brokerAddrTable", "clusterAddrTable"}
    assert table.member_group("c", "broker-a").keys() == {"brokerMemberGroup"}
    lower = broker(address=A, epoch=1, timeout_ms=1000)
    assert not table.register(lower, 0, link).taken
    assert table.cluster_info()["saturnDeposed"] == table.deposed() == {"broker-a": [A]}
    assert table.member_group("c", "broker-a")["saturnDeposed"] == [A]
    assert "saturnDeposed" not in table.member_group("c", "broker-b")
    assert table.route("T").brokers[0].addresses == {0: B}
    table.expire(1000)
    assert table.deposed() == {"broker-a": [A]}
    table.expire(1001)
    assert table.deposed() == {}
    table.register(lower, 2000, link)
    table.connection_closed(object())
    assert table.deposed() == {"broker-a": [A]}
    table.connection_closed(link)
    assert table.deposed() == {}
    table.register(lower, 3000, link)
    assert table.register(broker(address=A, broker_id=1, epoch=2), 3000, link).taken
    assert table.deposed() == {}


@pytest.mark.parametrize("holder_lives", [True, False])
def test_a_lower_epoch_is_never_taken_and_learns_whom_to_follow(holder_lives: bool) -> None:
    table = RouteTable()
    link = object()
    table.register(broker(address=B, epoch=2), 0, link)
    if not holder_lives:
        table.connection_closed(link)
    result = table.register(broker(address=A, epoch=1), 0)
    assert (result.taken, result.epoch) == (False, 2)
    assert result.master is not None
    assert (result.master.address, result.master.ha_address) == (B, f"{B}1")
    shown = table.cluster_info()["brokerAddrTable"]
    assert A not in str(shown)
    assert table.register(broker(address=A, epoch=3), 0).taken
    table.validate()


def test_a_slave_is_told_of_a_master_that_has_forgotten_its_epoch() -> None:
    """Its disk is an older copy: it is not taken, and waits for the word of that slave."""
    table = RouteTable()
    link = object()
    table.register(broker(address=A, epoch=2), 0, link)
    table.connection_closed(link)
    assert not table.register(broker(address=A, epoch=1), 0).taken
    told = table.register(broker(address=B, broker_id=1), 0)
    assert told.master is not None
    assert (told.epoch, told.master.address, told.master.ha_address) == (2, A, f"{A}1")


def test_of_two_masters_in_one_epoch_the_first_stays_until_it_is_gone() -> None:
    table = RouteTable()
    link = object()
    table.register(broker(address=A, epoch=2), 0, link)
    assert not table.register(broker(address=B, epoch=2), 0).taken
    assert table.register(broker(address=A, epoch=2), 0, link).taken
    table.connection_closed(link)
    assert table.register(broker(address=B, epoch=2), 0).taken
    assert table.route("T").brokers[0].master == B


def test_rocketmq_masters_replace_each_other_as_ever() -> None:
    table = RouteTable()
    table.register(broker(address=A), 0)
    result = table.register(broker(address=B), 0)
    assert (result.taken, result.epoch, result.deposed) == (True, 0, None)
    assert table.route("T").brokers[0].master == B


def test_epochs_of_groups_that_are_gone_are_forgotten_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("saturnmq.nameserver.routes.TERMS_MAX", 4)
    table = RouteTable()
    table.register(broker("lives", address=A, epoch=5), 0)
    for number in range(6):
        link = object()
        table.register(broker(f"gone-{number}", address=f"h:{number}", epoch=5), 0, link)
        table.connection_closed(link)
    assert not table.register(broker("lives", address=B, epoch=4), 0).taken
    assert table.register(broker("gone-0", address=B, epoch=4), 0).taken
    assert not table.register(broker("gone-5", address=B, epoch=4), 0).taken


def test_changed_names_the_topics_whose_route_is_another_one() -> None:
    table = RouteTable()

    def after(step: Callable[[], object]) -> list[str]:
        step()
        return sorted(table.take_changed())

    both, link = ["T", "TBW102"], object()
    slave = broker(address=B, broker_id=1)
    assert after(lambda: table.register(broker(address=A), 0, link)) == both
    assert after(lambda: table.register(broker(address=A), 0, link)) == []
    assert after(lambda: table.register(broker(address=A, counter=2), 0, link)) == []
    assert after(lambda: table.register(slave, 0)) == both
    assert after(lambda: table.register(slave, 0)) == []
    more = broker(address=A, topics=("T", "TBW102", "U"), counter=3)
    assert after(lambda: table.register(more, 0, link)) == ["U"]
    assert after(lambda: table.wipe_write_perm("broker-a")) == ["T", "TBW102", "U"]
    assert after(lambda: table.wipe_write_perm("broker-a")) == []
    assert after(lambda: table.delete_topic("U")) == ["U"]
    assert after(lambda: table.connection_closed(link)) == both
    assert after(lambda: table.unregister("broker-a", B)) == both


def test_write_permission_is_wiped_and_given_back_without_inherit() -> None:
    table = RouteTable()
    table.register(broker(), 0)
    assert table.wipe_write_perm("broker-a") == 2
    assert table.route("T").queues[0].perm == 4
    assert table.add_write_perm("broker-a") == 2
    assert table.route("T").queues[0].perm == 6
    assert table.wipe_write_perm("nobody") == 0


def test_acting_master_shows_the_smallest_slave_as_master_without_writes() -> None:
    table = RouteTable()
    table.register(broker(enable_acting_master=True), 0)
    for broker_id in (2, 1):
        table.register(
            broker(broker_id=broker_id, address=f"s:{broker_id}", enable_acting_master=True), 0
        )
    table.unregister("broker-a", "127.0.0.1:10911")
    route = table.route("T")
    assert route.brokers[0].addresses == {0: "s:1", 2: "s:2"}
    assert not route.queues[0].writable


def test_no_slave_acts_as_master_in_the_route_of_the_topic_that_names_a_groups_members() -> None:
    table = RouteTable()
    topics = ("T", "rmq_sys_SYNC_BROKER_MEMBER_broker-a")
    for broker_id in (0, 1, 2):
        here = f"s:{broker_id}"
        table.register(
            broker(broker_id=broker_id, address=here, topics=topics, enable_acting_master=True), 0
        )
    table.unregister("broker-a", "s:0")
    acting, members = (table.route(topic).brokers[0].addresses for topic in topics)
    assert acting == {0: "s:1", 2: "s:2"}
    assert members == {1: "s:1", 2: "s:2"}


class RouteMachine(RuleBasedStateMachine):
    """Random registrations and losses against a model: a dict of who is alive."""

    def __init__(self) -> None:
        super().__init__()
        self.table = RouteTable()
        self.alive: dict[str, tuple[str, int, int]] = {}
        self.shown: dict[str, object] = {}
        self.views: dict[int, object] = {}
        self.connections = [object() for _ in range(3)]

    @rule(name=st.sampled_from("ab"), broker_id=st.integers(0, 2), link=st.integers(0, 2))
    def register(self, name: str, broker_id: int, link: int) -> None:
        address = f"{name}{broker_id}:1"
        self.table.register(broker(name, broker_id, address), 0, self.connections[link])
        self.alive[address] = (name, broker_id, link)

    @rule(link=st.integers(0, 2))
    def lose(self, link: int) -> None:
        self.table.connection_closed(self.connections[link])
        self.alive = {key: value for key, value in self.alive.items() if value[2] != link}

    @invariant()
    def brokers_are_those_alive(self) -> None:
        self.table.validate()
        shown = {
            address
            for data in self.table.cluster_info()["brokerAddrTable"].values()
            for address in data["brokerAddrs"].values()
        }
        assert shown == set(self.alive)

    @invariant()
    def changed_is_what_changed(self) -> None:
        now: dict[str, object] = {t: self.table.route(t).to_json() for t in self.table.topics()}
        differ = {t for t in {*now, *self.shown} if now.get(t) != self.shown.get(t)}
        assert set(self.table.take_changed()) >= differ
        self.shown = now

    @invariant()
    def views_change_with_the_count_of_changes(self) -> None:
        view = self.table.topics(), self.table.cluster_info(), self.table.system_topics()
        assert self.views.setdefault(self.table.changes, deepcopy(view)) == view


TestRouteMachine = RouteMachine.TestCase
TestRouteMachine.settings = settings(max_examples=60)


def command(body: bytes, **ext: str) -> Command:
    fields = {"clusterName": "C", "brokerName": "b", "brokerId": "0", "brokerAddr": "h:1"}
    return Command.request(103, fields | ext, body)


VERSION = {"counter": 3, "stateVersion": 0, "timestamp": 9}


def test_plain_body_with_its_crc_parses() -> None:
    topic = TopicConfig("T", 4, 5, 6, attributes={"+message.type": "FIFO"})
    wrapper = {"dataVersion": VERSION, "topicConfigTable": {"T": topic.to_json()}}
    body = fastjson.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper})
    crc = str(zlib.crc32(body) & 0x7FFFFFFF)
    result = parsed(command(body, bodyCrc32=crc, haServerAddr="h:2"))
    assert result.topics == {"T": topic}
    assert (result.version, result.ha_address) == (DataVersion(3, 9), "h:2")
    with pytest.raises(SaturnError, match="crc32 not match"):
        parsed(command(body, bodyCrc32="1"))


def test_compressed_body_parses_and_a_bomb_does_not() -> None:
    def part(data: bytes) -> bytes:
        return struct.pack(">i", len(data)) + data

    plain = part(fastjson.dumps(VERSION)) + struct.pack(">i", 2)
    plain += part(b"T 4 5 6 SINGLE_TAG {}") + part(b'U 1 1 7 SINGLE_TAG {"a":"b c"}') + part(b"[]")
    result = parsed(command(zlib.compress(plain), compressed="true"))
    assert result.version == DataVersion(3, 9)
    assert result.topics["T"] == TopicConfig("T", 4, 5, 6)
    assert result.topics["U"].attributes == {"a": "b c"}
    for size in range(0, len(plain) - 7, 3):
        with pytest.raises(SaturnError):
            parsed(command(zlib.compress(plain[:size]), compressed="true"))
    bomb = zlib.compress(bytes(70 * 1024 * 1024))
    with pytest.raises(InvalidParameter, match="unpacks to more"):
        parsed(command(bomb, compressed="true"))


def test_missing_body_is_an_empty_table_of_version_zero() -> None:
    result = parsed(command(b""))
    assert (result.topics, result.version) == ({}, DataVersion())


@pytest.mark.parametrize(
    ("body", "ext"),
    [
        (b"{", {}),
        (b"[]", {}),
        (b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"perm":"x"}}}}', {}),
        (b"no zlib", {"compressed": "true"}),
        (b"", {"brokerId": "-1"}),
        (b"", {"brokerId": "9" * 20}),
        (b"", {"brokerName": " "}),
    ],
)
def test_bad_registration_is_a_typed_error(body: bytes, ext: dict[str, str]) -> None:
    with pytest.raises(SaturnError):
        parsed(command(body, **ext))


def test_kv_config_fits_the_reply_to_a_broker_whatever_is_put_into_it() -> None:
    kv = KvConfig()

    def fill(text: str) -> None:
        for key in range(1000):
            kv.put(ORDER_TOPIC_CONFIG, str(key), text)

    def leave_empty() -> None:
        for number in range(1000):
            namespace = f"{number}" + "n" * 60_000
            kv.put(namespace, "k", "v")
            kv.delete(namespace, "k")

    for text in ("x" * 64_000, "\u0001" * 64_000):  # which JSON writes as one byte, and as six
        with pytest.raises(InvalidParameter, match="of 4194304 are stored, delete some first"):
            fill(text)
        assert 3 << 20 < len(fastjson.dumps({"table": kv.table(ORDER_TOPIC_CONFIG)})) < 5 << 20
        kv.put(ORDER_TOPIC_CONFIG, "0", "short")  # in its place
        for key in range(1000):
            kv.delete(ORDER_TOPIC_CONFIG, str(key))
    with pytest.raises(InvalidParameter, match="are stored"):
        leave_empty()


def test_kv_config_is_bounded_and_an_emptied_namespace_exists() -> None:
    kv = KvConfig()
    assert kv.table("N") is None
    kv.put("N", "k", "v")
    assert kv.get("N", "k") == "v"
    kv.delete("N", "k")
    kv.delete("N", "k")
    assert kv.table("N") == {}
    with pytest.raises(QueryNotFound):
        kv.get("N", "k")
    with pytest.raises(InvalidParameter, match="limit"):
        kv.put("N", "k", "v" * 70_000)
    for number in range(10_000):
        kv.put("N", str(number), "")
    with pytest.raises(InvalidParameter, match="delete some"):
        kv.put("N", "one more", "")
