"""The public names for asyncio: those of `saturnmq`, with `async` methods."""

from saturnmq.client.admin import Admin
from saturnmq.client.outgoing import SendHandle, SendResult
from saturnmq.client.producer import Producer
from saturnmq.client.pull_consumer import PullConsumer
from saturnmq.client.push_consumer import PushConsumer
from saturnmq.client.results import ConsumeResult, SendStatus
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.message import Message, MessageQueue, ReceivedMessage
from saturnmq.protocol.sql92 import Sql

__all__ = [
    "Admin",
    "ConsumeResult",
    "Message",
    "MessageQueue",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "ReceivedMessage",
    "SaturnError",
    "SendHandle",
    "SendResult",
    "SendStatus",
    "Sql",
]
