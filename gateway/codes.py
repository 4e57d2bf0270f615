"""From errors of Remoting to the codes of gRPC answers.

A call that fails ends with gRPC's OK and a `status` with one of these codes; clients decide by it
whether to try again, and where.
"""

from __future__ import annotations

from typing import Any

from saturnmq.gateway import v2
from saturnmq.protocol.codes import ResponseCode
from saturnmq.runtime.errors import (
    AccessDenied,
    ConnectFailed,
    ConnectionLost,
    InSyncReplicasNotEnough,
    RequestTimeout,
    SaturnError,
    SystemBusy,
)

NOT_MASTER = "[REJECTREQUEST]"  # how a node refuses a request because it is no master
Code: Any = v2.Code  # an IntEnum that is made of the descriptors
_R = ResponseCode
_CODES: dict[int, int] = {
    _R.SUCCESS: Code.OK,
    _R.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    _R.REQUEST_CODE_NOT_SUPPORTED: Code.NOT_IMPLEMENTED,
    _R.TRANSACTION_FAILED: Code.INVALID_TRANSACTION_ID,
    _R.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    _R.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
    _R.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    _R.MESSAGE_ILLEGAL: Code.BAD_REQUEST,
    _R.VERSION_NOT_SUPPORTED: Code.VERSION_UNSUPPORTED,
    _R.NO_PERMISSION: Code.FORBIDDEN,
    _R.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,
    _R.SUBSCRIPTION_PARSE_FAILED: Code.ILLEGAL_FILTER_EXPRESSION,
    _R.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
    _R.INVALID_PARAMETER: Code.BAD_REQUEST,
    _R.NO_MESSAGE: Code.INVALID_RECEIPT_HANDLE,
    _R.POLLING_FULL: Code.TOO_MANY_REQUESTS,
    _R.POLLING_TIMEOUT: Code.MESSAGE_NOT_FOUND,
    _R.QUERY_NOT_FOUND: Code.OFFSET_NOT_FOUND,
    _R.FLOW_CONTROL: Code.TOO_MANY_REQUESTS,
    _R.ILLEGAL_OPERATION: Code.BAD_REQUEST,
    _R.TRANSACTION_ENDED: Code.PRECONDITION_FAILED,
}


class CallRefused(SaturnError):
    """The call is wrong in itself: no broker needs to be asked"""

    def __init__(self, grpc_code: int, why: str) -> None:
        super().__init__(why)
        self.grpc_code = grpc_code


def code_of(error: SaturnError) -> int:
    """The code of an answer that tells this error."""
    match error:
        case CallRefused():
            return error.grpc_code
        case AccessDenied():
            return int(Code.UNAUTHORIZED)
        case InSyncReplicasNotEnough():
            return int(Code.HA_NOT_AVAILABLE)
        case SystemBusy() if str(error).startswith(NOT_MASTER):
            return int(Code.HA_NOT_AVAILABLE)  # clients go elsewhere, and do not wait for this node
        case RequestTimeout() | ConnectFailed() | ConnectionLost():
            return int(Code.PROXY_TIMEOUT)
    return int(_CODES.get(error.code, Code.INTERNAL_SERVER_ERROR))


def status(code: int, message: str = "OK") -> Any:
    """The status of an answer."""
    return v2.Status(code=code, message=message)


OK = status(Code.OK)


def failure(error: SaturnError) -> Any:
    """The status that tells an error. A missing topic is told in the words of Remoting, which
    Node.js's client looks for."""
    code = code_of(error)
    text = str(error)
    if code == Code.TOPIC_NOT_FOUND:
        text = f"CODE: 17  DESC: No topic route info in name server for the topic: {text}"
    return status(code, text)


def common(statuses: list[Any]) -> Any:
    """The status of an answer with several results."""
    codes = {each.code for each in statuses}
    return statuses[0] if len(codes) == 1 else status(Code.MULTIPLE_RESULTS, "the results differ")
