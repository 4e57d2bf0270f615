"""Brokers for operators: which there are, their settings while they run, and the producers that are
connected.

Codes 25 26 28 106 328 329 of docs/internals/protocol.md 2.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from saturnmq.client.core import ClientCore
from saturnmq.protocol import checked
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import brokers_in
from saturnmq.runtime.errors import InvalidParameter, MalformedFrame


class BrokerNode(NamedTuple):
    """One broker process as a nameserver knows it; id 0 is the master."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str


class ConnectedProducer(NamedTuple):
    """A producer of a group, as it is connected to a broker."""

    group: str
    client_id: str
    address: str
    """The host that it connects from."""
    language: str


class BrokerAdmin:
    """Asks a nameserver which brokers there are, and brokers, whose addresses the caller gives."""

    def __init__(self, core: ClientCore, timeout: float) -> None:
        self._core = core
        self._timeout = timeout

    async def nodes(self) -> list[BrokerNode]:
        """Every broker that the nameserver knows."""
        command = Command.request(RequestCode.GET_BROKER_CLUSTER_INFO)
        brokers = await self._core.ask_nameserver(command, brokers_in, self._timeout)
        return sorted(
            BrokerNode(data.cluster, data.broker_name, broker_id, address)
            for data in brokers
            for broker_id, address in data.addresses.items()
        )

    async def status(self, address: str) -> dict[str, str]:
        """The state that a broker reports of itself."""
        answer = await self._ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        table = checked.table(checked.document(answer.body), "table")
        return {str(key): str(value) for key, value in table.items()}

    async def delete_expired(self, address: str) -> None:
        """Have a broker delete what its retention no longer keeps."""
        await self._ask(address, RequestCode.DELETE_EXPIRED_COMMITLOG)

    async def settings(self, address: str) -> dict[str, str]:
        """All settings of a broker, by RocketMQ's key."""
        answer = await self._ask(address, RequestCode.GET_BROKER_CONFIG)
        try:
            lines = bytes(answer.body).decode().splitlines()
        except UnicodeDecodeError as error:
            raise MalformedFrame(f"the settings of {address} are not UTF-8: {error}") from None
        return dict(line.split("=", 1) for line in lines if "=" in line)

    async def change(self, address: str, settings: Mapping[str, str]) -> None:
        """Change settings of a running broker, all or none."""
        for key, value in settings.items():
            if not key or set(key) & set("=:#! \r\n") or set(value) & set("\r\n"):
                raise InvalidParameter(
                    f"setting {key!r:.127} with value {value!r:.127}: a key has no space and none "
                    "of =:#!, and both are one line"
                )
        body = "".join(f"{key}={value}\n" for key, value in settings.items()).encode()
        await self._ask(address, RequestCode.UPDATE_BROKER_CONFIG, body)

    async def producers(self, addresses: Iterable[str]) -> list[ConnectedProducer]:
        """The producers that are connected to these brokers, each client of a group once."""
        found: set[ConnectedProducer] = set()
        for address in addresses:
            answer = await self._ask(address, RequestCode.GET_ALL_PRODUCER_INFO)
            table = checked.table(checked.document(answer.body), "data")
            for group in table:
                for item in checked.items(table, group):
                    each = checked.as_table(item, "a producer")
                    found.add(
                        ConnectedProducer(
                            checked.as_text(group, "a group"),
                            checked.text(each, "clientId", ""),
                            checked.text(each, "remoteIP", ""),
                            checked.text(each, "language", ""),
                        )
                    )
        return sorted(found)

    async def _ask(self, address: str, code: int, body: bytes = b"") -> Command:
        return await self._core.invoke(address, Command.request(code, {}, body), self._timeout)
