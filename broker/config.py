"""What a broker may be told, each setting once: its name here, its RocketMQ key, its default.

Sources, later ones winning: a TOML file or RocketMQ's `broker.conf` (Java properties), then
`SATURNMQ_*` environment variables, then keyword arguments (the command line's flags). A key that
means nothing is a `ConfigError` naming the nearest right one. A key of RocketMQ that is no setting
of ours is refused at a value that would not be kept, else it has no effect and is named once at
start (`rocketmq_keys.py` says which and why): a `broker.conf` of a Java broker starts ours as it
is, unless it asks for what nobody here would do. It also has RocketMQ's rule of a short disk
(`cleanFileForciblyEnable`), which is off everywhere else.

Both spellings are read everywhere: `flush_disk_type = "SYNC_FLUSH"` and `flushDiskType=SYNC_FLUSH`.
Settings of the store (segment sizes, retention) are the fields of `StoreConfig`; they are read by
the same rules and kept in `store_options`.
"""

from __future__ import annotations

import dataclasses
import posixpath
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from saturnmq.broker.election import LEASE_S_MAX, LEASE_S_MIN, PRIORITY_MAX
from saturnmq.broker.rocketmq_keys import OLDER_NAMES, REFUSED, WITHOUT_EFFECT
from saturnmq.broker.topics import READ, WRITE
from saturnmq.protocol.checked import INT64_MAX
from saturnmq.protocol.errors import ConfigError, nearest
from saturnmq.protocol.limits import MEMORY_MIN, Limits
from saturnmq.protocol.route import QUEUES_MAX
from saturnmq.protocol.settings import check_bounds, setting
from saturnmq.protocol.signing import Signing
from saturnmq.store.message_store import StoreConfig

ROLES = ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE")
FLUSH_TYPES = ("ASYNC_FLUSH", "SYNC_FLUSH")


