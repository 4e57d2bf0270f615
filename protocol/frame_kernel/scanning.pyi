"""Types of scanning.pyx; `frame.py` and `frame_reference.py` describe each name."""

from saturnmq.protocol.frame_reference import Buffer, Scan

CRC_HARDWARE: bool

def crc32(data: Buffer) -> int: ...
def crc32_portable(data: Buffer) -> int: ...
def crc32_joined(head: bytes, tail: bytes, portable: bool = False) -> int: ...
def has_wrapped(frames: Buffer) -> bool: ...
def scan_frames(
    view: Buffer,
    pos: int,
    end: int,
    physical_base: int,
    verify_crc: bool = False,
    index: bool = True,
    delay_ms: tuple[int, ...] = (),
) -> Scan: ...
