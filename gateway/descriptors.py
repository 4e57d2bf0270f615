"""The messages and calls of all services of a gateway, from the descriptor set that a build makes
of `proto/*.proto` (tools/protos.py).

They live in a descriptor pool of their own. The official Python client registers the same names in
protobuf's default pool, and both must fit into one process.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass


@dataclass(frozen=True, slots=True)
class Rpc:
    """One call of a service."""

    name: str
    request: Any  # the classes of its messages
    response: Any
    takes_stream: bool
    gives_stream: bool


def _load() -> DescriptorPool:
    pool = DescriptorPool()
    described = FileDescriptorSet.FromString((files(__package__) / "proto/api.binpb").read_bytes())
    for file in described.file:
        pool.Add(file)
    return pool


POOL = _load()


def message_class(full_name: str) -> Any:
    """KeyError: there is no such message."""
    return GetMessageClass(POOL.FindMessageTypeByName(full_name))


def rpcs_of(service: str) -> dict[str, Rpc]:
    """The calls of a service, by name."""
    return {
        method.name: Rpc(
            method.name,
            GetMessageClass(method.input_type),
            GetMessageClass(method.output_type),
            method.client_streaming,
            method.server_streaming,
        )
        for method in POOL.FindServiceByName(service).methods
    }
