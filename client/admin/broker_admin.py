"""Brokers for operators: their settings and tables while they run, the producers that are
connected, and a send to see whether they take messages.

Codes 21 25 26 28 201 310 316 328 329 of docs/internals/protocol.md 2.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from saturnmq.client.core import ClientCore
from saturnmq.client.producer.results import STATUS_OF_CODE, SendStatus
from saturnmq.client.single_send import single_send
from saturnmq.protocol import checked
from saturnmq.protocol.codes import STORED, RequestCode
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import InvalidParameter, MalformedFrame


class ConnectedProducer(NamedTuple):
    """A producer of a group, as it is connected to a broker."""

    group: str
    client_id: str
    address: str
    """The host that it connects from."""
    language: str


class SendProbe(NamedTuple):
    """The outcome of a send that was made to see whether a broker takes messages."""

    broker_name: str
    status: SendStatus
    milliseconds: float
    """From the send to its acknowledgement."""


PROBE_GROUP = "saturnmq-probe"
PROBE = b"a probe of saturnmq: it may be ignored"


class BrokerAdmin:
    """Asks brokers, whose addresses the caller gives."""

    def __init__(self, core: ClientCore, timeout: float) -> None:
        self._core = core
        self._timeout = timeout

    async def status(self, address: str) -> dict[str, str]:
        """The state that a broker reports of itself."""
        answer = await self._ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        table = checked.table(checked.document(answer.body), "table")
        return {str(key): str(value) for key, value in table.items()}

    async def delete_expired(self, address: str) -> None:
        """Have a broker delete what its retention no longer keeps."""
        await self._ask(address, RequestCode.DELETE_EXPIRED_COMMITLOG)

    async def delete_unused(self, address: str) -> None:
        """Have a broker delete the queues of topics that it has no more."""
        await self._ask(address, RequestCode.CLEAN_UNUSED_TOPIC)

    async def tables(self, address: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """The topics and the groups of a broker, by name, each as RocketMQ writes it."""
        topics = await self._ask(address, RequestCode.GET_ALL_TOPIC_CONFIG)
        groups = await self._ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        return (
            checked.table(checked.document(topics.body), "topicConfigTable"),
            checked.table(checked.document(groups.body), "subscriptionGroupTable"),
        )

    async def probe(self, name: str, address: str) -> SendProbe:
        """Send a message to the topic that a broker has for itself, under its name."""
        clock = self._core.runtime
        queue = MessageQueue(name, name, 0)
        command = single_send(queue, PROBE_GROUP, PROBE, {}, born_ms=clock.now_ms())
        began = clock.monotonic()
        answer = await self._core.invoke(address, command, self._timeout, STORED)
        took = clock.monotonic() - began
        return SendProbe(name, STATUS_OF_CODE[answer.code], took * 1000)

    async def settings(self, address: str) -> dict[str, str]:
        """All settings of a broker, by RocketMQ's key."""
        return read_settings(await self._ask(address, RequestCode.GET_BROKER_CONFIG), address)

    async def change(self, address: str, settings: Mapping[str, str]) -> None:
        """Change settings of a running broker, all or none."""
        await self._ask(address, RequestCode.UPDATE_BROKER_CONFIG, settings_body(settings))

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


def read_settings(answer: Command, address: str) -> dict[str, str]:
    """The settings that a server answers with, as Java properties."""
    try:
        lines = bytes(answer.body).decode().splitlines()
    except UnicodeDecodeError as error:
        raise MalformedFrame(f"the settings of {address} are not UTF-8: {error}") from None
    return dict(line.split("=", 1) for line in lines if "=" in line)


def settings_body(settings: Mapping[str, str]) -> bytes:
    """The body of a request that changes settings. InvalidParameter: a server would read one of
    them as something else."""
    for key, value in settings.items():
        if not key or set(key) & set("=:#! \r\n") or set(value) & set("\r\n"):
            raise InvalidParameter(
                f"setting {key!r:.127} with value {value!r:.127}: a key has no space and none of "
                "=:#!, and both are one line"
            )
    return "".join(f"{key}={value}\n" for key, value in settings.items()).encode()
