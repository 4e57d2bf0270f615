"""Types of received.pyx; `received_reference.py` describes each name."""

from saturnmq.protocol import received_reference
from saturnmq.protocol.frame_reference import Buffer

def decode_frames(
    data: Buffer,
    verify_crc: bool = False,
    broker_name: str = "",
    tags: frozenset[str] | None = None,
) -> list[ReceivedMessage]: ...
def decode_plain(
    data: Buffer,
    verify_crc: bool = False,
    broker_name: str = "",
    tags: frozenset[str] | None = None,
) -> list[ReceivedMessage] | None: ...

class ReceivedMessage(received_reference.ReceivedMessage): ...
class ResponseBuffer(bytearray): ...
