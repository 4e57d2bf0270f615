"""Requests of RocketMQ's tools that no server of ours serves, by name, each with the reason.

A server answers them with 3 (REQUEST_CODE_NOT_SUPPORTED), and `refusal` is the remark, which
mqadmin prints. docs/interop.md lists mqadmin's commands that end here.
"""

from __future__ import annotations

from .codes import RequestCode

_C = RequestCode
_ACL = "users and access rules are not part of this version: use it in trusted networks only"
_COLD = "a read of old messages waits in a thread of its own, so no group is slowed down for it"
_ROCKSDB = "tables and queues are files of RocketMQ's default format; there is no RocksDB"
_CONTAINER = "a process is one broker; start or stop it with `saturnmq broker`"

REASONS: dict[int, str] = {
    _C.RESUME_CHECK_HALF_MESSAGE: "an expired transaction is not asked about again; send its "
    "message from TRANS_CHECK_MAX_TIME_TOPIC",
    _C.UPDATE_AND_GET_GROUP_FORBIDDEN: "a group is forbidden one topic by nothing; "
    "updateSubGroup -s false stops it from consuming",
    _C.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: _ROCKSDB,
    _C.EXPORT_ROCKSDB_CONFIG_TO_JSON: _ROCKSDB,
    _C.ADD_BROKER: _CONTAINER,
    _C.REMOVE_BROKER: _CONTAINER,
    _C.RESET_MASTER_FLUSH_OFFSET: "a slave hears from its master how far the group has confirmed, "
    "and truncates nothing below that",
    _C.CLEAN_BROKER_DATA: "a nameserver keeps no record of brokers that are gone: they leave the "
    "routes with their connection",
    _C.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _COLD,
    _C.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _COLD,
    _C.GET_COLD_DATA_FLOW_CTR_INFO: _COLD,
    _C.SET_COMMITLOG_READ_MODE: "dataReadAheadEnable says it at the start, for all of the log",
    _C.AUTH_CREATE_USER: _ACL,
    _C.AUTH_UPDATE_USER: _ACL,
    _C.AUTH_DELETE_USER: _ACL,
    _C.AUTH_GET_USER: _ACL,
    _C.AUTH_LIST_USER: _ACL,
    _C.AUTH_CREATE_ACL: _ACL,
    _C.AUTH_UPDATE_ACL: _ACL,
    _C.AUTH_DELETE_ACL: _ACL,
    _C.AUTH_GET_ACL: _ACL,
    _C.AUTH_LIST_ACL: _ACL,
    _C.SWITCH_TIMER_ENGINE: "timed messages wait in sorted runs; there is no other engine",
    _C.POP_ROLLBACK: "popped messages stay in their queues and a table knows their times; there "
    "are no records to export",
}


def refusal(code: int) -> str:
    """The remark of the answer to a request that a server does not serve."""
    reason = REASONS.get(code)
    if reason is None:
        return f" request type {code} not supported"  # RocketMQ's text
    return f"{RequestCode(code).name} ({code}) is not supported: {reason}"
