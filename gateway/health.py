"""`grpc.health.v1.Health`: whether the node takes calls, for load balancers and orchestrators.

All services are in the same state: SERVING until the node begins to end. A broker without a master
serves, too, since it sends on what is for others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from saturnmq.gateway.calls import CallFailed, GrpcCall, GrpcStatus, Service, Write
from saturnmq.gateway.descriptors import message_class
from saturnmq.runtime.door import Runtime

SERVICE = "grpc.health.v1.Health"
WHOLE = ""  # the name of the server as a whole
TOLD_S = 0.5
Response = message_class("grpc.health.v1.HealthCheckResponse")
ListResponse = message_class("grpc.health.v1.HealthListResponse")


class Health:
    def __init__(self, runtime: Runtime, names: Iterable[str]) -> None:
        """`names` of the services that it tells of."""
        self._runtime = runtime
        self._names = (WHOLE, *names)
        self._ended = asyncio.Event()
        self._watching: set[asyncio.Future[None]] = set()
        self.service = Service(
            SERVICE, {"Check": self.check, "List": self.list_all}, {"Watch": self.watch}
        )

    def _state(self, name: str) -> Any:
        if name not in self._names:
            return Response(status="SERVICE_UNKNOWN")
        return Response(status="NOT_SERVING" if self._ended.is_set() else "SERVING")

    async def check(self, call: GrpcCall, request: Any) -> Any:
        if request.service not in self._names:
            raise CallFailed(GrpcStatus.NOT_FOUND, f"there is no service {request.service[:200]}")
        return self._state(request.service)

    async def list_all(self, call: GrpcCall, request: Any) -> Any:
        return ListResponse(statuses={name: self._state(name) for name in self._names})

    async def watch(self, call: GrpcCall, request: Any, write: Write) -> None:
        told = self._runtime.create_future()
        self._watching.add(told)
        try:
            await write(self._state(request.service))
            await self._ended.wait()
            if request.service in self._names:
                await write(self._state(request.service))
        finally:
            self._watching.discard(told)
            told.set_result(None)

    async def end(self) -> None:
        """The node takes no more calls: those who watch are told, unless they do not read."""
        self._ended.set()
        if self._watching:
            await asyncio.wait(self._watching, timeout=TOLD_S)
