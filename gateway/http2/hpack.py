"""HPACK (RFC 7541): the headers of clients decoded; those of a server, which are few, encoded
without a table. Pure.

The Huffman code is canonical: codes of one length follow each other in the order of their symbols,
so the lengths of RFC 7541, appendix B, say all of it.
"""

from __future__ import annotations

import re
from collections import deque

TABLE_MAX = 4096  # bytes of a dynamic table: the setting that a client may rely on
LIST_MAX = 16 << 10  # bytes of one list of headers, counted as RFC 7541 counts a table
ENTRY_BYTES = 32  # what a header counts beside its text
PAIR_BYTES = 120  # of an entry's objects, beside its text
_LONG = 1 << 28  # no integer in a block is so large
_UNCLEAN = re.compile("[\0\r\n]")  # RFC 9113, 8.2.1

_STATIC_TEXT = """
:authority|:method GET|:method POST|:path /|:path /index.html|:scheme http|:scheme https|:status 200
:status 204|:status 206|:status 304|:status 400|:status 404|:status 500|accept-charset
accept-encoding gzip, deflate|accept-language|accept-ranges|accept|access-control-allow-origin|age
allow|authorization|cache-control|content-disposition|content-encoding|content-language
content-length|content-location|content-range|content-type|cookie|date|etag|expect|expires|from|host
if-match|if-modified-since|if-none-match|if-range|if-unmodified-since|last-modified|link|location
max-forwards|proxy-authenticate|proxy-authorization|range|referer|refresh|retry-after|server
set-cookie|strict-transport-security|transfer-encoding|user-agent|vary|via|www-authenticate
"""
Header = tuple[str, str]


def _static(text: str) -> Header:
    name, _, value = text.partition(" ")
    return name, value


STATIC: tuple[Header, ...] = tuple(map(_static, _STATIC_TEXT.strip().replace("\n", "|").split("|")))
assert len(STATIC) == 61, "RFC 7541, appendix A"

# Of the symbols 0 to 255, and of the end, which is never sent (RFC 7541, appendix B).
_LENGTHS = bytes.fromhex(
    "0d171c1c1c1c1c1c1c181e1c1c1e1c1c1c1c1c1c1c1c1e1c1c1c1c1c1c1c1c1c060a0a0c0d06080b0a0a080b"
    "080606060505050606060606060607080f060c0a0d0607070707070707070707070707070707070707070707"
    "0807080d130d0e060f05060506050606060507070606060506070605050607070707070f0b0e0d1c14161414"
    "1616161716171717171718171818161718171717171516171617171816151416161717151716161815161717"
    "151516151716171714161616171616171a1a1413161716191a1a1a1b1b1a181913151a1b1b1a1b1815151a1a"
    "1c1b1b1b14181415161515171616191918181a171a1b1a1a1b1b1b1b1b1c1b1b1b1b1b1a1e"
)
_END = 256


class BadBlock(ValueError):
    """A block of headers that no encoder makes: the connection is at its end."""


class ListTooLong(ValueError):
    """The headers of one request are too long. The table is as it has to be."""


class BadText(ValueError):
    """A value with a line end or a zero byte, which no header has. The table is as it has to be."""


def _codes() -> dict[tuple[int, int], int]:
    """(length, code) of each symbol."""
    found = {}
    code = length = 0
    for symbol in sorted(range(len(_LENGTHS)), key=lambda each: (_LENGTHS[each], each)):
        code <<= _LENGTHS[symbol] - length
        length = _LENGTHS[symbol]
        found[length, code] = symbol
        code += 1
    return found


def _machine() -> tuple[list[list[tuple[int, int]]], frozenset[int]]:
    """A row for each state, which is the bits of a symbol so far: by the next four bits the next
    state, and the symbol that ends there, or -1. The next state -1 is an error. And the states in
    which a text may end: fewer than eight bits of padding, all of them ones."""
    codes = _codes()
    states: dict[tuple[int, int], int] = {(0, 0): 0}
    for length, code in codes:
        for cut in range(1, length):
            states.setdefault((cut, code >> (length - cut)), len(states))
    rows = []
    for start in states:
        row = []
        for nibble in range(16):
            at, symbol = start, -1
            for bit in (3, 2, 1, 0):
                at = at[0] + 1, at[1] << 1 | (nibble >> bit & 1)
                if at in codes:
                    symbol, at = codes[at], (0, 0)
            row.append((-1, -1) if symbol == _END else (states[at], symbol))
        rows.append(row)
    ends = (states[cut, (1 << cut) - 1] for cut in range(8))
    return rows, frozenset(ends)


