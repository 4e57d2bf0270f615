"""gRPC over the streams of a connection: which call it is, its messages, its status.

request   HEADERS :path /service/call, metadata · DATA u8 packed, u32 length, message
answer    HEADERS :status 200 · DATA, as above · HEADERS grpc-status, grpc-message
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

from saturnmq.gateway import calls
from saturnmq.gateway.calls import CallFailed, Dialogue, GrpcCall, GrpcStatus, Service, Unary
from saturnmq.gateway.descriptors import Rpc, rpcs_of
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import SaturnError, SystemBusy
from saturnmq.runtime.turns import Turns

from .fields import TooManyFields, check_fields
from .hpack import encoded
from .stream import MESSAGE_HEAD, Stream

log = logging.getLogger(__name__)

UNPACKED_STEP = 1 << 20
UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_PLAIN = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


_CONTENT = ("content-type", "application/grpc")
HEAD = encoded([(":status", "200"), _CONTENT])
DONE = encoded([("grpc-status", "0")])


def failed(error: CallFailed) -> bytes:
    """The only headers of an answer that is an error."""
    return encoded([(":status", "200"), _CONTENT, *_status(error)])


def ended(error: CallFailed) -> bytes:
    """The trailers of an answer that ends with an error."""
    return encoded(_status(error))


def _status(error: CallFailed) -> list[tuple[str, str]]:
    text = quote(str(error).encode(), safe=_PLAIN)
    return [("grpc-status", str(int(error.status))), ("grpc-message", text)]


def packed(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return MESSAGE_HEAD.pack(0, len(data)) + data


TOO_LATE = CallFailed(GrpcStatus.DEADLINE_EXCEEDED, "the time for this call is over")


def end_with(stream: Stream, error: CallFailed) -> None:
    """End a call without the answer that it may have."""
    stream.expire(failed(error), ended(error))
    stream.cancel()


def end_late(stream: Stream) -> None:
    """The time of a call is over: its client waits no more."""
    end_with(stream, TOO_LATE)


def refuse(stream: Stream, why: str) -> None:
    """There is no room for a request."""
    log.debug("a call is refused: %s", why)
    end_with(stream, CallFailed(GrpcStatus.RESOURCE_EXHAUSTED, why))


Answer = Callable[[Stream, GrpcCall, Any], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Served:
    """A call, and how it is answered."""

    rpc: Rpc
    answer: Answer


class GrpcCalls:
    """The calls of all connections of a door. The messages of an answer are made one by one, when
    a turn of the loop has time for it; `turns`: those of the node."""

    def __init__(
        self, runtime: Runtime, services: Iterable[Service], turns: Turns | None = None
    ) -> None:
        self._runtime = runtime
        self._turns = turns or Turns(runtime)
        self._served: dict[str, Served] = {}  # by path
        for service in services:
            for rpc in rpcs_of(service.name).values():
                answer = _answering(service, rpc, self._turns)
                self._served[f"/{service.name}/{rpc.name}"] = Served(rpc, answer)

    def begin(self, stream: Stream, peer: str) -> None:
        """A stream has its headers, or all of its request."""
        if stream.begun or stream.over:
            return
        try:
            served = self._find(stream)
            rpc = served.rpc
            if not (rpc.takes_stream or stream.ended):
                return
            call = self._call(stream, peer)
            asked = _requests(stream, rpc) if rpc.takes_stream else _request(stream, rpc)
        except CallFailed as error:
            end_with(stream, error)
            return
        stream.begun = True
        stream.beginnings.add(partial(self._serve, stream, call, asked, served))

    def _serve(self, stream: Stream, call: GrpcCall, asked: Any, served: Served) -> None:
        if not stream.over:
            work = _run(stream, call, asked, served)
            stream.serve(self._runtime.spawn(work, name=served.rpc.name))

    def _call(self, stream: Stream, peer: str) -> GrpcCall:
        timeout = stream.headers.get("grpc-timeout")
        deadline = None
        if timeout is not None:
            deadline = stream.deadline = self._runtime.monotonic() + seconds(timeout)
        return GrpcCall(peer, stream.headers, deadline)

    def _find(self, stream: Stream) -> Served:
        headers = stream.headers
        if not headers:
            raise CallFailed(GrpcStatus.RESOURCE_EXHAUSTED, "the headers are too long")
        path = headers.get(":path", "")
        if not headers.get("content-type", "").startswith("application/grpc"):
            raise CallFailed(GrpcStatus.INTERNAL, "the content-type is not application/grpc")
        served = self._served.get(path)
        if served is None or headers.get(":method") != "POST":
            raise CallFailed(GrpcStatus.UNIMPLEMENTED, f"there is no call {path[:200]}")
        return served


async def _run(stream: Stream, call: GrpcCall, asked: Any, served: Served) -> None:
    try:
        await served.answer(stream, call, asked)
    except CallFailed as error:
        _fail(stream, error)
    except SaturnError as error:
        _fail(stream, CallFailed(GrpcStatus.INVALID_ARGUMENT, str(error)))
    except Exception as error:
        log.exception("call %s failed", served.rpc.name)
        _fail(stream, CallFailed(GrpcStatus.INTERNAL, f"{type(error).__name__}: {error}"))
    finally:
        stream.task = None


def _answering(service: Service, rpc: Rpc, turns: Turns) -> Answer:
    """How a call is answered, by its kind."""
    if not rpc.gives_stream:
        return _unary(service.unary[rpc.name])
    kinds = service.dialogues if rpc.takes_stream else service.streams
    return _stream(kinds[rpc.name], turns)


def _unary(serve: Unary) -> Answer:
    async def answer(stream: Stream, call: GrpcCall, request: Any) -> None:
        stream.answer(HEAD, packed(await serve(call, request)), DONE)

    return answer


def _stream(serve: calls.Stream | Dialogue, turns: Turns) -> Answer:
    async def answer(stream: Stream, call: GrpcCall, asked: Any) -> None:
        async def written(waiting: Awaitable[None]) -> None:
            await waiting
            await turns.free()  # for the work on the next message

        def write(message: Any) -> Awaitable[None]:  # which keeps no message while it waits
            return written(stream.write(HEAD, packed(message)))

        await serve(call, asked, write)
        stream.finish(HEAD, DONE)

    return answer


def _fail(stream: Stream, error: CallFailed) -> None:
    stream.finish(HEAD, ended(error))


async def _requests(stream: Stream, rpc: Rpc) -> AsyncIterator[Any]:
    """The messages of a stream of requests."""
    while (found := await stream.next_message()) is not None:
        before = stream.held
        message = _parsed(stream, rpc, *found)
        unpacked = stream.held - before
        yield message
        stream.release(unpacked)


def _request(stream: Stream, rpc: Rpc) -> Any:
    found = stream.take()
    if found is None:
        raise CallFailed(GrpcStatus.INTERNAL, "this call has one message")
    return _parsed(stream, rpc, *found)


def _parsed(stream: Stream, rpc: Rpc, is_packed: bool, data: bytes) -> Any:
    if is_packed:
        data = _unpacked(stream, data)
    try:
        check_fields(data, rpc.request.DESCRIPTOR)
        return rpc.request.FromString(data)
    except TooManyFields as error:
        raise CallFailed(GrpcStatus.RESOURCE_EXHAUSTED, str(error)) from None
    except Exception as error:
        raise CallFailed(GrpcStatus.INTERNAL, f"no {rpc.request.__name__}: {error}") from None


def _unpacked(stream: Stream, data: bytes) -> bytes:
    """The text of a message. It counts as the call's, step by step: little is unpacked for which
    there is no room."""
    encoding = stream.headers.get("grpc-encoding", "identity")
    if encoding != "gzip":
        raise CallFailed(GrpcStatus.UNIMPLEMENTED, f"grpc-encoding {encoding[:50]}; send gzip")
    unpacker = zlib.decompressobj(wbits=31)
    found = bytearray()
    try:
        while not unpacker.eof:
            part = unpacker.decompress(data, UNPACKED_STEP)
            data = unpacker.unconsumed_tail
            if not (part or data or unpacker.eof):
                raise CallFailed(GrpcStatus.INTERNAL, "a gzip without its end")
            stream.hold(len(part))
            found += part
            if len(found) > stream.message_max:
                raise SystemBusy(f"more than {stream.message_max} bytes unpacked")
    except zlib.error as error:
        raise CallFailed(GrpcStatus.INTERNAL, f"no gzip: {error}") from None
    except SystemBusy as error:
        raise CallFailed(GrpcStatus.RESOURCE_EXHAUSTED, str(error)) from None
    return bytes(found)


def seconds(text: str) -> float:
    """The time of a `grpc-timeout`. CallFailed: it is none."""
    number, unit = text[:-1], UNITS_S.get(text[-1:])
    if unit is None or not (number.isascii() and number.isdigit() and len(number) <= 8):
        raise CallFailed(GrpcStatus.INTERNAL, f"grpc-timeout {text[:20]!r}")
    return int(number) * unit
