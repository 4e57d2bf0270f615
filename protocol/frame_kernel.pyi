"""Types of the compiled kernels; `frame_reference.py` and `batch.py` describe each."""

from array import array
from collections.abc import Sequence

from saturnmq.protocol import received_reference
from saturnmq.protocol.frame_reference import Buffer, Scan

CRC_HARDWARE: bool

def crc32(data: Buffer) -> int: ...
def crc32_portable(data: Buffer) -> int: ...
def put_batch_item(
    buffer: bytearray,
    at: int,
    body: Buffer,
    id_head: bytes,
    number: int,
    extra: bytes,
    flag: int = 0,
) -> int: ...
def check_batch(
    body: Buffer,
    topic_len: int,
    host6: int,
    crc_property: bool,
    max_body: int,
    max_properties: int = 32767,
) -> tuple[int, int]: ...
def write_message(
    out: bytearray | memoryview,
    pos: int,
    physical_offset: int,
    queue_offset: int,
    queue_id: int,
    flag: int,
    sys_flag: int,
    born_ts: int,
    born_host: bytes,
    store_ts: int,
    store_host: bytes,
    reconsume: int,
    prepared_offset: int,
    body: Buffer,
    topic: bytes,
    properties: bytes,
    crc_property: bool = False,
) -> int: ...
def write_batch(
    body: Buffer,
    out: bytearray | memoryview,
    pos: int,
    physical_offset: int,
    queue_offset: int,
    queue_id: int,
    sys_flag: int,
    born_ts: int,
    born_host: bytes,
    store_ts: int,
    store_host: bytes,
    reconsume: int,
    topic: bytes,
    crc_property: bool = False,
) -> tuple[int, array[int]]: ...
def scan_frames(
    view: Buffer,
    pos: int,
    end: int,
    physical_base: int,
    verify_crc: bool = False,
    index: bool = True,
    delay_ms: tuple[int, ...] = (),
) -> Scan: ...
def decode_frames(
    data: Buffer,
    verify_crc: bool = False,
    broker_name: str = "",
    tags: frozenset[str] | None = None,
) -> list[ReceivedMessage]: ...
def batch_ids(host_bytes: bytes, port: int, physical_offset: int, sizes: Sequence[int]) -> str: ...

class ReceivedMessage(received_reference.ReceivedMessage): ...
class ResponseBuffer(bytearray): ...
