"""Types of writing.pyx; `batch.py`, `frame_reference.py` and `ids.py` describe each name."""

from array import array
from collections.abc import Sequence

from saturnmq.protocol.frame_reference import Buffer

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
def batch_ids(host_bytes: bytes, port: int, physical_offset: int, sizes: Sequence[int]) -> str: ...
