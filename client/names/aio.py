"""The public names for asyncio: those of `saturnmq`, with `async` methods."""

from saturnmq.client.admin.admin import Admin
from saturnmq.client.consumer.pull_consumer import PullConsumer
from saturnmq.client.consumer.push_consumer import PushConsumer
from saturnmq.client.consumer.results import ConsumeResult, Retry
from saturnmq.client.consumer.simple_consumer import SimpleConsumer
from saturnmq.client.producer.batch import SendHandle, SendResult
from saturnmq.client.producer.producer import Producer
from saturnmq.client.producer.results import SendStatus
from saturnmq.client.producer.timed import deliver_after, deliver_at, recall_handle
from saturnmq.client.producer.transactions import (
    Transaction,
    TransactionProducer,
    TransactionState,
)
from saturnmq.protocol.credentials import Credentials
from saturnmq.protocol.message import Message, MessageQueue, ReceivedMessage
from saturnmq.protocol.retry_policy import CustomizedRetryPolicy, ExponentialRetryPolicy
from saturnmq.protocol.sql92 import Sql
from saturnmq.runtime.errors import SaturnError

__all__ = [
    "Admin",
    "ConsumeResult",
    "Credentials",
    "CustomizedRetryPolicy",
    "ExponentialRetryPolicy",
    "Message",
    "MessageQueue",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "ReceivedMessage",
    "Retry",
    "SaturnError",
    "SendHandle",
    "SendResult",
    "SendStatus",
    "SimpleConsumer",
    "Sql",
    "Transaction",
    "TransactionProducer",
    "TransactionState",
    "deliver_after",
    "deliver_at",
    "recall_handle",
]
