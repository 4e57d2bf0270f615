"""The choice between the compiled kernels and their plain-Python references.

Import the loops over messages from here. SATURNMQ_KERNELS=python forces the references (tests and
the simulator swap them: a kernel must not change an answer); `COMPILED` shows the choice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from saturnmq.protocol import batch as _batch
from saturnmq.protocol import frame as _frame
from saturnmq.protocol import frame_reference as _reference
from saturnmq.protocol import ids as _ids
from saturnmq.protocol import message_reference as _sent
from saturnmq.protocol import received_reference as _received
from saturnmq.protocol.compiled import compiled
from saturnmq.protocol.frame import message_size
from saturnmq.protocol.frame_reference import Run, Scan, ScanStatus

_kernel: Any = compiled("saturnmq.protocol.frame_kernel")

COMPILED: bool = _kernel is not None

if TYPE_CHECKING or not COMPILED:
    crc32 = _frame.crc32
    put_batch_item = _batch.put_batch_item
    check_batch = _batch.check_batch
    write_batch = _reference.write_batch
    write_message = _reference.write_message
    scan_frames = _reference.scan_frames
    has_wrapped = _reference.has_wrapped
    batch_ids = _ids.batch_ids
    Message = _sent.Message
    ReceivedMessage = _received.ReceivedMessage
    ResponseBuffer = _received.ResponseBuffer
    decode_frames = _received.decode_frames
    decode_plain = _received.decode_plain
    upcoming = _received.upcoming
else:
    crc32 = _kernel.crc32
    put_batch_item = _kernel.put_batch_item
    check_batch = _kernel.check_batch
    write_batch = _kernel.write_batch
    write_message = _kernel.write_message
    scan_frames = _kernel.scan_frames
    has_wrapped = _kernel.has_wrapped
    batch_ids = _kernel.batch_ids
    Message = _kernel.Message
    ReceivedMessage = _kernel.ReceivedMessage
    ResponseBuffer = _kernel.ResponseBuffer
    decode_frames = _kernel.decode_frames
    decode_plain = _kernel.decode_plain
    upcoming = _kernel.Upcoming

__all__ = [
    "COMPILED",
    "Message",
    "ReceivedMessage",
    "ResponseBuffer",
    "Run",
    "Scan",
    "ScanStatus",
    "batch_ids",
    "check_batch",
    "crc32",
    "decode_frames",
    "decode_plain",
    "has_wrapped",
    "message_size",
    "put_batch_item",
    "scan_frames",
    "upcoming",
    "write_batch",
    "write_message",
]
