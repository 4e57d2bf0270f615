"""One Remoting frame, both ways, without I/O (docs/internals/protocol.md 1.1-1.3).

| offset | type | meaning |
|---|---|---|
| 0 | i32 | length of everything after this field = 4 + header + body, at most 16 MiB |
| 4 | u8 | header serialisation: 0 JSON, 1 ROCKETMQ binary |
| 5 | u24 | header length in bytes |
| 8 | bytes | header |
| 8+h | bytes | body, may be absent |

Every connection between clients, brokers and nameservers writes and reads it, through
`endpoint.Endpoint`. We write JSON headers only and read both kinds, frame by frame, as a Java peer
may be set to either. `extFields` is written even when empty: Java turns a missing one into a null
that some of its code reads unguarded. Numbers and booleans among the ext values are taken as their
text, as fastjson does. Anything that does not parse raises MalformedFrame; the endpoint then closes
that one connection.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
from saturnmq.runtime.errors import MalformedFrame

VERSION = 493  # RocketMQ 5.4.0: lower ones turn features off (docs/internals/protocol.md 1.6)
MAX_FRAME = 16 * 1024 * 1024
# The limit of a header: 32,767 bytes of properties are not six times as many in JSON, and no
# request has a hundredth of the fields. A header of megabytes would take its reader seconds.
MAX_HEADER = 256 * 1024
REMARK_MAX = 32 * 1024  # characters, of which JSON may make six bytes each
# A RocketMQ broker answers a batch with the ids of all its messages: 65,536 of 57 characters.
MAX_ANSWER_HEADER = 4 * 1024 * 1024
MAX_FIELDS = 1024
LANGUAGES = (
    "JAVA",
    "CPP",
    "DOTNET",
    "PYTHON",
    "DELPHI",
    "ERLANG",
    "RUBY",
    "OTHER",
    "HTTP",
    "GO",
    "PHP",
    "OMS",
    "RUST",
    "NODE_JS",
)
FLAG_RESPONSE = 1
FLAG_ONEWAY = 2

_PREFIX = struct.Struct(">iI")  # length, serialisation byte and header length in one word
_BINARY_FIXED = struct.Struct(">hbhiii")  # code, language, version, opaque, flag, remark length
_I32 = struct.Struct(">i")
_I16 = struct.Struct(">h")
_FOUR_I32 = struct.Struct(">iiii")
PREFIX_BYTES = _PREFIX.size
assert PREFIX_BYTES == 8, "i32 and u32"
assert _BINARY_FIXED.size == 17, "i16, i8, i16 and three i32"
_KNOWN_LANGUAGES = frozenset(LANGUAGES)

Body = bytes | bytearray | memoryview
_HeaderValue = int | str | Mapping[str, str]


SECRET_FIELDS = frozenset({"Signature", "SecurityToken", "saturnCallerSignature"})


def without_secrets(fields: Mapping[str, str]) -> dict[str, str]:
    """The fields as they may be logged: who reads a signature could ask with it again."""
    return {name: "******" if name in SECRET_FIELDS else value for name, value in fields.items()}


class Command:
    """A request or a response. A received request's `body` is a view that dies with the call.

    A command to send may have `more`: pieces of the body behind `body`, so that scattered pieces
    are sent without being joined. A received command never has.
    """

    __slots__ = (
        "__weakref__",
        "body",
        "code",
        "ext",
        "flag",
        "language",
        "more",
        "opaque",
        "remark",
        "version",
    )

    def __init__(
        self,
        code: int,
        ext: dict[str, str] | None = None,
        body: Body = b"",
        *,
        opaque: int = 0,
        flag: int = 0,
        language: str | None = "PYTHON",
        version: int = VERSION,
        remark: str | None = None,
        more: Sequence[Body] = (),
    ) -> None:
        self.code = code
        self.ext: dict[str, str] = {} if ext is None else ext
        self.body = body
        self.more = more
        self.opaque = opaque
        self.flag = flag
        self.language = language
        self.version = version
        self.remark = remark

    @classmethod
    def request(cls, code: int, ext: dict[str, str] | None = None, body: Body = b"") -> "Command":
        """A request of ours; the endpoint gives it its opaque when it is sent."""
        return cls(int(code), ext, body)

    def reply(
        self,
        code: int = 0,
        remark: str | None = None,
        ext: dict[str, str] | None = None,
        body: Body = b"",
        more: Sequence[Body] = (),
    ) -> "Command":
        """The response to this request. Of a longer remark the peer gets the first REMARK_MAX
        characters: it may repeat fields of the request, and must fit into a header."""
        if remark is not None and len(remark) > REMARK_MAX:
            remark = f"{remark[:REMARK_MAX]}..."
        return Command(
            int(code), ext, body, opaque=self.opaque, flag=FLAG_RESPONSE, remark=remark, more=more
        )

    @property
    def body_size(self) -> int:
        """Bytes of `body` and `more`."""
        size = len(self.body)
        for piece in self.more:
            size += len(piece)
        return size

    @property
    def is_response(self) -> bool:
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & FLAG_ONEWAY)

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "oneway" if self.is_oneway else "request"
        return (
            f"<{kind} code={self.code} opaque={self.opaque} ext={without_secrets(self.ext)!r} "
            f"remark={self.remark!r} body={self.body_size} B>"
        )


class WrittenReply(Command):
    """A response whose head is written already, for as long as its code stays 0."""

    __slots__ = ("head",)

    def __init__(self, opaque: int, head: bytes, body: Body = b"") -> None:
        self.code, self.flag, self.opaque = 0, FLAG_RESPONSE, opaque
        self.language, self.version, self.remark = "PYTHON", VERSION, None
        self.body, self.more = body, ()
        self.head = head

    @property
    def ext(self) -> dict[str, str]:  # type: ignore[override]  # they are written: nobody sets them
        """The fields that are written in the head."""
        written = parse_start(memoryview(self.head))
        assert written is not None, f"{len(self.head)} bytes are no head"
        return written.ext


ReadFrame = Callable[[memoryview], Command]
"""Makes a command of a whole frame, as `parse_frame` does."""


def encode_head(command: Command, body_size: int | None = None) -> bytes:
    """Everything before the body: length, header length, JSON header."""
    if type(command) is WrittenReply and command.code == 0:
        return command.head
    if body_size is None:
        body_size = command.body_size
    header: dict[str, _HeaderValue] = {
        "code": command.code,
        "extFields": command.ext,
        "flag": command.flag,
        "language": command.language or "OTHER",
        "opaque": command.opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": command.version,
    }
    if command.remark is not None:
        header["remark"] = command.remark
    return framed_head(orjson.dumps(header), body_size)


def framed_head(header: bytes, body_size: int = 0) -> bytes:
    """A JSON header as the head of a frame with so many bytes of body."""
    return _PREFIX.pack(4 + len(header) + body_size, len(header)) + header


def encode(command: Command) -> list[Body]:
    """The frame as parts to be written in this order; the body is not copied."""
    head = encode_head(command)
    return [head, command.body, *command.more] if len(command.body) else [head]


def encode_binary(command: Command) -> list[Body]:
    """The frame with a ROCKETMQ binary header. We never send it; tests and tools do."""
    fields = bytearray()
    for name, value in command.ext.items():
        key, data = name.encode(), value.encode()
        fields += _I16.pack(len(key)) + key + _I32.pack(len(data)) + data
    remark = (command.remark or "").encode()
    language = LANGUAGES.index(command.language or "OTHER")
    header = (
        _BINARY_FIXED.pack(
            command.code, language, command.version, command.opaque, command.flag, len(remark)
        )
        + remark
        + _I32.pack(len(fields))
        + bytes(fields)
    )
    head = _PREFIX.pack(4 + len(header) + len(command.body), 1 << 24 | len(header)) + header
    return [head, command.body] if len(command.body) else [head]


def parse_frame(view: memoryview, max_header: int = MAX_HEADER) -> Command:
    """The command in one whole frame, from its length field to the last byte of its body.

    The body is a slice of `view`, not a copy.
    """
    size = len(view)
    if size < 8:
        raise MalformedFrame(f"frame of {size} bytes: at least 8 are needed")
    length, word = _PREFIX.unpack_from(view)
    if length != size - 4:
        raise MalformedFrame(f"frame says {length} bytes follow, {size - 4} do")
    header_end = 8 + (word & 0xFFFFFF)
    if header_end > size:
        raise MalformedFrame(
            f"header of {word & 0xFFFFFF} bytes does not fit a frame with {size - 8} left"
        )
    if header_end > 8 + max_header:
        raise MalformedFrame(f"header of {header_end - 8} bytes: the limit is {max_header}")
    command = _parse_header(word >> 24, view[8:header_end])
    command.body = view[header_end:]
    return command


def parse_answer(view: memoryview) -> Command:
    """As `parse_frame`, for those who get answers, next to nothing else."""
    return parse_frame(view, MAX_ANSWER_HEADER)


def parse_start(view: memoryview) -> Command | None:
    """The command whose frame begins with these bytes, without its body; None before its header is
    whole."""
    if len(view) < 8:
        return None
    _, word = _PREFIX.unpack_from(view)
    header_end = 8 + (word & 0xFFFFFF)
    if header_end > min(len(view), 8 + MAX_HEADER):
        return None
    return _parse_header(word >> 24, view[8:header_end])


def _parse_header(kind: int, header: memoryview) -> Command:
    if kind == 0:
        return _parse_json_header(header)
    if kind == 1:
        return _parse_binary_header(header)
    raise MalformedFrame(f"header serialisation {kind}: only 0 (JSON) and 1 (binary) exist")


def _parse_json_header(header: memoryview) -> Command:
    try:
        fields = orjson.loads(header)
    except ValueError as error:
        raise MalformedFrame(f"header is not JSON: {error}") from None
    if type(fields) is not dict:
        raise MalformedFrame(f"header is a JSON {type(fields).__name__}, not an object")
    get = fields.get
    try:
        ext = get("extFields")
        if ext is None:
            ext = {}
        elif type(ext) is not dict:
            raise MalformedFrame(f"extFields is a JSON {type(ext).__name__}, not an object")
        else:
            if len(ext) > MAX_FIELDS:
                raise _too_many()
            try:
                "".join(ext.values())  # the cheapest test whether all are text
            except TypeError:
                ext = {name: _text(value) for name, value in ext.items() if value is not None}
        code, opaque, flag = get("code", 0), get("opaque", 0), get("flag", 0)
        version = get("version", 0)
        try:
            _FOUR_I32.pack(
                code, opaque, flag, version
            )  # all are integers of 32 bits, as they should be
        except struct.error:
            code, opaque, flag = _int32(code), _int32(opaque), _int32(flag)
            version = _int32(version)
        language = get("language", "JAVA")
        if type(language) is not str or language not in _KNOWN_LANGUAGES:
            language = _language(language)
        command = Command(code, ext)
        command.opaque = opaque
        command.flag = flag
        command.version = version
        command.language = language
        remark = get("remark")
        if remark is not None:
            command.remark = _text(remark)
        return command
    except (ValueError, TypeError, OverflowError) as error:
        raise MalformedFrame(f"header field of a wrong type: {error}") from None


def _too_many() -> MalformedFrame:
    return MalformedFrame(f"more than {MAX_FIELDS} ext fields in one header")


def _int32(value: Any) -> int:
    if type(value) is not int:
        if type(value) is not str:
            raise TypeError(f"{value!r} is not an integer")
        value = int(value)
    if not -0x80000000 <= value <= 0x7FFFFFFF:
        raise ValueError(f"{value} does not fit 32 bits")
    return int(value)


def _text(value: Any) -> str:
    if type(value) is str:
        return value
    if value is True:
        return "true"
    if value is False:
        return "false"
    return orjson.dumps(value).decode()


def _language(value: Any) -> str | None:
    if type(value) is int and 0 <= value < len(LANGUAGES):
        return LANGUAGES[value]
    return None


def _parse_binary_header(header: memoryview) -> Command:
    try:
        code, language, version, opaque, flag, remark_size = _BINARY_FIXED.unpack_from(header)
        position = _BINARY_FIXED.size
        remark, position = _take(header, position, remark_size)
        (ext_size,) = _I32.unpack_from(header, position)
        position += 4
        if ext_size < 0 or position + ext_size > len(header):
            raise MalformedFrame(f"ext fields of {ext_size} bytes do not fit the header")
        end = position + ext_size
        ext: dict[str, str] = {}
        fields = 0
        while position < end:
            (size,) = _I16.unpack_from(header, position)
            name, position = _take(header, position + 2, size)
            (size,) = _I32.unpack_from(header, position)
            value, position = _take(header, position + 4, size)
            if name:
                ext[name] = value
            fields += 1
            if fields > MAX_FIELDS:
                raise _too_many()
    except struct.error as error:
        raise MalformedFrame(f"binary header ends early: {error}") from None
    except UnicodeDecodeError as error:
        raise MalformedFrame(f"binary header is not UTF-8: {error}") from None
    if position != end:
        raise MalformedFrame("an ext field runs over the end of the ext fields")
    return Command(
        code,
        ext,
        opaque=opaque,
        flag=flag,
        language=_language(language),
        version=version,
        remark=remark or None,
    )


def _take(header: memoryview, position: int, size: int) -> tuple[str, int]:
    if size < 0 or position + size > len(header):
        raise MalformedFrame(f"text of {size} bytes at {position} does not fit the binary header")
    return str(header[position : position + size], "utf-8"), position + size


def frame_size(view: memoryview, start: int, end: int, max_frame: int = MAX_FRAME) -> int:
    """Bytes of the frame that starts at `start`, or 0 while its length field is incomplete."""
    if end - start < 4:
        return 0
    (length,) = _I32.unpack_from(view, start)
    if not 4 <= length <= max_frame:
        raise MalformedFrame(f"frame of {length} bytes: 4 to {max_frame} are allowed")
    return 4 + int(length)


class FrameDecoder:
    """Bytes in, commands out, for callers without an endpoint: tests, tools, recorders."""

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self._max_frame = max_frame
        self._rest = bytearray()

    @property
    def pending(self) -> int:
        """Bytes of an incomplete frame."""
        return len(self._rest)

    def feed(self, data: Body) -> list[Command]:
        """The commands that are complete now; each owns its body."""
        self._rest += data
        whole = bytes(self._rest)
        view = memoryview(whole)
        commands: list[Command] = []
        start = 0
        while True:
            size = frame_size(view, start, len(whole), self._max_frame)
            if size == 0 or start + size > len(whole):
                break
            command = parse_frame(view[start : start + size])
            command.body = bytes(command.body)
            commands.append(command)
            start += size
        del self._rest[:start]
        return commands
