"""The choice between client_kernel and its reference, as protocol/kernels.py makes it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from saturnmq.client.producer import batch_reference as _reference
from saturnmq.protocol import kernels as _protocol

_kernel: Any = None
if _protocol.COMPILED:
    try:
        _kernel = importlib.import_module("saturnmq.client.client_kernel")
    except ImportError:
        _kernel = None

if TYPE_CHECKING:
    handles_of = _reference.handles_of
    pack = _reference.pack
    results_of = _reference.results_of
else:
    # A kernel of older sources, in a tree that is run in place, lacks them.
    handles_of = getattr(_kernel, "handles_of", _reference.handles_of)
    pack = getattr(_kernel, "pack", _reference.pack)
    results_of = getattr(_kernel, "results_of", _reference.results_of)

if TYPE_CHECKING or _kernel is None:
    BatchFields = _reference.BatchFields
    Outbox = _reference.Outbox
    SendHandle = _reference.SendHandle
    SendResult = _reference.SendResult
else:
    BatchFields = _kernel.BatchFields
    Outbox = _kernel.Outbox
    SendHandle = _kernel.SendHandle
    SendResult = _kernel.SendResult

__all__ = [
    "BatchFields",
    "Outbox",
    "SendHandle",
    "SendResult",
    "handles_of",
    "pack",
    "results_of",
]
