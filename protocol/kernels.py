"""The choice between the compiled kernels and their plain-Python references.

Import the loops over messages from here. SATURNMQ_KERNELS=python forces the references (tests and
the simulator swap them: a kernel must not change an answer); `COMPILED` says what was chosen.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from saturnmq.protocol import batch as _batch
from saturnmq.protocol import frame as _frame
from saturnmq.protocol import frame_reference as _reference
from saturnmq.protocol import ids as _ids
from saturnmq.protocol.frame import message_size
from saturnmq.protocol.frame_reference import Run, Scan

if TYPE_CHECKING:
    from saturnmq.protocol.message import ReceivedMessage

_kernel: Any = None
if os.environ.get("SATURNMQ_KERNELS") != "python":
    try:
        _kernel = importlib.import_module("saturnmq.protocol.frame_kernel")
    except ImportError:
        _kernel = None

COMPILED: bool = _kernel is not None

if TYPE_CHECKING or not COMPILED:
    crc32 = _frame.crc32
    encode_batch_item = _batch.encode_batch_item
    put_batch_item = _batch.put_batch_item
    check_batch = _batch.check_batch
    write_batch = _reference.write_batch
    write_message = _reference.write_message
    scan_frames = _reference.scan_frames
    batch_ids = _ids.batch_ids
    FrameView = _reference.FrameView
    MessageFields = _reference.MessageFields
    ResponseBuffer = _reference.ResponseBuffer
    _decode_frames = _reference.decode_frames
else:
    crc32 = _kernel.crc32
    encode_batch_item = _kernel.encode_batch_item
    put_batch_item = _kernel.put_batch_item
    check_batch = _kernel.check_batch
    write_batch = _kernel.write_batch
    write_message = _kernel.write_message
    scan_frames = _kernel.scan_frames
    batch_ids = _kernel.batch_ids
    FrameView = _kernel.FrameView
    MessageFields = _kernel.MessageFields
    ResponseBuffer = _kernel.ResponseBuffer
    _decode_frames = _kernel.decode_frames


def decode_frames(
    data: bytes | bytearray | memoryview,
    verify_crc: bool = False,
    broker_name: str = "",
    tags: frozenset[str] | None = None,
) -> list[ReceivedMessage]:
    """The messages of a pull reply (with `tags` only those that have one of them); MalformedFrame
    if it is not made of whole frames.
    """
    from saturnmq.protocol.message import ReceivedMessage  # message imports FrameView from here

    return _decode_frames(data, verify_crc, ReceivedMessage, broker_name, tags)


__all__ = [
    "COMPILED",
    "FrameView",
    "MessageFields",
    "ResponseBuffer",
    "Run",
    "Scan",
    "batch_ids",
    "check_batch",
    "crc32",
    "decode_frames",
    "encode_batch_item",
    "message_size",
    "put_batch_item",
    "scan_frames",
    "write_batch",
    "write_message",
]