@dataclass(frozen=True)
class BrokerConfig:
    """Everything a broker is told at start; nothing changes it afterwards."""

    broker_name: str = setting("brokerName", "broker-a")
    cluster_name: str = setting("brokerClusterName", "DefaultCluster")
    broker_id: int = setting("brokerId", 0, 0, INT64_MAX)
    host: str = setting("bindAddress", "127.0.0.1")
    advertised_host: str = setting("brokerIP1", "")  # what clients are told; empty: `host`
    ha_advertised_host: str = setting("brokerIP2", "")  # what slaves are told; empty: the same
    port: int = setting("listenPort", 10911, 0, 65_535)
    ha_port: int = setting("haListenPort", 10912, 0, 65_535)
    fast_port: bool = setting("fastPortEnable", True)  # listen on port - 2 too, as Java slaves need
    ha_master_address: str = setting("haMasterAddress", "")
    nameservers: tuple[str, ...] = setting("namesrvAddr", ())
    root: str = setting("storePathRootDir", "store")
    role: str = setting("brokerRole", "ASYNC_MASTER")
    flush_disk_type: str = setting("flushDiskType", "ASYNC_FLUSH")
    in_sync_replicas: int = setting("inSyncReplicas", 0, 0)  # 0: 2 for SYNC_MASTER, else 1
    min_in_sync_replicas: int = setting("minInSyncReplicas", 1)  # fewer: sends are refused
    all_ack: bool = setting("allAckInSyncStateSet", False)  # wait for every slave in sync
    total_replicas: int = setting("totalReplicas", 0, 0)  # copies there are at most; 0: not known
    sync_flush_timeout_ms: int = setting("syncFlushTimeout", 5_000)
    slave_timeout_ms: int = setting("slaveTimeout", 3_000)
    flush_interval_ms: int = setting("flushIntervalCommitLog", 200)
    ha_max_gap_bytes: int = setting("haMaxGapNotInSync", 256 << 20, 0, INT64_MAX)
    ha_max_lag_ms: int = setting("haMaxTimeSlaveNotCatchup", 15_000)
    ha_flow_control: bool = setting("haFlowControlEnable", False)
    # To one slave at most.
    ha_max_bytes_per_s: int = setting("maxHaTransferByteInSecond", 100 << 20, 1, INT64_MAX)
    sync_from_last_file: bool = setting("syncFromLastFile", False)  # an empty slave skips the rest
    ha_transfer_bytes: int = setting("haTransferBatchSize", 1 << 20)
    ha_heartbeat_ms: int = setting("haSendHeartbeatInterval", 5_000)
    ha_idle_ms: int = setting("haHousekeepingInterval", 20_000)
    ha_reconnect_ms: int = setting("haReconnectInterval", 200)
    slave_sync_ms: int = setting("slaveSyncInterval", 1_000)  # of a Java master: 10 s at least
    register_ms: int = setting("registerNameServerPeriod", 30_000)
    default_topic_queues: int = setting("defaultTopicQueueNums", 8, 1, QUEUES_MAX)
    auto_create_topics: bool = setting("autoCreateTopicEnable", True)
    auto_create_groups: bool = setting("autoCreateSubscriptionGroup", True)
    permission: int = setting("brokerPermission", READ | WRITE)  # as of a topic; 4: being drained
    region: str = setting("regionId", "DefaultRegion")
    max_message_bytes: int = setting("maxMessageSize", 4 << 20)
    max_pending_acks: int = setting("maxPendingAcks", 100_000)
    max_held_pulls: int = setting("maxHeldPulls", 100_000)
    # What peers may take of this process, ours but for the idle time (protocol/connections.py).
    memory_budget_bytes: int = setting(
        "memoryBudgetBytes", Limits.memory_bytes, MEMORY_MIN, INT64_MAX
    )
    max_connections: int = setting("maxConnections", Limits.connections)
    max_connections_per_address: int = setting("maxConnectionsPerAddress", Limits.per_address)
    max_idle_s: int = setting("serverChannelMaxIdleTimeSeconds", Limits.idle_s)
    frame_timeout_s: int = setting("frameTimeoutSeconds", Limits.frame_s)  # to send a request
    flush_offsets_ms: int = setting("flushConsumerOffsetInterval", 5_000)
    client_expiry_ms: int = setting("channelExpiredTimeout", 120_000)
    slave_read: bool = setting("slaveReadEnable", True)
    enable_property_filter: bool = setting("enablePropertyFilter", True)  # RocketMQ's is false
    # Of one partition of a sink; of all in memory, beyond it in files; of all.
    stage_max_bytes: int = setting("stageMaxBytes", 256 << 20, 1, INT64_MAX)
    stage_memory_bytes: int = setting("stageMemoryBytes", 256 << 20, 0, INT64_MAX)
    stage_total_bytes: int = setting("stageTotalBytes", 4 << 30, 0, INT64_MAX)
    stage_lease_ms: int = setting("stageLease", 600_000)  # a stage that nobody adds to is dropped
    offset_check_in_slave: bool = setting("offsetCheckInSlave", False)  # else it corrects nobody
    etcd_endpoints: tuple[str, ...] = setting("etcdEndpoints", ())  # empty: nobody is elected
    etcd_user: str = setting("etcdUser", "")
    etcd_password: str = setting("etcdPassword", "", repr=False)
    etcd_ca_file: str = setting("etcdCaFile", "")  # turns TLS on
    etcd_cert_file: str = setting("etcdCertFile", "")
    etcd_key_file: str = setting("etcdKeyFile", "")
    # A dead master is noticed after this.
    election_lease_s: int = setting("electionLeaseS", 3, LEASE_S_MIN, LEASE_S_MAX)
    # Lower is preferred: such a slave takes over from a living master.
    election_priority: int = setting("brokerElectionPriority", PRIORITY_MAX, 0, PRIORITY_MAX)
    elect_unclean: bool = setting("electUncleanMaster", False)  # one that may lack messages, too
    # Signs what nodes tell each other (protocol/signing.py); empty: nothing is signed.
    replication_secret: str = setting("replicationSecret", "", repr=False)
    replication_secret_required: bool = setting("replicationSecretRequired", True)
    store_options: Mapping[str, Any] = field(default_factory=dict)
    passed_over: tuple[str, ...] = ()  # settings of the file that have no meaning here

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.role not in ROLES:
            raise ConfigError(f"brokerRole is {self.role!r}; it must be one of {', '.join(ROLES)}")
        if self.flush_disk_type not in FLUSH_TYPES:
            raise ConfigError(
                f"flushDiskType is {self.flush_disk_type!r}; it must be one of "
                + ", ".join(FLUSH_TYPES)
            )
        if (self.role == "SLAVE") != (self.broker_id > 0):
            raise ConfigError(
                f"brokerRole {self.role} with brokerId {self.broker_id}: a master has id 0, "
                "a slave an id above 0"
            )
        if self.role == "ASYNC_MASTER" and self.in_sync_replicas > 1:
            raise ConfigError(
                f"inSyncReplicas is {self.in_sync_replicas} but brokerRole is ASYNC_MASTER, which "
                "waits for nobody; use SYNC_MASTER"
            )
        if self.role == "SYNC_MASTER" and self.in_sync_replicas == 1:
            raise ConfigError(
                "inSyncReplicas is 1 but brokerRole is SYNC_MASTER: nobody would be waited for; "
                "use 2 or more, or ASYNC_MASTER"
            )
        copies = max(self.replicas_required, self.min_in_sync_replicas)
        if self.total_replicas and copies > self.total_replicas:
            raise ConfigError(
                f"a send waits for {copies} copies (inSyncReplicas, minInSyncReplicas), but "
                f"totalReplicas is {self.total_replicas}: that can never be met; add slaves, or "
                "ask for fewer copies"
            )
        if self.role == "SYNC_MASTER" and self.min_in_sync_replicas > self.replicas_required:
            raise ConfigError(
                f"minInSyncReplicas is {self.min_in_sync_replicas}, more than the "
                f"{self.replicas_required} copies that a send waits for (inSyncReplicas); raise "
                "that, too"
            )
        if self.role == "ASYNC_MASTER" and (self.min_in_sync_replicas > 1 or self.all_ack):
            raise ConfigError(
                "minInSyncReplicas above 1 or allAckInSyncStateSet with brokerRole ASYNC_MASTER, "
                "which waits for nobody; use SYNC_MASTER"
            )
        if self.permission not in (READ, WRITE, READ | WRITE):
            raise ConfigError(
                f"brokerPermission is {self.permission}; it must be 2 (write), 4 (read) or 6 (both)"
            )
        _ = self.signing, self.store_config()  # both are refused for what they cannot have

    @property
    def is_slave(self) -> bool:
        return self.role == "SLAVE"

    @property
    def sync_flush(self) -> bool:
        return self.flush_disk_type == "SYNC_FLUSH"

    @property
    def signing(self) -> Signing:
        return Signing(self.replication_secret, self.replication_secret_required)

    @property
    def limits(self) -> Limits:
        return Limits(
            self.max_connections,
            self.max_connections_per_address,
            self.max_idle_s,
            self.frame_timeout_s,
            self.memory_budget_bytes,
        )

    @property
    def ha_heartbeat_s(self) -> float:
        """Between two signs of life to a slave, which elects nobody while it hears its master."""
        most = self.election_lease_s / 3 if self.etcd_endpoints else self.ha_heartbeat_ms / 1000
        return min(self.ha_heartbeat_ms / 1000, most)

    @property
    def replicas_required(self) -> int:
        """Copies, this one included, that a send waits for."""
        if self.role != "SYNC_MASTER":
            return 1
        return self.in_sync_replicas or 2

    def store_config(self) -> StoreConfig:
        options = dict(self.store_options)
        known = {f.name for f in dataclasses.fields(StoreConfig)}
        # Under sync flush a group commit must not carry the zeroed window ahead of the writer.
        mine = {
            "root": self.root,
            "max_message_bytes": self.max_message_bytes,
            "sync_zeros": self.sync_flush,
        }
        for name, value in mine.items():
            if name in known:
                options.setdefault(name, value)
        return StoreConfig(**options)

    @classmethod
    def load(
        cls,
        text: str = "",
        *,
        path: str = "",
        environ: Mapping[str, str] | None = None,
        **overrides: Any,
    ) -> BrokerConfig:
        """Merge a file's `text` (TOML if `path` ends so), the environment and `overrides`."""
        values: dict[str, Any] = {}
        passed_over: dict[str, Any] = {}
        if text:
            toml = path.endswith(".toml")
            pairs = _toml_pairs(text, path) if toml else _properties(text)
            if not toml:  # who wrote it for RocketMQ expects its rule
                values["clean_forcibly"] = True
            for name, value in pairs.items():
                known = _resolve(name, value, path or "configuration")
                values |= known
                if not known:
                    passed_over[_PASSED_OVER[name.lower()]] = value
        for name, value in (environ or {}).items():
            if not name.startswith("SATURNMQ_") or name in _OTHER_VARIABLES:
                continue
            key = name.removeprefix("SATURNMQ_").lower()
            if key in _BROKER_FIELDS or key in _STORE_FIELDS:
                values |= _resolve(key, value, name)
        for name, value in overrides.items():
            if value is not None:
                values |= _resolve(name, value, "option")
        store = {n: values.pop(n) for n in list(values) if n not in _BROKER_FIELDS}
        explicit = values.pop("store_options", {})
        if values.get("role") == "SLAVE" and "broker_id" not in values:
            values["broker_id"] = 1
        if values.get("broker_id", 0) > 0 and "role" not in values:
            values["role"] = "SLAVE"
        if "port" in values and "ha_port" not in values:  # as RocketMQ has it; 0 stays "any"
            values["ha_port"] = values["port"] and values["port"] + 1
        config = cls(
            **values, store_options={**store, **explicit}, passed_over=tuple(sorted(passed_over))
        )
        _check_passed_over(passed_over, config, path or "configuration")
        return config


