"""The settings of a broker, each defined once: its name here, its RocketMQ key, its default.

Sources, later ones winning: a TOML file or RocketMQ's `broker.conf` (Java properties), then
`SATURNMQ_*` environment variables, then keyword arguments (the command line's flags). An unknown
key is a `ConfigError` that names the nearest known one. A key of RocketMQ that is no setting of
ours is refused if its value promises something that this broker would not keep. Else it has no
effect, and the broker names it once at its start (`rocketmq_keys.py` has the keys and the reasons).
So a `broker.conf` of a Java broker starts ours unchanged, unless it asks for a feature that is
missing here. Such a file also turns on RocketMQ's rule for a disk that is short of space
(`cleanFileForciblyEnable`), which is off everywhere else.

Both spellings are read everywhere: `flush_disk_type = "SYNC_FLUSH"` and `flushDiskType=SYNC_FLUSH`.
Settings of the store (segment sizes, retention) are the fields of `StoreConfig`; they are read by
the same rules and kept in `store_options`.
"""

from __future__ import annotations

import dataclasses
import posixpath
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from saturnmq.broker.config_checks import check_copies
from saturnmq.broker.replication.election import LEASE_S_MAX, LEASE_S_MIN
from saturnmq.broker.replication.group_record import PRIORITY_MAX
from saturnmq.broker.rocketmq_keys import OLDER_NAMES, REFUSED, WITHOUT_EFFECT
from saturnmq.broker.tables.topics import READ, WRITE
from saturnmq.protocol import java_properties
from saturnmq.protocol.checked import INT64_MAX
from saturnmq.protocol.credentials import Credentials, read_credentials
from saturnmq.protocol.limits import MEMORY_MIN, Limits
from saturnmq.protocol.remoting import MAX_FRAME
from saturnmq.protocol.route import QUEUES_MAX
from saturnmq.protocol.settings import OURS, check_bounds, converted, setting
from saturnmq.protocol.signing import Signing
from saturnmq.protocol.topics import TRACE_TOPIC, check_topic
from saturnmq.runtime.errors import ConfigError, InvalidParameter, nearest
from saturnmq.store.message_store import StoreConfig

ROLES = ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE")
FLUSH_TYPES = ("ASYNC_FLUSH", "SYNC_FLUSH")
REST_BYTES = 64 << 10  # of a frame with a message: its header, with 32,767 bytes of properties


