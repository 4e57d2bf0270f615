"""The message as users see it: the class they send, and the class they receive.

A `Message` (message_reference.py) is a plain mutable value. A `ReceivedMessage`
(received_reference.py) is a window on a frame inside a pull reply and decodes on demand: most
consumers read the body and perhaps the tag, so the rest is never touched. It keeps the whole reply
alive; copy the body out to keep a message for long.
"""

from __future__ import annotations

from saturnmq.protocol.kernels import Message, ReceivedMessage
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.protocol.properties import decode_properties, encode_properties

__all__ = [
    "Message",
    "MessageQueue",
    "ReceivedMessage",
    "decode_properties",
    "encode_properties",
]
