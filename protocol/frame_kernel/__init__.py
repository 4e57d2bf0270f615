"""The loops over message bytes, compiled, in the order of a message's life.

`sending.pyx`: messages, and the entries of a batch. `writing.pyx`: the frames of a batch.
`scanning.pyx`: frames that are read from the log. `received.pyx`: messages as a consumer gets them.

Each function has the signature and the answers of the readable reference that its module names:
tests/unit/test_frame_kernels.py holds one against the other on random and on damaged input. Nothing
here knows a file, a clock or a policy. `protocol/kernels.py` chooses the whole package or nothing.

The modules share `layout.pxd` and `crc.pxd`, which are compiled into each of them, so no loop over
messages calls from one module into another.

Memory: every length read from the input is checked against what is left before it is used. Long
work (LONG_BYTES and more) releases the GIL: the caller keeps the buffers alive and unchanged for
the call, as with any other call.
"""

from saturnmq.protocol.frame_kernel.received import (
    ReceivedMessage,
    ResponseBuffer,
    Upcoming,
    decode_frames,
    decode_plain,
)
from saturnmq.protocol.frame_kernel.scanning import (
    CRC_HARDWARE,
    crc32,
    crc32_joined,
    crc32_portable,
    has_wrapped,
    scan_frames,
)
from saturnmq.protocol.frame_kernel.sending import Message, put_batch_item
from saturnmq.protocol.frame_kernel.writing import (
    batch_ids,
    check_batch,
    write_batch,
    write_message,
)

__all__ = [
    "CRC_HARDWARE",
    "Message",
    "ReceivedMessage",
    "ResponseBuffer",
    "Upcoming",
    "batch_ids",
    "check_batch",
    "crc32",
    "crc32_joined",
    "crc32_portable",
    "decode_frames",
    "decode_plain",
    "has_wrapped",
    "put_batch_item",
    "scan_frames",
    "write_batch",
    "write_message",
]
