"""Routes and topic settings as nameservers, brokers and clients exchange them
(docs/internals/protocol.md 3.1, 3.4).

`TopicRoute` is the answer to code 105: which brokers hold a topic, with how many queues, and where
they listen. `TopicConfig` and `DataVersion` travel in registrations (103), slave metadata (21) and
config/topics.json. Readers take missing fields as RocketMQ's defaults; writers always quote the
broker ids, which every Java reader accepts. All are plain values: no I/O, no clocks.

A route comes from a peer, and clients make a list of its queues: a body that is no route, or names
more brokers or queues than the bounds below, raises MalformedFrame. An address is a text here; an
invalid one fails only the connection to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from saturnmq.runtime.errors import MalformedFrame

from . import checked
from .codes import PERM_READ, PERM_WRITE
from .epochs import EPOCH_MAX
from .remoting import Command

MASTER_ID = 0
QUEUES_MAX = 65_536  # of a topic on one broker, for reading and for writing: brokers refuse more
ROUTE_QUEUES_MAX = 4 * QUEUES_MAX  # of a topic on all brokers
BROKERS_MAX = 4096
TOPIC_CHARACTERS_MAX = 255


@dataclass(slots=True)
class DataVersion:
    """The version of a table: equal in all three means unchanged."""

    counter: int = 0
    timestamp: int = 0
    state_version: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "counter": self.counter,
            "stateVersion": self.state_version,
            "timestamp": self.timestamp,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any] | None) -> "DataVersion":
        """MalformedFrame: a number out of range; a state version is the epoch of a master."""
        value = value or {}
        return cls(
            checked.integer(value, "counter", 0),
            checked.integer(value, "timestamp", 0),
            checked.integer(value, "stateVersion", 0, most=EPOCH_MAX),
        )

    def next(self, now_ms: int) -> None:
        """Step after a change of the table."""
        self.counter += 1
        self.timestamp = now_ms


@dataclass(slots=True)
class TopicConfig:
    """The settings of one topic on one broker."""

    name: str
    read_queues: int = 8
    write_queues: int = 8
    perm: int = PERM_READ | PERM_WRITE
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "attributes": self.attributes,
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicFilterType": self.filter_type,
            "topicName": self.name,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queues,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "TopicConfig":
        """MalformedFrame: a field is out of its bounds, or no queue could have such a name."""
        most = checked.INT32_MAX
        attributes = checked.table(value, "attributes")
        return cls(
            name=topic_name(checked.text(value, "topicName")),
            read_queues=checked.integer(value, "readQueueNums", 16, most=QUEUES_MAX),
            write_queues=checked.integer(value, "writeQueueNums", 16, most=QUEUES_MAX),
            perm=checked.integer(value, "perm", PERM_READ | PERM_WRITE, most=most),
            filter_type=checked.text(value, "topicFilterType", "") or "SINGLE_TAG",
            sys_flag=checked.integer(value, "topicSysFlag", 0, most=most),
            order=value.get("order") is True,
            attributes={
                str(key): checked.as_text(text, f"attribute {key}")
                for key, text in attributes.items()
            },
        )


def topic_name(name: str) -> str:
    """The name, if a topic in a route can have it; MalformedFrame if not. Queues are directories of
    this name. Brokers make topics with names from files, of clusters for one, so more is allowed
    than for new ones."""
    is_path = "/" in name or "\0" in name or name in (".", "..")
    if is_path or not 0 < len(name) <= TOPIC_CHARACTERS_MAX:
        raise MalformedFrame(f"{name[:40]!r} of {len(name)} characters cannot be a topic's name")
    return name


@dataclass(slots=True)
class QueueData:
    """The queues of a topic on one broker name."""

    broker_name: str
    read_queues: int
    write_queues: int
    perm: int = PERM_READ | PERM_WRITE
    sys_flag: int = 0

    @property
    def readable(self) -> bool:
        return bool(self.perm & PERM_READ)

    @property
    def writable(self) -> bool:
        return bool(self.perm & PERM_WRITE)

    def to_json(self) -> dict[str, Any]:
        return {
            "brokerName": self.broker_name,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queues,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "QueueData":
        return cls(
            broker_name=checked.text(value, "brokerName"),
            read_queues=checked.integer(value, "readQueueNums", 0, most=QUEUES_MAX),
            write_queues=checked.integer(value, "writeQueueNums", 0, most=QUEUES_MAX),
            perm=checked.integer(value, "perm", 0, most=checked.INT32_MAX),
            sys_flag=checked.integer(value, "topicSysFlag", 0, most=checked.INT32_MAX),
        )


@dataclass(slots=True)
class BrokerData:
    """One broker name: the master under id 0, slaves under greater ids."""

    cluster: str
    broker_name: str
    addresses: dict[int, str] = field(default_factory=dict)
    enable_acting_master: bool = False

    @property
    def master(self) -> str | None:
        return self.addresses.get(MASTER_ID)

    def to_json(self) -> dict[str, Any]:
        return {
            "brokerAddrs": {str(key): value for key, value in sorted(self.addresses.items())},
            "brokerName": self.broker_name,
            "cluster": self.cluster,
            "enableActingMaster": self.enable_acting_master,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "BrokerData":
        return cls(
            cluster=checked.text(value, "cluster", ""),
            broker_name=checked.text(value, "brokerName"),
            addresses={
                checked.as_integer(broker_id, "a broker id"): checked.as_text(
                    address, "a broker's address"
                )
                for broker_id, address in checked.table(value, "brokerAddrs").items()
            },
            enable_acting_master=value.get("enableActingMaster") is True,
        )


def brokers_of(cluster: Mapping[str, Any]) -> list[BrokerData]:
    """Every broker in a nameserver's answer to GET_BROKER_CLUSTER_INFO (106)."""
    table = checked.table(cluster, "brokerAddrTable")
    return [BrokerData.from_json(checked.as_table(data, str(name))) for name, data in table.items()]


