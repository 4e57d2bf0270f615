"""Questions of the launcher to one node of its cluster; neither a client nor a loop is needed."""

from __future__ import annotations

import contextlib
from typing import Any

from saturnmq.protocol.codes import RequestCode
from saturnmq.runtime.door import join_address

ASK_TIMEOUT_S = 5.0


def registered(host: str, port: int) -> set[str]:
    """The addresses of the brokers that a nameserver lists."""
    table = ask(host, port, RequestCode.GET_BROKER_CLUSTER_INFO).get("brokerAddrTable") or {}
    return {address for data in table.values() for address in data["brokerAddrs"].values()}


def ask(host: str, port: int, code: RequestCode) -> dict[str, Any]:
    """The document in which a node answers `code`."""
    from saturnmq.client.channels import document
    from saturnmq.protocol.channel import Channel
    from saturnmq.protocol.credentials import credentials_of
    from saturnmq.protocol.remoting import Command
    from saturnmq.runtime.native import NativeRuntime

    address = join_address(host, port)
    channel = Channel(NativeRuntime(), address, ASK_TIMEOUT_S, credentials=credentials_of(None))
    with contextlib.closing(channel):
        return document(address, channel.request(Command(code), ASK_TIMEOUT_S))
