"""`grpc.reflection.v1.ServerReflection` and its older `v1alpha`: the services and the descriptors
of their messages, so tools like grpcurl call the gateway without .proto files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from saturnmq.gateway.calls import Dialogue, GrpcCall, GrpcStatus, Read, Service, Write
from saturnmq.gateway.descriptors import POOL, message_class

PACKAGES = ("grpc.reflection.v1", "grpc.reflection.v1alpha")
SERVICES = tuple(f"{package}.ServerReflection" for package in PACKAGES)


def services(names: Iterable[str]) -> list[Service]:
    """Both versions of the service, which list services of these names, and themselves."""
    listed = sorted({*names, *SERVICES})
    return [
        Service(
            f"{package}.ServerReflection",
            dialogues={"ServerReflectionInfo": _talk(package, listed)},
        )
        for package in PACKAGES
    ]


def _talk(package: str, listed: list[str]) -> Dialogue:
    response = message_class(f"{package}.ServerReflectionResponse")

    async def talk(call: GrpcCall, read: Read, write: Write) -> None:
        async for asked in read:
            found = response(valid_host=asked.host, original_request=asked)
            _answer(asked, found, listed)
            await write(found)

    return talk


def _answer(asked: Any, found: Any, listed: list[str]) -> None:
    """Fill the answer to one question."""
    kind = asked.WhichOneof("message_request")
    files: dict[str, Callable[[str], Any]] = {
        "file_by_filename": POOL.FindFileByName,
        "file_containing_symbol": _file_of,
    }
    if kind == "list_services":
        for name in listed:
            found.list_services_response.service.add(name=name)
    elif kind in files:
        name = getattr(asked, kind)
        try:
            file = files[kind](name)
        except KeyError:
            _fail(found, GrpcStatus.NOT_FOUND, f"{name[:200]} is not found")
        else:
            found.file_descriptor_response.file_descriptor_proto.append(file.serialized_pb)
    elif kind is None:
        _fail(found, GrpcStatus.INVALID_ARGUMENT, "the request asks nothing")
    else:
        _fail(found, GrpcStatus.NOT_FOUND, "there are no extensions: the files are proto3")


def _file_of(symbol: str) -> Any:
    """KeyError: there is no such symbol."""
    try:
        return POOL.FindFileContainingSymbol(symbol)
    except KeyError:  # protobuf does not look for methods
        return POOL.FindMethodByName(symbol).containing_service.file


def _fail(found: Any, status: GrpcStatus, text: str) -> None:
    error = type(found.error_response)(error_code=status, error_message=text)
    found.error_response.CopyFrom(error)
