"""Commands that are read in one go from the bytes of a frame: a request to its typed header, an
answer to its fields as texts.

A server reads so the frames of its connections, a client the answers. The rules are those of
`remoting.parse_frame` and of the schema (`header_fields.py`), which read everything where no kernel
is compiled. `command_kernel.pyx` reads what clients and brokers usually send, and leaves all else
to them; so there is a header here only if every field of it is within its bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .codes import RequestCode
from .compiled import compiled
from .header_fields import Header
from .remoting import Command, ReadFrame, parse_answer, parse_frame, parse_start

_kernel: Any = compiled("saturnmq.protocol.command_kernel")


class TypedRequest(Command):
    """A request whose header is read already."""

    __slots__ = ("_ext", "head", "header")
    header: Header
    head: bytes
    """The bytes of its frame before the body."""

    # The fields as texts, which next to no handler asks for, are read only then.
    @property
    def ext(self) -> dict[str, str]:
        """The fields as they came."""
        if self.head:
            command = parse_start(memoryview(self.head))
            assert command is not None, f"a head of {len(self.head)} bytes was read before"
            self._ext, self.head = command.ext, b""
        return self._ext

    @ext.setter
    def ext(self, fields: dict[str, str]) -> None:
        self._ext, self.head = fields, b""


def header_of(request: Command, header: type[Header]) -> Header:
    """The typed header of a request; InvalidParameter names a field that is out of its bounds."""
    if type(request) is TypedRequest:
        return request.header
    return header.decode(request.ext)


def reader_of(headers: Mapping[RequestCode, type[Header]]) -> ReadFrame:
    """A function that reads a whole frame, as `parse_frame` does; these are the kinds of headers by
    request code."""
    if _kernel is None:
        return parse_frame
    return _first(_kernel.Reader(headers, TypedRequest).read, parse_frame)


def _first(read: Callable[[memoryview], Command | None], reference: ReadFrame) -> ReadFrame:
    """A function that asks `read` first, and then the reference."""

    def read_frame(frame: memoryview) -> Command:
        found = read(frame)
        return reference(frame) if found is None else found

    return read_frame


read_answer: ReadFrame = (
    parse_answer if _kernel is None else _first(_kernel.read_answer, parse_answer)
)
"""Reads a whole frame, as `parse_answer` does."""