@dataclass(frozen=True)
class BrokerConfig:
    """All settings of a broker. Those marked `live` can be changed while it runs, because each use
    reads them from the context."""

    broker_name: str = setting("brokerName", "broker-a", rocketmq="the host's name", needed=True)
    """The name of the group that a master and its slaves are. No other group may have it."""
    cluster_name: str = setting("brokerClusterName", "DefaultCluster", needed=True)
    """The cluster that the group belongs to; tools list brokers by it."""
    broker_id: int = setting("brokerId", 0, 0, INT64_MAX)
    """0 is a master, any other number a slave. 1 if only `brokerRole` says SLAVE. Only the first
    role of a node is here, see `brokerRole`."""
    host: str = setting("bindAddress", "127.0.0.1", rocketmq="0.0.0.0", needed=True)
    """The address to listen on. Without `authenticationEnabled` everybody who reaches it may do
    everything, so other machines are let in only on request."""
    advertised_host: str = setting("brokerIP1", "", rocketmq="the first address of the host")
    """The address that clients are told; empty: `bindAddress`."""
    ha_advertised_host: str = setting("brokerIP2", "", rocketmq="the first address of the host")
    """The address that slaves are told; empty: the one that clients are told."""
    port: int = setting("listenPort", 10911, 0, 65_535)
    """The port for clients; 0 is any free port."""
    ha_port: int = setting("haListenPort", 10912, 0, 65_535)
    """The port for slaves; `listenPort` + 1 if only that is given."""
    grpc_port: int = setting("grpcServerPort", 8081, -1, 65_535, rocketmq="8081, of its proxy")
    """The port for clients of the gRPC API, with TLS or plain text; 0: any free port, -1: none."""
    tls_certificate: str = setting("tlsCertPath", "", rocketmq="a file of its proxy")
    """The certificate of all ports but replication's, and the chain behind it (PEM). Changed files
    serve from the next connection on."""
    tls_key: str = setting("tlsKeyPath", "", rocketmq="a file of its proxy")
    """The key of that certificate (PEM), without a password."""
    tls_test_mode: bool = setting("tlsTestModeEnable", True)
    """Without `tlsCertPath` the broker makes a self-signed certificate at its start, with
    `openssl`, in `tls` of its directory. It proves nothing to clients; those that check it refuse
    it."""
    fast_port: bool = setting("fastPortEnable", True, rocketmq=OURS)
    """Also listen on `listenPort` - 2, which RocketMQ always does and its slaves need."""
    local_socket: bool = setting("localSocketEnable", True, rocketmq=OURS)
    """Also listen on a Unix socket that is named after the address of the broker. Our clients on
    the same machine, of the same user or of any if the broker is root's, take it instead of the
    port; those with batches and pulls only where `net.core.wmem_max` is 1 MiB or more."""
    ha_master_address: str = setting("haMasterAddress", "", addresses=True)
    """The master to follow, `HOST:PORT` of its port for slaves; empty: ask the nameservers."""
    nameservers: tuple[str, ...] = setting("namesrvAddr", (), addresses=True)
    """The nameservers to register with, `HOST:PORT`, separated by semicolons or commas."""
    root: str = setting("storePathRootDir", "store", rocketmq="~/store", needed=True)
    """The directory of the broker: log, queues, index, tables."""
    role: str = setting("brokerRole", "ASYNC_MASTER")
    """ASYNC_MASTER acknowledges what it has, SYNC_MASTER what `inSyncReplicas` copies have; or
    SLAVE. A node that has followed a master does not start as one: `saturnmq admin promote` and
    `admin handover` move the role, and then win over this setting."""
    flush_disk_type: str = setting("flushDiskType", "ASYNC_FLUSH")
    """SYNC_FLUSH acknowledges what is on the disk, ASYNC_FLUSH what is in the page cache."""
    in_sync_replicas: int = setting("inSyncReplicas", 0, 0, rocketmq="1")
    """The copies that a send waits for, the master's own included. 0 is 2 for a SYNC_MASTER, which
    otherwise would wait for no slave, and 1 else."""
    min_in_sync_replicas: int = setting("minInSyncReplicas", 1)
    """Sends are refused while fewer copies than this are in sync."""
    all_ack: bool = setting("allAckInSyncStateSet", False)
    """A send waits for every slave that is in sync, not only for `inSyncReplicas`."""
    total_replicas: int = setting("totalReplicas", 0, 0, rocketmq="1")
    """The copies that the group has at most. A mode that needs more is refused at the start; 0 is
    not known."""
    sync_flush_timeout_ms: int = setting("syncFlushTimeout", 5_000, live=True)
    """A send that is not on the disk by then is answered FLUSH_DISK_TIMEOUT."""
    slave_timeout_ms: int = setting("slaveTimeout", 3_000, live=True)
    """A send without its copies by then is answered FLUSH_SLAVE_TIMEOUT."""
    flush_interval_ms: int = setting("flushIntervalCommitLog", 200, rocketmq="500")
    """The time between two syncs of the log under ASYNC_FLUSH. With 200 ms a power cut costs less
    than half a second of acknowledgements even when one sync is slow."""
    ha_max_gap_bytes: int = setting("haMaxGapNotInSync", 256 << 20, 0, INT64_MAX)
    """A slave that is further behind is not in sync."""
    ha_max_lag_ms: int = setting("haMaxTimeSlaveNotCatchup", 15_000)
    """A slave that has not been at the end of the log for so long is not in sync."""
    ha_flow_control: bool = setting("haFlowControlEnable", False)
    """`maxHaTransferByteInSecond` limits the transfer to slaves."""
    ha_max_bytes_per_s: int = setting("maxHaTransferByteInSecond", 100 << 20, 1, INT64_MAX)
    """The most that is sent to one slave, with `haFlowControlEnable`."""
    sync_from_last_file: bool = setting("syncFromLastFile", False)
    """An empty slave begins with the newest segment of its master's log and lacks the rest."""
    ha_transfer_bytes: int = setting("haTransferBatchSize", 1 << 20, rocketmq="32768")
    """One frame of the log to a slave at most. Larger frames cost the event loop fewer turns."""
    ha_heartbeat_ms: int = setting("haSendHeartbeatInterval", 5_000)
    """The time between two signs of life to a slave; with etcd a third of the lease at most."""
    ha_idle_ms: int = setting("haHousekeepingInterval", 20_000)
    """A replication connection over which nothing came for so long is closed."""
    ha_reconnect_ms: int = setting("haReconnectInterval", 200, rocketmq=OURS)
    """The time before a slave dials its master again. RocketMQ waits 5 s."""
    slave_sync_ms: int = setting("slaveSyncInterval", 1_000, rocketmq=OURS)
    """The time between two looks at the master's tables (topics, groups, offsets). Of a Java
    master it is 10 s at least, which is RocketMQ's own pace."""
    register_ms: int = setting("registerNameServerPeriod", 30_000)
    """The time between two registrations; 60 s at most, whatever is set."""
    default_topic_queues: int = setting("defaultTopicQueueNums", 8, 1, QUEUES_MAX)
    """The queues of a topic that the first send creates, at most; the client asks for a number."""
    auto_create_topics: bool = setting("autoCreateTopicEnable", True, live=True)
    """The first send to a topic creates it."""
    auto_create_groups: bool = setting("autoCreateSubscriptionGroup", True, live=True)
    """The first consumer of a group creates it."""
    permission: int = setting("brokerPermission", READ | WRITE, live=True)
    """2 is write, 4 is read, 6 is both. 4 takes the broker out of the writers' routes."""
    region: str = setting("regionId", "DefaultRegion")
    """The region that answers and messages name for RocketMQ's traces."""
    trace_topic_enable: bool = setting("traceTopicEnable", False)
    """The broker makes the topic of traces at its start, with one queue."""
    trace_topic: str = setting("msgTraceTopicName", TRACE_TOPIC)
    """The name of that topic."""
    max_message_bytes: int = setting("maxMessageSize", 4 << 20, 1, MAX_FRAME - REST_BYTES)
    """A message with a larger body is refused, and so is a batch with a larger one that has more
    than 4 MiB. The most fits into a Remoting frame."""
    look_micros: int = setting("lookMicros", 100, 0, 10_000, rocketmq=OURS)
    """After a request the broker looks for the next one for so many microseconds before it sleeps,
    unless others want the processor, or looking was in vain lately. Where idle processors halt, a
    lone sender gets its answers earlier. A slave looks after each part of the log. Where sends wait
    for copies, both look 2.5 times as long; for the disk, 6 times. 0 sleeps at once."""
    max_pending_acks: int = setting("maxPendingAcks", 100_000, rocketmq=OURS)
    """The sends that may wait for their acknowledgement; one more is refused."""
    max_held_pulls: int = setting("maxHeldPulls", 100_000, rocketmq=OURS)
    """The pulls that may wait for messages; then connections share the places."""
    max_held_pops: int = setting("maxPopPollingSize", 100_000)
    """The pops that may wait for messages; then connections share the places."""
    max_popped_messages: int = setting("maxPoppedMessages", 1_250_000, rocketmq=OURS, live=True)
    """The popped messages that may be open (not acknowledged) at once, of all groups."""
    pop_group_share: int = setting("popGroupShare", 4, rocketmq=OURS, live=True)
    """A group may have so many times the room that is left open: with 4, 4 of 5 parts of it all."""
    pop_threshold_enable: bool = setting("enablePopMessageThreshold", False, live=True)
    """`popInflightMessageThreshold` counts."""
    pop_queue_threshold: int = setting("popInflightMessageThreshold", 10_000, live=True)
    """The messages of one queue that a group may have open, with `enablePopMessageThreshold`."""
    memory_budget_bytes: int = setting(
        "memoryBudgetBytes", Limits.memory_bytes, MEMORY_MIN, INT64_MAX, rocketmq=OURS
    )
    """The memory that is held for peers. One connection gets a quarter, so the least leaves room
    for one request of 16 MiB."""
    max_connections: int = setting("maxConnections", Limits.connections, rocketmq=OURS)
    """The connections of the process; one more is answered SYSTEM_BUSY and closed."""
    max_connections_per_address: int = setting(
        "maxConnectionsPerAddress", Limits.per_address, rocketmq=OURS
    )
    """The connections from one IPv4 address, or from one IPv6 network (/64)."""
    max_idle_s: int = setting("serverChannelMaxIdleTimeSeconds", Limits.idle_s)
    """A client connection over which nothing came for so long is closed."""
    frame_timeout_s: int = setting("frameTimeoutSeconds", Limits.frame_s, rocketmq=OURS)
    """The time to send one request whole, and to read anything of what waits."""
    flush_offsets_ms: int = setting("flushConsumerOffsetInterval", 5_000)
    """The time between two saves of the offsets of groups."""
    client_expiry_ms: int = setting("channelExpiredTimeout", 120_000)
    """A client without a heartbeat for so long is no member of its groups any more."""
    slave_read: bool = setting("slaveReadEnable", True, rocketmq="false", live=True)
    """A slave serves consumers, which they need while their master is gone."""
    store_replies: bool = setting("storeReplyMessageEnable", True, live=True)
    """A reply to a request of an application is stored, too, so that it can be looked up."""
    enable_property_filter: bool = setting(
        "enablePropertyFilter", True, rocketmq="false", live=True
    )
    """The broker evaluates SQL92 conditions. It does so in steps, so they stop no other request."""
    stage_max_bytes: int = setting("stageMaxBytes", 256 << 20, 1, INT64_MAX, rocketmq=OURS)
    """The most that one partition of an exactly-once sink may stage. Sends wait while it goes into
    the log (35 to 60 ms of processor time for 64 MiB)."""
    stage_memory_bytes: int = setting("stageMemoryBytes", 256 << 20, 0, INT64_MAX, rocketmq=OURS)
    """The most that all sinks may stage in memory; the rest goes into files."""
    stage_total_bytes: int = setting("stageTotalBytes", 4 << 30, 0, INT64_MAX, rocketmq=OURS)
    """The most that all sinks may stage in memory and files."""
    stage_lease_ms: int = setting("stageLease", 600_000, rocketmq=OURS, live=True)
    """A stage is dropped when nothing was added to it for so long."""
    check_message_types: bool = setting(
        "enableTopicMessageTypeCheck", False, rocketmq="only at its proxy, and true there"
    )
    """A message of another type than its topic's (`message.type`, else NORMAL) is refused."""
    allow_mixed_types: bool = setting("enableMixedMessageType", False)
    """A topic may have the type MIXED, and takes messages of all types."""
    reject_transactions: bool = setting("rejectTransactionMessage", False, live=True)
    """Messages of transactions are refused."""
    transaction_timeout_ms: int = setting("transactionTimeOut", 6_000, 0, 86_400_000)
    """The age at which an open transaction is first asked about, unless its message says another
    (CHECK_IMMUNITY_TIME_IN_SECONDS)."""
    transaction_check_max: int = setting("transactionCheckMax", 15, 1, live=True)
    """The producer is asked so often; then the message goes to TRANS_CHECK_MAX_TIME_TOPIC."""
    transaction_check_ms: int = setting("transactionCheckInterval", 30_000, 10, 3_600_000)
    """The time between two questions. Each stores the message again, so it must be far below the
    time that the log is kept."""
    timer_wheel: bool = setting("timerWheelEnable", True)
    """Messages may name the moment of their delivery, or any delay."""
    timer_max_delay_s: int = setting("timerMaxDelaySec", 3 * 86_400, 1, 40 * 86_400, live=True)
    """The furthest moment of a delivery; a message for a later one is refused."""
    recall_messages: bool = setting("recallMessageEnable", True, rocketmq="false", live=True)
    """A timed message can be recalled by its handle before it is delivered."""
    append_topic_to_recalls: bool = setting("appendTopicForTimerDeleteKey", False)
    """A recall names its message by topic and id; RocketMQ's brokers must have the same value."""
    offset_check_in_slave: bool = setting("offsetCheckInSlave", False, live=True)
    """A slave corrects consumers whose offset is out of its range; else only a master does."""
    etcd_endpoints: tuple[str, ...] = setting("etcdEndpoints", (), rocketmq=OURS)
    """The members of the etcd through which the group elects its master; empty: it does not."""
    etcd_user: str = setting("etcdUser", "", rocketmq=OURS)
    """The user at etcd; it needs to read and write below `/saturnmq/`."""
    etcd_password: str = setting("etcdPassword", "", rocketmq=OURS, repr=False)
    """Its password."""
    etcd_ca_file: str = setting("etcdCaFile", "", rocketmq=OURS)
    """The certificates that etcd's own is checked with; turns TLS on."""
    etcd_cert_file: str = setting("etcdCertFile", "", rocketmq=OURS)
    """This broker's certificate for etcd."""
    etcd_key_file: str = setting("etcdKeyFile", "", rocketmq=OURS)
    """The key of that certificate."""
    election_lease_s: int = setting("electionLeaseS", 3, LEASE_S_MIN, LEASE_S_MAX, rocketmq=OURS)
    """A master that is silent for so long is replaced. etcd's own clients cannot go below 2, and
    the master's share is less."""
    election_priority: int = setting("brokerElectionPriority", PRIORITY_MAX, 0, PRIORITY_MAX)
    """Lower is preferred: such a slave, in sync for 10 s, takes over from a living master."""
    elect_unclean: bool = setting("electUncleanMaster", False, rocketmq=OURS)
    """A node that may lack acknowledged messages may be elected, too; RocketMQ's controller calls
    it `enableElectUncleanMaster`."""
    replication_secret: str = setting("replicationSecret", "", rocketmq=OURS, repr=False)
    """Signs what nodes and operators tell each other; empty: nothing is signed. Better set in the
    environment than in a file."""
    replication_secret_required: bool = setting("replicationSecretRequired", True, rocketmq=OURS)
    """Refuse what is not signed. False while a running cluster is being given a secret."""
    authentication: bool = setting("authenticationEnabled", False)
    """Take only requests that a user has signed. Nodes that follow each other need the same
    `innerClientAuthenticationCredentials`."""
    authorization: bool = setting("authorizationEnabled", False)
    """Take only requests that the rules of their user allow."""
    init_user: str = setting("initAuthenticationUser", "", repr=False)
    """The first super user, who makes the others: `{"username":"...","password":"..."}`. Ignored
    once there is a user of this name."""
    inner_credentials: str = setting("innerClientAuthenticationCredentials", "", repr=False)
    """The super user that brokers are for each other: `{"accessKey":"...","secretKey":"..."}`."""
    authentication_whitelist: tuple[str, ...] = setting("authenticationWhitelist", ())
    """Codes of requests that everybody may send, separated by commas."""
    authorization_whitelist: tuple[str, ...] = setting("authorizationWhitelist", ())
    """Codes of requests that every user may send."""
    store_options: Mapping[str, Any] = field(default_factory=dict)
    passed_over: tuple[str, ...] = ()  # settings of the file that have no meaning here

    def __post_init__(self) -> None:
        check_bounds(self)
        roles, flushes = ("brokerRole", ROLES), ("flushDiskType", FLUSH_TYPES)
        for value, (key, words) in ((self.role, roles), (self.flush_disk_type, flushes)):
            if value not in words:
                raise ConfigError(f"{key} is {value!r}; it must be one of {', '.join(words)}")
        try:
            check_topic(self.trace_topic)
        except InvalidParameter as error:
            raise ConfigError(f"msgTraceTopicName: {error}") from None
        check_copies(self)
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ConfigError("tlsCertPath and tlsKeyPath belong together: set both, or none")
        if self.permission not in (READ, WRITE, READ | WRITE):
            raise ConfigError(
                f"brokerPermission is {self.permission}; it must be 2 (write), 4 (read) or 6 (both)"
            )
        if self.authorization and not self.authentication:
            raise ConfigError(
                "authorizationEnabled without authenticationEnabled would believe every client "
                "who it is: set both"
            )
        # All raise ConfigError for impossible values.
        _ = self.signing, self.store_config(), self.first_user, self.own_credentials

    @property
    def is_slave(self) -> bool:
        return self.role == "SLAVE"

    @cached_property
    def sync_flush(self) -> bool:
        return self.flush_disk_type == "SYNC_FLUSH"

    @property
    def signing(self) -> Signing:
        return Signing(self.replication_secret, self.replication_secret_required)

    @property
    def first_user(self) -> Credentials | None:
        return read_credentials(self.init_user, "initAuthenticationUser", "username", "password")

    @property
    def own_credentials(self) -> Credentials | None:
        key = "innerClientAuthenticationCredentials"
        return read_credentials(self.inner_credentials, key, "accessKey", "secretKey")

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
        """The seconds between two signs of life to a slave, which does not elect while it hears its
        master."""
        most = self.election_lease_s / 3 if self.etcd_endpoints else self.ha_heartbeat_ms / 1000
        return min(self.ha_heartbeat_ms / 1000, most)

    @property
    def replicas_required(self) -> int:
        """The copies, this one included, that a send waits for."""
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
            pairs = _toml_pairs(text, path) if toml else list(java_properties.decode(text).items())
            if not toml:  # the author of a file for RocketMQ expects its rule
                values["clean_forcibly"] = True
            values |= values_of(pairs, path or "configuration")
            for name, value in pairs:
                if field_of(name) is None:
                    passed_over[_PASSED_OVER[name.lower()]] = value
        for name, value in (environ or {}).items():
            key = name.removeprefix("SATURNMQ_").lower()
            if name.startswith("SATURNMQ_") and key in _FIELDS:
                values |= _resolve(key, value, name)
        for name, value in overrides.items():
            if value is not None:
                values |= _resolve(name, value, "option")
        store = {n: values.pop(n) for n in list(values) if n not in _BROKER_FIELDS}
        if values.get("role") == "SLAVE" and "broker_id" not in values:
            values["broker_id"] = 1
        if values.get("broker_id", 0) > 0 and "role" not in values:
            values["role"] = "SLAVE"
        if "port" in values and "ha_port" not in values:  # as RocketMQ has it; 0 stays "any"
            values["ha_port"] = values["port"] and values["port"] + 1
        config = cls(**values, store_options=store, passed_over=tuple(sorted(passed_over)))
        _check_passed_over(passed_over, config, path or "configuration")
        return config


