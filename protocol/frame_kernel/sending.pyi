"""Types of sending.pyx; `message_reference.py` and `batch.py` describe each name."""

from saturnmq.protocol import message_reference
from saturnmq.protocol.frame_reference import Buffer

def put_batch_item(
    buffer: bytearray,
    at: int,
    body: Buffer,
    id_head: bytes,
    number: int,
    extra: bytes,
    flag: int = 0,
) -> int: ...

class Message(message_reference.Message): ...
