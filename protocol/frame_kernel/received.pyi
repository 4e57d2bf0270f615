"""Types of received.pyx; `received_reference.py` describes each name."""

from collections.abc import Iterator
from typing import Generic, TypeVar

from saturnmq.protocol import received_reference
from saturnmq.protocol.frame_reference import Buffer

T = TypeVar("T")

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

class Upcoming(Generic[T]):
    def __init__(self, messages: list[T]) -> None: ...
    def __iter__(self) -> Iterator[T]: ...
    def __next__(self) -> T: ...