_BROKER_FIELDS = {f.name: f for f in dataclasses.fields(BrokerConfig) if "key" in f.metadata}
_FIELDS = {f.name: f for f in dataclasses.fields(StoreConfig)} | _BROKER_FIELDS
_BY_KEY = {str(f.metadata["key"]).lower(): f.name for f in _FIELDS.values()}
LIVE = {str(f.metadata["key"]): f.name for f in _BROKER_FIELDS.values() if f.metadata.get("live")}
"""The fields of the settings that a running broker can change, by RocketMQ's key."""
_BY_KEY["nameserver"] = "nameservers"
_BY_KEY |= {old.lower(): _BY_KEY[new.lower()] for old, new in OLDER_NAMES.items()}
_REFUSED = {
    name: (allowed, why) for why, names in REFUSED.items() for name, allowed in names.items()
}
_PASSED_OVER = {
    name.lower(): name for names in (_REFUSED, *WITHOUT_EFFECT.values()) for name in names
}


def field_of(name: str) -> str | None:
    """The field that a key means, in any spelling; None: it is none of ours."""
    lowered = name.lower().replace("-", "_")
    if lowered in _FIELDS:
        return lowered
    return _BY_KEY.get(lowered.replace("_", "")) or _BY_KEY.get(lowered)


def _resolve(name: str, value: Any, where: str) -> dict[str, Any]:
    """The field a key means, with its value converted; empty for an accepted key without effect."""
    field_name = field_of(name)
    if field_name is None:
        if name.lower() in _PASSED_OVER:
            return {}
        keys = [str(f.metadata["key"]) for f in _FIELDS.values()]
        names = [*keys, *_FIELDS, *_PASSED_OVER.values()]
        raise ConfigError(f"{where}: unknown key {name!r}{nearest(name, names, 0.4)}")
    return {field_name: converted(_FIELDS[field_name], name, value, where)}


def values_of(settings: Iterable[tuple[str, Any]], where: str = "change") -> dict[str, Any]:
    """The values of settings by field, without keys that have no effect. ConfigError: one is not of
    its kind, or two spellings of one setting have different values."""
    values: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    for name, value in settings:
        for field_name, found in _resolve(name, value, where).items():
            if values.setdefault(field_name, found) != found:
                raise ConfigError(
                    f"{where}: {spelled[field_name]} and {name} are one setting with two values: "
                    "leave one out"
                )
            spelled.setdefault(field_name, name)
    return values


def _check_passed_over(found: Mapping[str, Any], config: BrokerConfig, where: str) -> None:
    """Refuse keys without effect here if their values promise something that would not be kept."""
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


def _toml_pairs(text: str, path: str) -> list[tuple[str, Any]]:
    try:
        parsed = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    flat: list[tuple[str, Any]] = []
    for name, value in parsed.items():
        # Tables such as [broker] and [store] only group.
        flat += value.items() if isinstance(value, dict) else [(name, value)]
    return flat
