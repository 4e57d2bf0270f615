"""The route table: seven maps and the rules that change them (docs/internals/protocol.md 3.3).
Pure; callers pass the time, in milliseconds of a steady clock.

| map | from | to |
|---|---|---|
| `_topics` | topic, broker name | its queues there |
| `_brokers` | broker name | cluster and the address of each broker id |
| `_clusters` | cluster | its broker names |
| `_live` | broker name, address | last sign of life, table version, HA address, connection |
| `_deposed` | broker name, address | last sign of life and connection of a master in no route |
| `terms` | cluster, broker name | the highest epoch of a master there, and that master |
| `_claims` | broker name | the identity of the group that holds the name (claims.py) |

The server writes it, from requests 103 104 904 322 205 327 216 217, from closed connections and
from the scan. Nothing is stored: after a restart the brokers' next registrations (10-60 s apart)
fill the table again.

Rules followed: queue data comes from brokerId 0 only, or from the smallest id of a group with
acting masters; it is taken when the registration is the first, the version changed, or the topic
has no entry yet. Topics that vanish from a broker's table stay. A first registration with exactly
one topic is refused, because such a partial table is what a running broker sends after one topic
changed. Removing a name's last address removes its queue data. A broker is removed at once when the
connection of its last registration closes.

Our additions: our brokers mark their table as whole, so what is missing in it no longer exists.
Until a first master of a name registers, its topics are those of its slaves of a known group, for
reading only: consumers read on, and no sender has a topic made elsewhere that is there already.

Nothing is taken from a broker whose group does not hold its name: no address, no topic, no epoch. A
broker whose group is unknown may not take the place of a living one whose group is known.

The stateVersion of our masters is their epoch, and RocketMQ's is 0. Epochs of different groups say
nothing about each other. A master whose epoch is below the highest known one of its group is
deposed, even if the master of that epoch is gone: it is not taken, and the answer names the master
to follow. It is listed beside the routes, because it may have messages that its successor has lost.
A higher epoch takes over at once; an impossibly high one is refused. Of two live masters in one
epoch the first stays. `changed` collects the topics whose route has changed.
"""

from collections.abc import Hashable, Iterable
from typing import Any

from saturnmq.protocol.codes import PERM_READ, PERM_WRITE
from saturnmq.protocol.epochs import ceiling
from saturnmq.protocol.route import MASTER_ID, BrokerData, QueueData, TopicRoute
from saturnmq.protocol.topics import MEMBERS_PREFIX
from saturnmq.runtime.errors import ForeignGroup, InvalidParameter, SystemError_, TopicNotExist

from .claims import Claims, differ, refusal
from .living import Deposed, LiveBroker, Master, Registered, Term
from .registration import Registration

# Epochs are remembered when no member of their group lives, so their number must be bounded.
TERMS_MAX = 10_000


