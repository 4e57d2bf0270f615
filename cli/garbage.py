"""Python's collector of garbage in a node, without long stops.

A full collection looks at every object there is: 100 ms for a million, and the loop waits. So what
was alive at one is taken to stay (`gc.freeze`), and the next looks only at what came since then:
`OLD` times 7,000 objects, about 10 ms. An object that dies is freed as ever. Only a cycle of
objects that dies after it has lived through a collection is never freed: connections that end, held
pulls and tables leave none.
"""

from __future__ import annotations

import gc

EVERY_S = 0.1
OLD = 10  # collections of the middle generation
_NEVER = 1 << 30


def begin() -> None:
    """What a start has made stays; no full collection comes by itself."""
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)
    _collect()


def look() -> None:
    """To be called every `EVERY_S`."""
    if gc.get_count()[2] >= OLD:
        _collect()


def _collect() -> None:
    gc.collect()
    gc.freeze()
