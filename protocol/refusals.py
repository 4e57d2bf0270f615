"""Why a server does not serve a request: the remark of its answer 3 (REQUEST_CODE_NOT_SUPPORTED).

`REASONS` has the requests of RocketMQ 5.4 that no server of ours serves, each with the reason and,
where there is one, the way out. Other codes belong to another kind of peer than the one that was
asked. mqadmin prints the remark; docs/interop.md lists mqadmin's commands that end here.
"""

from __future__ import annotations

from .codes import RequestCode
from .headers import HEADERS

_C = RequestCode
_COLD = "a read of old messages waits in a thread of its own, so no group is slowed down for it"
_ROCKSDB = "tables and queues are files of RocketMQ's default format; there is no RocksDB"
_CONTAINER = "a process is one broker; start or stop it with `saturnmq broker`"
_CONTROLLER = (
    "brokers agree on their roles with each other and with `saturnmq admin promote`; no controller "
    "of RocketMQ's leads them"
)
_UNUSED = "RocketMQ 5 has the number, and no request of this kind"

REASONS: dict[int, str] = {
    _C.QUERY_BROKER_OFFSET: _UNUSED,
    _C.GET_TOPIC_CONFIG_LIST: _UNUSED,
    _C.GET_TOPIC_NAME_LIST: _UNUSED,
    _C.TRIGGER_DELETE_FILES: _UNUSED,
    _C.GET_CLIENT_CONFIG: _UNUSED,
    _C.SUSPEND_CONSUMER: _UNUSED,
    _C.RESUME_CONSUMER: _UNUSED,
    _C.RESET_CONSUMER_OFFSET_IN_CONSUMER: _UNUSED,
    _C.RESET_CONSUMER_OFFSET_IN_BROKER: _UNUSED,
    _C.ADJUST_CONSUMER_THREAD_POOL: _UNUSED,
    _C.WHO_CONSUME_THE_MESSAGE: _UNUSED,
    _C.REGISTER_FILTER_SERVER: _UNUSED,
    _C.REGISTER_MESSAGE_FILTER_CLASS: _UNUSED,
    _C.RESUME_CHECK_HALF_MESSAGE: "an expired transaction is not asked about again; send its "
    "message from TRANS_CHECK_MAX_TIME_TOPIC",
    _C.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: _ROCKSDB,
    _C.EXPORT_ROCKSDB_CONFIG_TO_JSON: _ROCKSDB,
    _C.ADD_BROKER: _CONTAINER,
    _C.REMOVE_BROKER: _CONTAINER,
    _C.NOTIFY_MIN_BROKER_ID_CHANGE: "a slave of ours never acts as master: it is promoted, or not",
    _C.RESET_MASTER_FLUSH_OFFSET: "a slave hears from its master how far the group has confirmed, "
    "and truncates nothing below that",
    _C.CONTROLLER_ALTER_SYNC_STATE_SET: _CONTROLLER,
    _C.CONTROLLER_REGISTER_BROKER: _CONTROLLER,
    _C.CONTROLLER_GET_REPLICA_INFO: _CONTROLLER,
    _C.NOTIFY_BROKER_ROLE_CHANGED: _CONTROLLER,
    _C.CONTROLLER_GET_NEXT_BROKER_ID: _CONTROLLER,
    _C.CONTROLLER_APPLY_BROKER_ID: _CONTROLLER,
    _C.BROKER_CLOSE_CHANNEL_REQUEST: _CONTROLLER,
    _C.CHECK_NOT_ACTIVE_BROKER_REQUEST: _CONTROLLER,
    _C.GET_BROKER_LIVE_INFO_REQUEST: _CONTROLLER,
    _C.GET_SYNC_STATE_DATA_REQUEST: _CONTROLLER,
    _C.RAFT_BROKER_HEART_BEAT_EVENT_REQUEST: _CONTROLLER,
    _C.CLEAN_BROKER_DATA: "a nameserver keeps no record of brokers that are gone: they leave the "
    "routes with their connection",
    _C.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _COLD,
    _C.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _COLD,
    _C.GET_COLD_DATA_FLOW_CTR_INFO: _COLD,
    _C.SET_COMMITLOG_READ_MODE: "dataReadAheadEnable says it at the start, for all of the log",
    _C.SWITCH_TIMER_ENGINE: "timed messages wait in sorted runs; there is no other engine",
    _C.POP_ROLLBACK: "popped messages stay in their queues and a table knows their times; there "
    "are no records to export",
}
OF_NAMESERVERS = frozenset(
    {
        *(_C.PUT_KV_CONFIG, _C.GET_KV_CONFIG, _C.DELETE_KV_CONFIG, _C.GET_KVLIST_BY_NAMESPACE),
        *(_C.REGISTER_BROKER, _C.UNREGISTER_BROKER, _C.BROKER_HEARTBEAT, _C.QUERY_DATA_VERSION),
        *(_C.GET_ROUTEINFO_BY_TOPIC, _C.GET_BROKER_CLUSTER_INFO, _C.GET_BROKER_MEMBER_GROUP),
        *(_C.WIPE_WRITE_PERM_OF_BROKER, _C.ADD_WRITE_PERM_OF_BROKER),
        *(_C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, _C.GET_TOPICS_BY_CLUSTER),
        *(_C.GET_SYSTEM_TOPIC_LIST_FROM_NS, _C.DELETE_TOPIC_IN_NAMESRV),
        *(_C.REGISTER_TOPIC_IN_NAMESRV, _C.GET_UNIT_TOPIC_LIST, _C.GET_HAS_UNIT_SUB_TOPIC_LIST),
        _C.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        *(_C.UPDATE_NAMESRV_CONFIG, _C.GET_NAMESRV_CONFIG),
        *(_C.UPDATE_CONTROLLER_CONFIG, _C.GET_CONTROLLER_CONFIG),
        *(_C.CONTROLLER_ELECT_MASTER, _C.CONTROLLER_GET_METADATA_INFO),
        _C.CONTROLLER_GET_SYNC_STATE_DATA,
    }
)
"""The requests that nameservers serve, and brokers do not."""


def refusal(code: int) -> str:
    """The remark of the answer to a request that a server does not serve."""
    try:
        known = RequestCode(code)
    except ValueError:
        return f" request type {code} not supported"  # RocketMQ's text
    reason = REASONS.get(known)
    if reason is None and known in HEADERS:
        reason = f"ask a {'nameserver' if known in OF_NAMESERVERS else 'broker'}"
    return f"{known.name} ({code}) is not supported: {reason or 'servers send it, not get it'}"