class RouteTable:
    """Routes of one nameserver."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._brokers: dict[str, BrokerData] = {}
        self._clusters: dict[str, set[str]] = {}
        self._leaderless: set[str] = set()  # broker names whose first master is not here yet
        self._live: dict[tuple[str, str], LiveBroker] = {}
        self._deposed: dict[tuple[str, str], Deposed] = {}
        self.terms: dict[tuple[str, str], Term] = {}
        self._claims = Claims()
        self.changed: dict[str, None] = {}
        self.changes = 0  # counts changes of all that a route or a view may show

    # -- brokers ---------------------------------------------------------------------------------

    def register(
        self, broker: Registration, now_ms: int, connection: Hashable = None
    ) -> Registered:
        """Take a registration, or name to a deposed master the master to follow.

        ForeignGroup: the broker name belongs to another group; InvalidParameter: no master of it
        can have this epoch. In these cases nothing was taken.
        """
        self.changes += 1
        self._check_group(broker, now_ms, connection)
        group = self._brokers.get(broker.name)
        holder = None if group is None else group.addresses.get(broker.broker_id)
        term = self._term_of(broker)
        _check_epoch(broker, term)
        key = (broker.name, broker.address)
        self._deposed.pop(key, None)
        if self._is_deposed(broker, holder, term):
            self._claims.hold(broker, now_ms)
            self._deposed[key] = Deposed(connection, now_ms + broker.timeout_ms)
            return Registered(taken=False, term=term, master=term.holder if term else None)
        self._check_place(broker, holder)
        if holder is None and len(broker.topics) == 1:
            raise SystemError_(
                "register broker failed: the first registration of a broker must carry its whole "
                "topic table, not one topic"
            )
        self._claims.hold(broker, now_ms)
        deposed = None
        if broker.broker_id == MASTER_ID and broker.version.state_version:
            term = self._begin_term(broker)
            if holder is not None and holder != broker.address:
                deposed = self._live.pop((broker.name, holder), None)
        group = self._join(broker, group)
        before = self._live.get(key)
        changed = holder is None or before is None or before.version != broker.version
        self._take_topics(broker, group, changed=changed)
        self._live[key] = LiveBroker(
            cluster=broker.cluster,
            name=broker.name,
            broker_id=broker.broker_id,
            address=broker.address,
            ha_address=broker.ha_address,
            identity=broker.identity,
            version=broker.version,
            timeout_ms=broker.timeout_ms,
            last_seen_ms=now_ms,
            connection=connection,
        )
        master = self._master_for(broker, group, term)
        return Registered(taken=True, term=term, master=master, deposed=deposed)

    def _master_for(
        self, broker: Registration, group: BrokerData, term: Term | None
    ) -> Master | None:
        """The master that a slave follows: the one of the routes, else the one of the newest epoch.
        That one may have forgotten its epoch and been deposed, and may wait for this slave's
        report."""
        if broker.broker_id == MASTER_ID:
            return None
        if group.master is None:
            return term.holder if term else None
        live = self._live.get((broker.name, group.master))
        return Master(live.address, live.ha_address, live.identity) if live else None

    def _check_group(self, broker: Registration, now_ms: int, connection: Hashable) -> None:
        try:
            self._claims.check(broker, now_ms)
        except ForeignGroup:
            known = self.live(broker.name, broker.address)
            if known is not None and known.connection is connection and not known.identity:
                self.unregister(broker.name, broker.address)  # it has got its identity since
            raise

    def _term_of(self, broker: Registration) -> Term | None:
        """The term of the broker's group; none if another group had the name before."""
        term = self.terms.get((broker.cluster, broker.name))
        return None if term and differ(term.holder.identity, broker.identity) else term

    def _check_place(self, broker: Registration, holder: str | None) -> None:
        """Raise ForeignGroup if a broker of an unknown group wants the place of a broker of a known
        group."""
        if broker.identity or holder is None or holder == broker.address:
            return
        other = self._live.get((broker.name, holder))
        if other is not None and other.identity:
            raise refusal(broker, other.identity, holder)

    def _is_deposed(self, broker: Registration, holder: str | None, term: Term | None) -> bool:
        """Whether a process announces a role that another process took over in a later epoch."""
        epoch = broker.version.state_version
        if epoch and term is not None and broker.broker_id == MASTER_ID:
            first = term.holder.address
            return epoch < term.epoch or (
                epoch == term.epoch and holder == first and first != broker.address
            )
        if holder is None or holder == broker.address:
            return False
        other = self._live.get((broker.name, holder))
        if other is None or differ(other.identity, broker.identity):
            return False
        return other.version.state_version > epoch

    def _begin_term(self, broker: Registration) -> Term:
        key = (broker.cluster, broker.name)
        self.terms.pop(key, None)
        holder = Master(broker.address, broker.ha_address, broker.identity)
        term = self.terms[key] = Term(broker.version.state_version, holder)
        if len(self.terms) > TERMS_MAX:
            gone = next((key for key in self.terms if key[1] not in self._brokers), None)
            self.terms.pop(gone or next(iter(self.terms)))
        return term

    def _join(self, broker: Registration, group: BrokerData | None) -> BrokerData:
        """Enter the broker into its group and cluster."""
        if group is None:
            group = self._brokers[broker.name] = BrokerData(broker.cluster, broker.name)
            self._leaderless.add(broker.name)
        elif group.cluster != broker.cluster:
            self._leave_cluster(group)
            group.cluster = broker.cluster
        self._clusters.setdefault(broker.cluster, set()).add(broker.name)
        group.enable_acting_master = broker.enable_acting_master
        addresses = {
            key: address for key, address in group.addresses.items() if address != broker.address
        }
        addresses[broker.broker_id] = broker.address
        if addresses != group.addresses:
            group.addresses = addresses
            self._moved(broker.name)
        return group

    def _moved(self, name: str) -> None:
        """Note that the addresses of a broker name have changed."""
        self.changed.update((topic, None) for topic, qs in self._topics.items() if name in qs)

    def _take_topics(self, broker: Registration, group: BrokerData, *, changed: bool) -> None:
        is_master = broker.broker_id == MASTER_ID
        is_prime_slave = (
            not is_master
            and group.enable_acting_master
            and broker.broker_id == min(group.addresses)
        )
        was_leaderless = broker.name in self._leaderless
        stands_in = was_leaderless and broker.identity != "" and not group.enable_acting_master
        if is_master:
            self._leaderless.discard(broker.name)
        elif stands_in:
            changed = False  # what another slave told stays
        elif not is_prime_slave:
            return
        if changed and (broker.whole or (is_master and was_leaderless)):
            for name in [n for n, queues in self._topics.items() if broker.name in queues]:
                if name not in broker.topics:
                    self._drop(name, broker.name)
        for topic in broker.topics.values():
            if not changed and broker.name in self._topics.get(topic.name, ()):
                continue
            data = QueueData(
                broker.name,
                topic.read_queues,
                topic.write_queues,
                topic.perm if is_master else topic.perm & ~PERM_WRITE,
                topic.sys_flag,
            )
            self.put_topic(topic.name, data)

    def unregister(self, name: str, address: str) -> None:
        """Forget one broker process; unknown ones are no error."""
        self.changes += 1
        self._live.pop((name, address), None)
        group = self._brokers.get(name)
        if group is None or address not in group.addresses.values():
            return
        group.addresses = {key: value for key, value in group.addresses.items() if value != address}
        self._moved(name)
        if group.addresses:
            if group.enable_acting_master and group.master is None:
                self._change_perm(name, lambda perm: perm & ~PERM_WRITE)
            return
        del self._brokers[name]
        self._leaderless.discard(name)
        self._leave_cluster(group)
        for topic in [topic for topic, queues in self._topics.items() if name in queues]:
            del self._topics[topic][name]
            if not self._topics[topic]:
                del self._topics[topic]

    def _leave_cluster(self, group: BrokerData) -> None:
        names = self._clusters.get(group.cluster, set())
        names.discard(group.broker_name)
        if not names:
            self._clusters.pop(group.cluster, None)

    def connection_closed(self, connection: Hashable) -> list[LiveBroker]:
        """Remove the brokers whose last registration came over this connection."""
        for key in [key for key, it in self._deposed.items() if it.connection is connection]:
            del self._deposed[key]
            self.changes += 1
        gone = [live for live in self._live.values() if live.connection is connection]
        for live in gone:
            self.unregister(live.name, live.address)
        return gone

    def expire(self, now_ms: int) -> list[LiveBroker]:
        """Remove the brokers that were silent for longer than they announced."""
        for key in [key for key, it in self._deposed.items() if it.until_ms < now_ms]:
            del self._deposed[key]
            self.changes += 1
        gone = [
            live for live in self._live.values() if live.last_seen_ms + live.timeout_ms < now_ms
        ]
        for live in gone:
            self.unregister(live.name, live.address)
        return gone

    def heartbeat(self, live: LiveBroker, now_ms: int) -> None:
        """Note a sign of life of the broker `live`."""
        live.last_seen_ms = now_ms
        self._claims.extend(live.name, live.identity, live.timeout_ms, now_ms)

    def live(self, name: str, address: str) -> LiveBroker | None:
        """The broker process of this name at this address, if it is in the routes."""
        return self._live.get((name, address))

    def unknown(self, broker_name: str, topics: Iterable[str]) -> int:
        """The number of these topics that have no entry under this broker name yet."""
        return sum(broker_name not in self._topics.get(topic, ()) for topic in topics)

    def __len__(self) -> int:
        """The number of entries: each topic at a broker name, and each broker process."""
        return sum(map(len, self._topics.values())) + len(self._live)

    # -- topics ----------------------------------------------------------------------------------

    def route(self, topic: str) -> TopicRoute:
        """The route of the topic; TopicNotExist when no live broker has it."""
        queues = self._topics.get(topic, {})
        brokers = [self._brokers[name] for name in sorted(queues) if name in self._brokers]
        if not brokers:
            raise TopicNotExist(f"No topic route info in name server for the topic: {topic}")
        if not topic.startswith(MEMBERS_PREFIX):
            brokers = [self._with_acting_master(data, queues) for data in brokers]
        return TopicRoute([queues[data.broker_name] for data in brokers], brokers)

    def _with_acting_master(self, group: BrokerData, queues: dict[str, QueueData]) -> BrokerData:
        """Without a master, and with writes off, the smallest id is shown as id 0
        (docs/internals/protocol.md 3.5)."""
        if (
            not group.enable_acting_master
            or group.master is not None
            or queues[group.broker_name].writable
        ):
            return group
        addresses = dict(group.addresses)
        addresses[MASTER_ID] = addresses.pop(min(addresses))
        return BrokerData(group.cluster, group.broker_name, addresses, enable_acting_master=True)

    def topics(self) -> list[str]:
        return sorted(self._topics)

    def flagged_topics(self, flags: int, without: int) -> list[str]:
        """Those whose system flag, at one of their brokers, has `flags` and not `without`."""
        found = ((name, next(iter(queues.values()))) for name, queues in self._topics.items())
        return sorted(name for name, data in found if data.sys_flag & (flags | without) == flags)

    def put_topic(self, topic: str, data: QueueData) -> None:
        """Take the queues of one topic at a broker name that is registered."""
        assert data.broker_name in self._brokers, f"{data.broker_name} is not registered"
        queues = self._topics.setdefault(topic, {})
        if queues.get(data.broker_name) != data:
            self.changes += 1
            queues[data.broker_name] = data
            self.changed[topic] = None

    def topics_by_cluster(self, cluster: str) -> list[str]:
        names = self._clusters.get(cluster, set())
        return sorted(topic for topic, queues in self._topics.items() if names & queues.keys())

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, in one cluster or in all."""
        queues = self._topics.get(topic)
        if queues is None:
            return
        names = set(queues) if cluster is None else self._clusters.get(cluster, set())
        for name in names & queues.keys():
            self._drop(topic, name)

    def _drop(self, topic: str, broker_name: str) -> None:
        """Note that the topic is no longer at this broker name."""
        queues = self._topics[topic]
        self.changes += 1
        del queues[broker_name]
        self.changed[topic] = None
        if not queues:
            del self._topics[topic]

    def wipe_write_perm(self, broker_name: str) -> int:
        """Take the write bit from all topics of a broker name; returns how many topics it has."""
        return self._change_perm(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, broker_name: str) -> int:
        """Make all topics of a broker name readable and writable; returns how many topics it
        has."""
        return self._change_perm(broker_name, lambda perm: PERM_READ | PERM_WRITE)

    def _change_perm(self, broker_name: str, change: Any) -> int:
        self.changes += 1
        count = 0
        for topic, queues in self._topics.items():
            data = queues.get(broker_name)
            if data is None:
                continue
            count += 1
            perm = change(data.perm)
            if perm != data.perm:
                data.perm = perm
                self.changed[topic] = None
        return count

    def take_changed(self) -> list[str]:
        """The topics whose route changed since the last call."""
        changed, self.changed = list(self.changed), {}
        return changed

    # -- views -----------------------------------------------------------------------------------

    def cluster_info(self) -> dict[str, Any]:
        """The answer to 106; `saturnDeposed` is ours."""
        deposed = self.deposed()
        return {
            "brokerAddrTable": {
                name: data.to_json() for name, data in sorted(self._brokers.items())
            },
            "clusterAddrTable": {
                cluster: sorted(names) for cluster, names in sorted(self._clusters.items())
            },
            **({"saturnDeposed": deposed} if deposed else {}),
        }

    def addresses(self, name: str) -> dict[int, str]:
        """The addresses of the brokers that are registered under this name, by id."""
        group = self._brokers.get(name)
        return dict(group.addresses) if group is not None else {}

    def deposed(self) -> dict[str, list[str]]:
        """The addresses of masters that are in no route, by broker name: there is or was a master
        of a later epoch, which may be gone with its disk."""
        found: dict[str, list[str]] = {}
        for name, address in sorted(self._deposed):
            found.setdefault(name, []).append(address)
        return found

    def member_group(self, cluster: str, name: str) -> dict[str, Any]:
        """The answer to 901; `saturnDeposed` is ours."""
        group = self._brokers.get(name)
        if group is None or group.cluster != cluster:
            group = BrokerData(cluster, name)
        value = group.to_json()
        del value["enableActingMaster"]
        deposed = self.deposed().get(name)
        return {"brokerMemberGroup": value, **({"saturnDeposed": deposed} if deposed else {})}

    def system_topics(self) -> dict[str, Any]:
        """The answer to 304: cluster and broker names are topics, because each broker makes
        them."""
        names = sorted(self._clusters) + sorted(self._brokers)
        addresses = [
            data.addresses[min(data.addresses)] for _, data in sorted(self._brokers.items())
        ]
        return {"brokerAddr": addresses[0] if addresses else None, "topicList": names}

    def validate(self) -> None:
        """Check the maps against each other; for tests and the simulator."""
        for topic, queues in self._topics.items():
            assert queues, f"topic {topic} has an empty entry"
            for name in queues:
                assert name in self._brokers, f"topic {topic} names unknown broker {name}"
        assert self._leaderless <= self._brokers.keys(), self._leaderless
        for name, group in self._brokers.items():
            assert group.addresses, f"broker {name} has no address"
            assert name in self._clusters.get(group.cluster, ()), f"broker {name} in no cluster"
            for address in group.addresses.values():
                assert (name, address) in self._live, f"{address} of {name} is not live"
        for cluster, names in self._clusters.items():
            assert names, f"cluster {cluster} is empty"
            assert names <= self._brokers.keys(), f"cluster {cluster} names unknown brokers"


def _check_epoch(broker: Registration, term: Term | None) -> None:
    """Raise InvalidParameter if the broker's epoch is further above those of its group than
    promotions go."""
    epoch, most = broker.version.state_version, ceiling(term.epoch if term else 0)
    if epoch > most:
        raise InvalidParameter(
            f"broker {broker.name} at {broker.address} registers in epoch {epoch}: the "
            f"highest known here is {term.epoch if term else 0}, so it may be {most} at most"
        )