def deposed_of(cluster: Mapping[str, Any]) -> dict[str, list[str]]:
    """The addresses of masters that are in no route, by broker name, from the answer of our
    nameservers to GET_BROKER_CLUSTER_INFO (106)."""
    table = checked.table(cluster, "saturnDeposed")
    return {str(name): checked.texts(table, name) for name in table}


ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
"""The namespace of nameservers with the `orderTopicConf` of each ordered topic."""


def order_conf(queues: Mapping[str, int]) -> str:
    """The `orderTopicConf` with these numbers of queues, by broker name."""
    return ";".join(f"{name}:{count}" for name, count in queues.items())


def order_queues(conf: str) -> dict[str, int]:
    """The numbers of queues in an `orderTopicConf`, by broker name. MalformedFrame: an item of it
    is none."""
    counts: dict[str, int] = {}
    for item in conf.split(";") if conf else ():
        name, _, number = item.rpartition(":")
        if not name or not (number.isascii() and number.isdigit()) or len(number) > 5:
            raise MalformedFrame(
                f"orderTopicConf has {item!r:.127}: an item is BROKER:QUEUES (mqadmin "
                "updateOrderConf changes it)"
            )
        counts[name] = int(number)
    return counts


@dataclass(slots=True)
class TopicRoute:
    """The brokers and queues of a topic."""

    queues: list[QueueData] = field(default_factory=list)
    brokers: list[BrokerData] = field(default_factory=list)
    order_topic_conf: str | None = None
    """`BROKER:QUEUES;..`: where an ordered topic is written, whatever brokers are there."""

    @property
    def ordered(self) -> dict[str, int]:
        """The queues by broker name that `order_topic_conf` names, in its order. MalformedFrame: it
        names none."""
        return order_queues(self.order_topic_conf or "")

    def broker(self, name: str) -> BrokerData | None:
        return next((data for data in self.brokers if data.broker_name == name), None)

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "brokerDatas": [data.to_json() for data in self.brokers],
            "filterServerTable": {},
            "queueDatas": [data.to_json() for data in self.queues],
        }
        if self.order_topic_conf is not None:
            value["orderTopicConf"] = self.order_topic_conf
        return value

    @classmethod
    def from_json(cls, value: object) -> "TopicRoute":
        fields = checked.as_table(value, "a route")
        queues, brokers = (
            [checked.as_table(data, name) for data in checked.items(fields, name, BROKERS_MAX)]
            for name in ("queueDatas", "brokerDatas")
        )
        route = cls(
            queues=[QueueData.from_json(data) for data in queues],
            brokers=[BrokerData.from_json(data) for data in brokers],
            order_topic_conf=checked.text(fields, "orderTopicConf", "") or None,
        )
        count = sum(max(data.read_queues, data.write_queues) for data in route.queues)
        count = max(count, sum(route.ordered.values()))
        if count > ROUTE_QUEUES_MAX:
            raise MalformedFrame(
                f"a route of {count} queues on {len(queues)} brokers: the limit is "
                f"{ROUTE_QUEUES_MAX}; give the topic fewer"
            )
        return route


def brokers_in(answer: Command) -> list[BrokerData]:
    """The brokers in a nameserver's answer to GET_BROKER_CLUSTER_INFO (106)."""
    return brokers_of(checked.document(answer.body))
