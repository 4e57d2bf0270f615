"""The choice between poll_kernel and its reference, as protocol/kernels.py makes it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from saturnmq.client.consumer import poll_reference as _reference
from saturnmq.protocol import kernels as _protocol

_kernel: Any = _reference
if _protocol.COMPILED:
    try:
        _kernel = importlib.import_module("saturnmq.client.consumer.poll_kernel")
    except ImportError:
        _kernel = _reference

if TYPE_CHECKING:
    PollTurns = _reference.PollTurns
    QueueTurn = _reference.QueueTurn
else:
    PollTurns = _kernel.PollTurns
    QueueTurn = _kernel.QueueTurn

__all__ = ["PollTurns", "QueueTurn"]
