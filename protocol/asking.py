"""Connections that this process opens, and questions that need one of their own."""

from __future__ import annotations

from collections.abc import Callable

from saturnmq.runtime.door import Runtime, split_address
from saturnmq.runtime.errors import error_for

from .credentials import Credentials, client_endpoint
from .endpoint import Endpoint, Handler
from .remoting import MAX_FRAME, Command
from .signing import UNSIGNED, Signing, ask_signed, unproven


async def connect(
    runtime: Runtime,
    host: str,
    port: int,
    handler: Handler | None = None,
    on_close: Callable[[Endpoint], None] | None = None,
    *,
    max_frame: int = MAX_FRAME,
    credentials: Credentials | None = None,
) -> Endpoint:
    """A connected endpoint, which signs its requests if there are credentials; ConnectFailed when
    no server answers."""
    endpoint = client_endpoint(runtime, handler, on_close, max_frame, credentials=credentials)
    await runtime.connect(host, port, endpoint)
    return endpoint


async def ask_once(
    runtime: Runtime,
    address: str,
    request: Command,
    timeout_s: float,
    signing: Signing = UNSIGNED,
    credentials: Credentials | None = None,
) -> Command:
    """The answer of the node at `address`, over a connection for this request alone. SaturnError:
    the node cannot be reached, does not answer in time, answers with an error, or lacks a
    required signature."""
    endpoint = await connect(runtime, *split_address(address), credentials=credentials)
    try:
        answer = await ask_signed(
            signing, address, request, lambda command: endpoint.request(command, timeout_s)
        )
    finally:
        endpoint.close()
    reply = answer.command
    if reply.code:
        raise error_for(reply.code, reply.remark)
    if signing.refuses and not answer.is_proven:
        raise unproven(address)
    return reply