_OTHER_VARIABLES = frozenset({"SATURNMQ_KERNELS", "SATURNMQ_NAMESERVER"})
_BROKER_FIELDS = {f.name: f for f in dataclasses.fields(BrokerConfig) if f.name != "passed_over"}
_STORE_FIELDS = {f.name: f for f in dataclasses.fields(StoreConfig)}
_BY_KEY = {
    str(f.metadata.get("key", f.name)).lower(): f.name
    for f in [*_STORE_FIELDS.values(), *_BROKER_FIELDS.values()]
}
_BY_KEY["nameserver"] = "nameservers"
_BY_KEY |= {old.lower(): _BY_KEY[new.lower()] for old, new in OLDER_NAMES.items()}
_REFUSED = {
    name: (allowed, why) for why, names in REFUSED.items() for name, allowed in names.items()
}
_PASSED_OVER = {
    name.lower(): name for names in (_REFUSED, *WITHOUT_EFFECT.values()) for name in names
}


def _resolve(name: str, value: Any, where: str) -> dict[str, Any]:
    """The field a key means, with its value converted; empty for an accepted key without effect."""
    lowered = name.lower().replace("-", "_")
    field_name = lowered if lowered in _BROKER_FIELDS or lowered in _STORE_FIELDS else None
    field_name = field_name or _BY_KEY.get(lowered.replace("_", "")) or _BY_KEY.get(lowered)
    if field_name is None:
        if lowered in _PASSED_OVER:
            return {}
        fields = [*_BROKER_FIELDS.values(), *_STORE_FIELDS.values()]
        known = [f.name for f in fields]
        keys = [str(f.metadata["key"]) for f in fields if "key" in f.metadata]
        names = [*keys, *known, *_PASSED_OVER.values()]
        raise ConfigError(f"{where}: unknown key {name!r}{nearest(name, names, 0.4)}")
    return {field_name: _convert(field_name, name, value, where)}


