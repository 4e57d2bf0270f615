"""Blocks in which no collection frees what is only in a cycle: nodes free none that has lived
through one (`cli/garbage.py`)."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
