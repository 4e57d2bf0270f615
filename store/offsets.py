"""The three kinds of numbers that say where a message is: types that only a type checker sees.

They are plain integers at run time. A number that is calculated is an `int` until its kind is
stated, so a function that wants one kind is not given another by mistake.
"""

from __future__ import annotations

from typing import NewType

PhysicalOffset = NewType("PhysicalOffset", int)
"""A position in the log, in bytes."""

QueueOffset = NewType("QueueOffset", int)
"""The number of a message in its queue."""

StoreTime = NewType("StoreTime", int)
"""When the log took a message, in milliseconds by the wall clock of its master."""
