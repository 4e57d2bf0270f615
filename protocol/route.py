"""Routes and topic settings as nameservers, brokers and clients exchange them (remoting.md 3.2,
3.4).

`TopicRoute` is what code 105 answers: which brokers hold a topic, with how many queues, and
where they listen. `TopicConfig` and `DataVersion` travel in registrations (103), slave metadata
(21) and config/topics.json. Readers take missing fields as RocketMQ's defaults; writers always
quote the broker ids, which every Java reader accepts. All are plain values: no I/O, no clocks.
"""

from dataclasses import dataclass, field
from typing import Any

from .codes import PERM_READ, PERM_WRITE

MASTER_ID = 0


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
        value = value or {}
        return cls(
            int(value.get("counter") or 0),
            int(value.get("timestamp") or 0),
            int(value.get("stateVersion") or 0),
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
        return cls(
            name=str(value["topicName"]),
            read_queues=int(value.get("readQueueNums", 16)),
            write_queues=int(value.get("writeQueueNums", 16)),
            perm=int(value.get("perm", PERM_READ | PERM_WRITE)),
            filter_type=str(value.get("topicFilterType") or "SINGLE_TAG"),
            sys_flag=int(value.get("topicSysFlag", 0)),
            order=bool(value.get("order", False)),
            attributes=dict(value.get("attributes") or {}),
        )


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
            broker_name=str(value["brokerName"]),
            read_queues=int(value.get("readQueueNums", 0)),
            write_queues=int(value.get("writeQueueNums", 0)),
            perm=int(value.get("perm", 0)),
            sys_flag=int(value.get("topicSysFlag", 0)),
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
            cluster=str(value.get("cluster") or ""),
            broker_name=str(value["brokerName"]),
            addresses={int(k): str(v) for k, v in (value.get("brokerAddrs") or {}).items()},
            enable_acting_master=bool(value.get("enableActingMaster", False)),
        )


@dataclass(slots=True)
class TopicRoute:
    """Where a topic lives."""

    queues: list[QueueData] = field(default_factory=list)
    brokers: list[BrokerData] = field(default_factory=list)
    order_topic_conf: str | None = None

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
    def from_json(cls, value: dict[str, Any]) -> "TopicRoute":
        return cls(
            queues=[QueueData.from_json(data) for data in value.get("queueDatas") or ()],
            brokers=[BrokerData.from_json(data) for data in value.get("brokerDatas") or ()],
            order_topic_conf=value.get("orderTopicConf"),
        )
