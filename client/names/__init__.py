"""SaturnMQ: a replicated message queue that speaks RocketMQ's protocols and keeps its files.

The synchronous names; `saturnmq.aio` has the same ones for asyncio. They load when first used, so
that `import saturnmq` costs nothing and servers never load the client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from saturnmq._version import VERSION as __version__

if TYPE_CHECKING:
    from saturnmq import aio as aio
    from saturnmq.client.blocking import Producer as Producer
    from saturnmq.client.blocking_faces import Admin as Admin
    from saturnmq.client.blocking_faces import PullConsumer as PullConsumer
    from saturnmq.client.blocking_faces import PushConsumer as PushConsumer
    from saturnmq.client.blocking_faces import SimpleConsumer as SimpleConsumer
    from saturnmq.client.blocking_transactions import Transaction as Transaction
    from saturnmq.client.blocking_transactions import TransactionProducer as TransactionProducer
    from saturnmq.client.consumer.results import ConsumeResult as ConsumeResult
    from saturnmq.client.consumer.results import Retry as Retry
    from saturnmq.client.producer.batch import SendHandle as SendHandle
    from saturnmq.client.producer.batch import SendResult as SendResult
    from saturnmq.client.producer.results import SendStatus as SendStatus
    from saturnmq.client.producer.timed import deliver_after as deliver_after
    from saturnmq.client.producer.timed import deliver_at as deliver_at
    from saturnmq.client.producer.timed import recall_handle as recall_handle
    from saturnmq.client.producer.transactions import TransactionState as TransactionState
    from saturnmq.protocol.credentials import Credentials as Credentials
    from saturnmq.protocol.message import Message as Message
    from saturnmq.protocol.message import MessageQueue as MessageQueue
    from saturnmq.protocol.message import ReceivedMessage as ReceivedMessage
    from saturnmq.protocol.retry_policy import CustomizedRetryPolicy as CustomizedRetryPolicy
    from saturnmq.protocol.retry_policy import ExponentialRetryPolicy as ExponentialRetryPolicy
    from saturnmq.protocol.sql92 import Sql as Sql
    from saturnmq.runtime.errors import SaturnError as SaturnError

_HOMES = {
    "Admin": "saturnmq.client.blocking_faces",
    "ConsumeResult": "saturnmq.client.consumer.results",
    "Credentials": "saturnmq.protocol.credentials",
    "CustomizedRetryPolicy": "saturnmq.protocol.retry_policy",
    "ExponentialRetryPolicy": "saturnmq.protocol.retry_policy",
    "Message": "saturnmq.protocol.message",
    "MessageQueue": "saturnmq.protocol.message",
    "Producer": "saturnmq.client.blocking",
    "PullConsumer": "saturnmq.client.blocking_faces",
    "PushConsumer": "saturnmq.client.blocking_faces",
    "ReceivedMessage": "saturnmq.protocol.message",
    "Retry": "saturnmq.client.consumer.results",
    "SaturnError": "saturnmq.runtime.errors",
    "SendHandle": "saturnmq.client.producer.batch",
    "SendResult": "saturnmq.client.producer.batch",
    "SendStatus": "saturnmq.client.producer.results",
    "SimpleConsumer": "saturnmq.client.blocking_faces",
    "Sql": "saturnmq.protocol.sql92",
    "Transaction": "saturnmq.client.blocking_transactions",
    "TransactionProducer": "saturnmq.client.blocking_transactions",
    "TransactionState": "saturnmq.client.producer.transactions",
    "deliver_after": "saturnmq.client.producer.timed",
    "deliver_at": "saturnmq.client.producer.timed",
    "recall_handle": "saturnmq.client.producer.timed",
}
__all__ = [*sorted(_HOMES), "__version__", "aio", "errors"]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name == "aio":
        return import_module("saturnmq.aio")
    if name == "errors":
        return import_module("saturnmq.runtime.errors")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'saturnmq' has no name {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