def _convert(field_name: str, name: str, value: Any, where: str) -> Any:
    found = _BROKER_FIELDS.get(field_name) or _STORE_FIELDS[field_name]
    default = found.default
    try:
        if isinstance(default, tuple):
            parts = value.replace(",", ";").split(";") if isinstance(value, str) else value
            return tuple(p.strip() for p in parts if p.strip())
        if isinstance(default, bool):
            if isinstance(value, bool):
                return value
            return {"true": True, "false": False, "1": True, "0": False}[str(value).lower()]
        if isinstance(default, int):
            return int(value)
        if isinstance(default, float):
            return float(value)
    except (KeyError, TypeError, ValueError) as error:
        kind = "true or false" if isinstance(default, bool) else "a number"
        raise ConfigError(f"{where}: {name} is {value!r}; it must be {kind}") from error
    return value


def _check_passed_over(found: Mapping[str, Any], config: BrokerConfig, where: str) -> None:
    """Refuse what cannot be passed over without breaking what the file promises."""
    for name, (allowed, why) in _REFUSED.items():
        if str(found.get(name, allowed)).lower() != allowed.lower():
            raise ConfigError(
                f"{where}: {name}={found[name]}, but {why}; set it to {allowed or 'nothing'}, or "
                "leave it out"
            )
    ours = posixpath.normpath(f"{config.root}/commitlog")
    theirs = posixpath.normpath(str(found.get("storePathCommitLog") or ours))
    if theirs != ours:
        raise ConfigError(
            f"{where}: storePathCommitLog is {theirs!r}, but the log is always in 'commitlog' of "
            f"storePathRootDir, that is {ours!r}; move it there or link it"
        )


def _toml_pairs(text: str, path: str) -> dict[str, Any]:
    try:
        parsed = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    flat: dict[str, Any] = {}
    for name, value in parsed.items():
        if isinstance(value, dict):  # tables such as [broker] and [store] only group
            flat |= value
        else:
            flat[name] = value
    return flat


def _properties(text: str) -> dict[str, str]:
    """Java properties as `broker.conf` uses them: `key = value`, `#` and `!` comments."""
    pairs: dict[str, str] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in "#!":
            continue
        cut = min((line.find(c) for c in "=:" if c in line), default=-1)
        if cut <= 0:
            raise ConfigError(f"line {number}: {line[:60]!r} is not of the form key=value")
        pairs[line[:cut].strip()] = line[cut + 1 :].strip()
    return pairs
