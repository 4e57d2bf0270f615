"""The choice between client_kernel and its reference, as protocol/kernels.py makes it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from saturnmq.client import outgoing_reference as _reference
from saturnmq.protocol import kernels as _protocol

_kernel: Any = None
if _protocol.COMPILED:
    try:
        _kernel = importlib.import_module("saturnmq.client.client_kernel")
    except ImportError:
        _kernel = None

if TYPE_CHECKING or _kernel is None:
    BatchFields = _reference.BatchFields
    HandleFields = _reference.HandleFields
    Outbox = _reference.Outbox
    ResultFields = _reference.ResultFields
    set_types = _reference.set_types
else:
    BatchFields = _kernel.BatchFields
    HandleFields = _kernel.HandleFields
    Outbox = _kernel.Outbox
    ResultFields = _kernel.ResultFields
    set_types = _kernel.set_types

__all__ = ["BatchFields", "HandleFields", "Outbox", "ResultFields", "set_types"]
