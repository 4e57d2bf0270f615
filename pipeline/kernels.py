"""The choice between the compiled kernels of the pipeline and their plain-Python references.

Import from here what touches every message. SATURNMQ_KERNELS=python forces the references, as for
the other kernels; `COMPILED` says what was chosen. The references are fifty to three hundred times
slower: a decoder that falls back on them unasked warns.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from saturnmq.pipeline import arrow_reference as _decoding
from saturnmq.pipeline import encode_reference as _encoding
from saturnmq.protocol import kernels as _protocol

FORCED: bool = os.environ.get("SATURNMQ_KERNELS") == "python"
_decoder: Any = _decoding
_encoder: Any = _encoding
if _protocol.COMPILED:
    try:
        _decoder = importlib.import_module("saturnmq.pipeline.arrow_kernel")
        _encoder = importlib.import_module("saturnmq.pipeline.encode_kernel")
    except ImportError:  # only the other kernels could be compiled
        _decoder, _encoder = _decoding, _encoding

COMPILED: bool = _decoder is not _decoding

if TYPE_CHECKING:
    from saturnmq.pipeline.arrow_reference import Builder
    from saturnmq.pipeline.encode_reference import RowColumns
else:
    Builder = _decoder.Builder
    RowColumns = _encoder.RowColumns

__all__ = ["COMPILED", "FORCED", "Builder", "RowColumns"]
