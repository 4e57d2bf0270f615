"""Whether a module of compiled kernels is there and wanted."""

from __future__ import annotations

import importlib
import os
from typing import Any


def compiled(module: str) -> Any:
    """The kernels in the module of this name. None: they were not compiled, or
    SATURNMQ_KERNELS=python asks for the Python references, which give the same answers."""
    if os.environ.get("SATURNMQ_KERNELS") == "python":
        return None
    try:
        return importlib.import_module(module)
    except ImportError:
        return None
