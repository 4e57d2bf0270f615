"""Two groups of brokers with one name at one nameserver: the one that came first keeps the name."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from saturnmq.nameserver.living import Registered
from saturnmq.nameserver.registration import Registration, parse_registration
from saturnmq.nameserver.routes import RouteTable
from saturnmq.protocol import fastjson
from saturnmq.protocol.epochs import AHEAD_MAX
from saturnmq.protocol.nameserver_headers import RegisterBrokerHeader
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import DataVersion, TopicConfig
from saturnmq.runtime.errors import ForeignGroup, InvalidParameter, SaturnError, TopicNotExist

OURS, THEIRS = "1" * 32, "2" * 32
A, SLAVE, B = "10.0.0.1:1", "10.0.0.2:1", "10.0.9.1:1"
HOLD_MS = 120_000


def parsed(command: Command) -> Registration:
    """The announcement in a request."""
    return parse_registration(RegisterBrokerHeader.decode(command.ext), command.body)


def broker(
    identity: str,
    address: str,
    broker_id: int = 0,
    epoch: int = 100_000,
    topics: tuple[str, ...] = ("TBW102", "T"),
    **more: object,
) -> Registration:
    return Registration(
        cluster=str(more.pop("cluster", "DefaultCluster")),
        name=str(more.pop("name", "broker-0")),
        broker_id=broker_id,
        address=address,
        ha_address=f"{address}1",
        version=DataVersion(1, 1000, epoch),
        topics={topic: TopicConfig(topic, 4, 4, 6) for topic in topics},
        identity=identity,
        **more,  # type: ignore[arg-type]
    )


class Names:
    """A route table with a clock, and a connection for each address."""

    def __init__(self) -> None:
        self.table = RouteTable()
        self.now_ms = 0
        self._links: dict[str, object] = {}

    def link(self, address: str) -> object:
        return self._links.setdefault(address, object())

    def take(self, registration: Registration) -> Registered:
        result = self.table.register(registration, self.now_ms, self.link(registration.address))
        self.table.validate()
        return result

    def refuse(self, registration: Registration) -> str:
        """It is refused, and leaves nothing."""
        before, known = self.shown(), self.table.topics()
        self.table.take_changed()
        with pytest.raises(ForeignGroup) as caught:
            self.take(registration)
        assert self.shown() == before
        assert self.table.topics() == known
        assert self.table.take_changed() == []
        assert registration.address not in str(before)
        assert self.table.live(registration.name, registration.address) is None
        self.table.validate()
        return str(caught.value)

    def lose(self, address: str) -> None:
        self.table.connection_closed(self.link(address))

    def shown(self) -> object:
        return self.table.cluster_info()

    def addresses(self) -> dict[int, str]:
        return self.table.route("T").brokers[0].addresses


@pytest.mark.parametrize("cluster", ["DefaultCluster", "another"])
def test_a_foreign_master_of_a_higher_epoch_is_refused_and_deposes_nobody(cluster: str) -> None:
    names = Names()
    names.take(broker(OURS, A))
    names.take(broker(OURS, SLAVE, broker_id=1))
    foreign = broker(THEIRS, B, epoch=300_000, topics=("TBW102", "T", "X"), cluster=cluster)
    text = names.refuse(foreign)
    for part in (OURS, THEIRS, A, B, "brokerName", "namesrvAddr", "stop the other", "120 s"):
        assert part in text
    names.refuse(broker(THEIRS, "10.0.9.2:1", broker_id=1, epoch=300_000, cluster=cluster))
    names.refuse(broker(THEIRS, "10.0.9.2:1", broker_id=2, epoch=300_000, cluster=cluster))
    again = names.take(broker(OURS, A))
    assert (again.taken, again.epoch, again.identity) == (True, 100_000, OURS)
    follower = names.take(broker(OURS, SLAVE, broker_id=1))
    assert follower.master is not None
    assert (follower.master.address, follower.identity) == (A, OURS)
    assert names.addresses() == {0: A, 1: SLAVE}


@pytest.mark.parametrize("goes", ["closed", "unregistered"])
def test_after_a_foreign_master_that_came_first_has_gone_ours_takes_its_place(goes: str) -> None:
    names = Names()
    names.take(broker(THEIRS, B, epoch=300_000))
    names.refuse(broker(OURS, A))
    names.now_ms = 30_000
    names.take(broker(THEIRS, B, epoch=300_000))
    if goes == "closed":
        names.lose(B)
    else:
        names.table.unregister("broker-0", B)
    with pytest.raises(TopicNotExist):
        names.table.route("T")
    names.now_ms = 30_000 + HOLD_MS
    names.refuse(broker(OURS, A))
    names.refuse(broker(OURS, SLAVE, broker_id=1))
    names.now_ms += 1
    slave = names.take(broker(OURS, SLAVE, broker_id=1))
    assert (slave.epoch, slave.master, slave.identity) == (0, None, "")
    master = names.take(broker(OURS, A))
    assert (master.taken, master.epoch, master.identity) == (True, 100_000, OURS)
    assert names.addresses() == {0: A, 1: SLAVE}
    names.refuse(broker(THEIRS, B, epoch=300_000))


def test_a_group_is_not_deposed_by_one_that_fell_silent_and_is_in_the_routes_still() -> None:
    names = Names()
    names.take(broker(THEIRS, B, epoch=300_000))
    names.now_ms = HOLD_MS + 1
    assert names.take(broker(OURS, A)).taken
    assert names.addresses() == {0: A}


@pytest.mark.parametrize("sign", ["registration", "deposed", "heartbeat"])
def test_any_sign_of_life_of_one_member_holds_the_name(sign: str) -> None:
    names = Names()
    names.take(broker(OURS, A, epoch=200_000))
    names.take(broker(OURS, SLAVE, broker_id=1, epoch=200_000))
    names.lose(A)
    for _ in range(10):
        names.now_ms += HOLD_MS
        if sign == "registration":
            names.take(broker(OURS, SLAVE, broker_id=1, epoch=200_000))
        elif sign == "deposed":
            assert not names.take(broker(OURS, A, epoch=100_000)).taken
        else:
            live = names.table.live("broker-0", SLAVE)
            assert live is not None
            names.table.heartbeat(live, names.now_ms)
        with pytest.raises(ForeignGroup):
            names.take(broker(THEIRS, B))
    names.now_ms += HOLD_MS + 1
    assert names.take(broker(THEIRS, B)).taken


def test_who_may_be_silent_for_longer_holds_the_name_for_as_long() -> None:
    names = Names()
    names.take(broker(OURS, A, timeout_ms=600_000))
    names.now_ms = 600_000
    assert names.table.expire(names.now_ms) == []
    names.refuse(broker(THEIRS, B))
    names.now_ms += 1
    names.table.expire(names.now_ms)
    assert names.take(broker(THEIRS, B)).taken


def test_a_refusal_reads_the_same_whoever_of_the_other_group_was_heard_last() -> None:
    names = Names()
    names.take(broker(OURS, SLAVE, broker_id=1))
    names.take(broker(OURS, A))
    first = names.refuse(broker(THEIRS, B))
    names.take(broker(OURS, SLAVE, broker_id=1))
    assert names.refuse(broker(THEIRS, B)) == first
    assert A in first


@pytest.mark.parametrize("broker_id", [0, 1])
def test_an_unknown_broker_takes_no_place_of_a_living_one_that_is_known(broker_id: int) -> None:
    names = Names()
    names.take(broker(OURS, A, epoch=200_000))
    names.take(broker(OURS, SLAVE, broker_id=1, epoch=200_000))
    text = names.refuse(broker("", B, broker_id, epoch=300_000))
    assert "unknown" in text
    assert (A, SLAVE)[broker_id] in text
    names.take(broker("", "10.0.0.3:1", broker_id=2, epoch=0))  # as RocketMQ's slaves
    names.take(broker("", (A, SLAVE)[broker_id], broker_id, epoch=200_000))  # an older version
    names.lose((A, SLAVE)[broker_id])
    assert names.take(broker("", B, broker_id, epoch=300_000)).taken
    assert names.addresses()[broker_id] == B


def test_an_unknown_broker_of_a_lower_epoch_hears_whom_to_follow_as_ever() -> None:
    names = Names()
    names.take(broker(OURS, A, epoch=200_000))
    for epoch in (0, 100_000):
        answer = names.take(broker("", B, epoch=epoch))
        assert not answer.taken
        assert answer.identity == OURS
    assert names.addresses() == {0: A}


def test_a_known_group_replaces_unknown_brokers_as_ever() -> None:
    names = Names()
    names.take(broker("", B, epoch=0))
    assert names.take(broker(OURS, A)).taken
    assert names.addresses() == {0: A}


def test_a_broker_that_learns_its_group_too_late_leaves_the_routes() -> None:
    names = Names()
    names.take(broker("", SLAVE, broker_id=1, epoch=0))
    names.take(broker(OURS, A))
    names.table.take_changed()
    with pytest.raises(ForeignGroup):
        names.table.register(broker(THEIRS, SLAVE, broker_id=1), 0, object())
    assert names.addresses() == {0: A, 1: SLAVE}, "it was another process"
    with pytest.raises(ForeignGroup):
        names.take(broker(THEIRS, SLAVE, broker_id=1))
    assert names.addresses() == {0: A}
    assert sorted(names.table.take_changed()) == ["T", "TBW102"]
    names.table.validate()


def test_who_claims_the_address_of_a_member_removes_nothing_of_it() -> None:
    names = Names()
    names.take(broker(OURS, A))
    before = names.shown()
    with pytest.raises(ForeignGroup):
        names.table.register(broker(THEIRS, A), 0, object())
    assert names.shown() == before
    live = names.table.live("broker-0", A)
    assert live is not None
    assert (live.identity, live.connection) == (OURS, names.link(A))


def test_brokers_of_different_names_may_say_the_same_address() -> None:
    """As containers do that advertise 127.0.0.1 each."""
    names = Names()
    names.take(broker(OURS, A))
    link = object()
    names.table.register(broker(THEIRS, A, name="broker-1", topics=("TBW102", "U")), 0, link)
    names.table.validate()
    names.table.connection_closed(link)
    names.table.validate()
    assert names.addresses() == {0: A}


def test_claims_of_those_who_were_silent_for_longest_are_forgotten_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("saturnmq.nameserver.claims.CLAIMS_MAX", 3)
    names = Names()
    for number in range(3):
        names.take(broker(OURS, f"h:{number}", name=f"broker-{number}"))
        names.lose(f"h:{number}")
    names.take(broker(OURS, "h:0"))
    names.take(broker(OURS, "h:3", name="broker-3"))
    names.refuse(broker(THEIRS, B))
    names.refuse(broker(THEIRS, B, name="broker-2"))
    assert names.take(broker(THEIRS, B, name="broker-1")).taken


def request(version: dict[str, object], **ext: str) -> Command:
    body = fastjson.dumps({"topicConfigSerializeWrapper": {"dataVersion": version}})
    fields = {"clusterName": "C", "brokerName": "b", "brokerId": "0", "brokerAddr": "h:1"}
    return Command.request(103, fields | ext, body)


def test_the_identity_is_read_from_the_header() -> None:
    assert parsed(request({}, saturnIdentity=OURS)).identity == OURS
    assert parsed(request({}, saturnIdentity="")).identity == ""
    assert parsed(request({})).identity == ""


@pytest.mark.parametrize("text", ["x", "1" * 31, "1" * 33, "A" * 32, "1" * 32 + "\n", " " * 32])
def test_what_is_no_identity_is_refused(text: str) -> None:
    with pytest.raises(SaturnError, match=r"saturnIdentity'? .* 32 lower-case hex digits"):
        parsed(request({}, saturnIdentity=text))


@pytest.mark.parametrize("epoch", [1 << 31, -1, 10**400, "9" * 400, 1.5, True])
def test_a_state_version_that_no_epoch_can_be_is_refused_with_the_limit(epoch: object) -> None:
    with pytest.raises(SaturnError, match=r"stateVersion.* 0 to 2147483647|number is infinity"):
        parsed(_written(epoch))
    highest = parsed(request({"stateVersion": (1 << 31) - 1}))
    assert highest.version.state_version == (1 << 31) - 1


@pytest.mark.parametrize("identity", [OURS, ""])
@pytest.mark.parametrize("broker_id", [0, 1, 2])
def test_an_epoch_that_no_promotions_lead_to_is_refused(identity: str, broker_id: int) -> None:
    names = Names()
    names.take(broker(OURS, A))
    names.take(broker(OURS, SLAVE, broker_id=1))
    before = names.shown()
    for epoch in (999_999_999, 100_000 + AHEAD_MAX + 1):
        with pytest.raises(InvalidParameter, match=rf"{epoch}: the highest known here is 100000"):
            names.take(broker(identity, B, broker_id=broker_id, epoch=epoch))
    assert names.shown() == before
    assert names.take(broker(OURS, A)).epoch == 100_000
    assert names.take(broker(OURS, A, epoch=100_000 + AHEAD_MAX)).taken


def _written(epoch: object) -> Command:
    """The request with a number that no JSON writer of ours would write."""
    result = request({"stateVersion": 12345})
    text = f'"{epoch}"' if isinstance(epoch, str) else str(epoch).replace("True", "true")
    result.body = bytes(result.body).replace(b"12345", text.encode())
    return result


class ClaimMachine(RuleBasedStateMachine):
    """Brokers of two groups, and of none, at names that they share: a model of who is alive."""

    def __init__(self) -> None:
        super().__init__()
        self.names = Names()
        self.alive: dict[str, tuple[str, int, str]] = {}  # address -> name, id, identity

    @rule(
        name=st.sampled_from(["a", "b"]),
        broker_id=st.integers(0, 2),
        identity=st.sampled_from(["", OURS, THEIRS]),
        epoch=st.sampled_from([0, 100_000, 200_000]),
    )
    def register(self, name: str, broker_id: int, identity: str, epoch: int) -> None:
        address = f"{name}-{broker_id}-{identity[:1]}:1"
        try:
            answer = self.names.take(broker(identity, address, broker_id, epoch, name=name))
        except ForeignGroup:
            assert address not in self.alive
            return
        if answer.taken:
            self.alive = {
                key: value
                for key, value in self.alive.items()
                if value[:2] != (name, broker_id) or key == address
            }
            self.alive[address] = (name, broker_id, identity)

    @rule(
        name=st.sampled_from(["a", "b"]), broker_id=st.integers(0, 2), group=st.sampled_from("12")
    )
    def lose(self, name: str, broker_id: int, group: str) -> None:
        address = f"{name}-{broker_id}-{group}:1"
        self.names.lose(address)
        self.alive.pop(address, None)

    @rule()
    def all_fall_silent(self) -> None:
        self.names.now_ms += HOLD_MS + 1
        self.names.table.expire(self.names.now_ms)
        self.alive = {}

    @invariant()
    def no_name_is_of_two_groups(self) -> None:
        self.names.table.validate()
        table = self.names.table.cluster_info()["brokerAddrTable"]
        shown = {address for data in table.values() for address in data["brokerAddrs"].values()}
        assert shown == set(self.alive)
        for name in ("a", "b"):
            known = {who[2] for who in self.alive.values() if who[0] == name and who[2]}
            assert len(known) <= 1


TestClaimMachine = ClaimMachine.TestCase
TestClaimMachine.settings = settings(max_examples=30, stateful_step_count=20)