_STEPS, _ENDS = _machine()


def unpacked(data: bytes) -> bytes:
    """The text of a Huffman code."""
    found = bytearray()
    state = 0
    for byte in data:
        for nibble in (byte >> 4, byte & 15):
            state, symbol = _STEPS[state][nibble]
            if state < 0:
                raise BadBlock("the end symbol in a text")
            if symbol >= 0:
                found.append(symbol)
    if state not in _ENDS:
        raise BadBlock("a text ends within a symbol")
    return bytes(found)


class HeaderDecoder:
    """The headers of one connection. Each block changes the table, so all have to be decoded, in
    their order."""

    def __init__(self) -> None:
        self._table: deque[Header] = deque()
        self._size = 0
        self._limit = TABLE_MAX

    @property
    def memory(self) -> int:
        """Bytes of the table in the memory."""
        return self._size + len(self._table) * PAIR_BYTES

    def decode(self, block: bytes) -> list[Header]:
        """BadBlock; BadText; ListTooLong."""
        found: list[Header] = []
        at, end, total = 0, len(block), 0
        is_clean = True
        while at < end:
            first = block[at]
            if first & 0x80:
                index, at = _integer(block, at, 7)
                header = self._at(index)
            elif first & 0xE0 == 0x20:
                if total:
                    raise BadBlock("the size of the table changes behind a header")
                limit, at = _integer(block, at, 5)
                if limit > TABLE_MAX:
                    raise BadBlock(f"a table of {limit} bytes; {TABLE_MAX} are allowed")
                self._limit = limit
                self._shrink(0)
                continue
            else:
                is_kept = bool(first & 0x40)
                index, at = _integer(block, at, 6 if is_kept else 4)
                if index:
                    name = self._at(index)[0]
                else:
                    name, at = _text(block, at)
                value, at = _text(block, at)
                if not value.isprintable() and _UNCLEAN.search(value):
                    is_clean, value = False, _UNCLEAN.sub(" ", value)
                header = name, value
                if is_kept:
                    self._keep(header)
            total += len(header[0]) + len(header[1]) + ENTRY_BYTES
            if total <= LIST_MAX:
                found.append(header)
        if total > LIST_MAX:
            raise ListTooLong(f"the headers take {total} bytes, the limit is {LIST_MAX}")
        if not is_clean:
            raise BadText("a value with a line end or a zero byte")
        return found

    def _at(self, index: int) -> Header:
        if 0 < index <= len(STATIC):
            return STATIC[index - 1]
        number = index - len(STATIC) - 1
        if not 0 <= number < len(self._table):
            raise BadBlock(f"there is no header {index}")
        return self._table[number]

    def _keep(self, header: Header) -> None:
        size = len(header[0]) + len(header[1]) + ENTRY_BYTES
        self._shrink(size)
        if size <= self._limit:
            self._table.appendleft(header)
            self._size += size

    def _shrink(self, more: int) -> None:
        """Make room for so many bytes."""
        while self._table and self._size + more > self._limit:
            name, value = self._table.pop()
            self._size -= len(name) + len(value) + ENTRY_BYTES


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """The integer whose first `bits` bits are the last of the byte at `at`, and the end of it."""
    most = (1 << bits) - 1
    value = block[at] & most
    at += 1
    if value < most:
        return value, at
    shift = 0
    while True:
        if at >= len(block) or shift > 28:
            raise BadBlock("an integer without an end")
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if value > _LONG:
            raise BadBlock(f"an integer of {value}")
        if not byte & 0x80:
            return value, at
        shift += 7


def _text(block: bytes, at: int) -> tuple[str, int]:
    if at >= len(block):
        raise BadBlock("a block ends before a text")
    is_packed = block[at] & 0x80
    size, at = _integer(block, at, 7)
    if at + size > len(block):
        raise BadBlock(f"a text of {size} bytes in a block with {len(block) - at} left")
    data = block[at : at + size]
    if is_packed:
        data = unpacked(data)
    return str(data, "latin-1"), at + size


def encoded(headers: list[Header]) -> bytes:
    """A block of headers, none of which enters the table of the client."""
    out = bytearray()
    for header in headers:
        if header in STATIC:
            out.append(0x80 | STATIC.index(header) + 1)
            continue
        out.append(0)
        for text in header:
            data = text.encode("latin-1")
            size = len(data)
            if size < 0x7F:
                out.append(size)
            else:
                out.append(0x7F)
                size -= 0x7F
                while size >= 0x80:
                    out.append(size & 0x7F | 0x80)
                    size >>= 7
                out.append(size)
            out += data
    return bytes(out)
