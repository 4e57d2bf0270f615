"""The choice between the compiled kernels of the pipeline and their plain-Python references.

Import from here what touches every message. SATURNMQ_KERNELS=python forces the references, as for
the other kernels; `COMPILED` says what was chosen. The references are ten to thirty times slower:
a decoder that falls back on them unasked warns.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from saturnmq.pipeline import arrow_reference as _reference
from saturnmq.protocol import kernels as _protocol

FORCED: bool = os.environ.get("SATURNMQ_KERNELS") == "python"
_kernel: Any = None
if _protocol.COMPILED:
    try:
        _kernel = importlib.import_module("saturnmq.pipeline.arrow_kernel")
    except ImportError:  # only the other kernels could be compiled
        _kernel = None

COMPILED: bool = _kernel is not None

if TYPE_CHECKING:
    from saturnmq.pipeline.arrow_reference import Builder
else:
    Builder = (_kernel or _reference).Builder

__all__ = ["COMPILED", "FORCED", "Builder"]
