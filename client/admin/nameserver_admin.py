"""Nameservers for operators: their settings while they run, and their key-value configuration.

Codes 100 102 216 219 318 319 of docs/internals/protocol.md 3. Nameservers know nothing of each
other, so a change goes to each of them, at once: one that is away delays no other.
"""

from __future__ import annotations

from collections.abc import Mapping

from saturnmq.client.admin.broker_admin import read_settings, settings_body
from saturnmq.client.core import ClientCore
from saturnmq.protocol import checked
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import ORDER_TOPIC_CONFIG

KV_ANSWERS = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)


class NameserverAdmin:
    """Asks the nameservers of one core."""

    def __init__(self, core: ClientCore, timeout: float) -> None:
        self._core = core
        self._timeout = timeout

    async def settings(self) -> dict[str, dict[str, str]]:
        """The settings of each nameserver, by its address."""
        answers = await self._ask_all(RequestCode.GET_NAMESRV_CONFIG, {})
        return {address: read_settings(answer, address) for address, answer in answers.items()}

    async def change(self, settings: Mapping[str, str]) -> None:
        """Change settings of all nameservers."""
        await self._ask_all(RequestCode.UPDATE_NAMESRV_CONFIG, {}, settings_body(settings))

    async def kv(self, namespace: str) -> dict[str, str]:
        """The entries of a namespace, as the nameserver in use has them; empty if there are
        none."""
        command = Command.request(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": namespace})
        return await self._core.ask_nameserver(command, _entries, self._timeout, KV_ANSWERS)

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Write an entry at all nameservers."""
        ext = {"namespace": namespace, "key": key, "value": value}
        await self._ask_all(RequestCode.PUT_KV_CONFIG, ext)

    async def delete_kv(self, namespace: str, key: str) -> None:
        """Delete an entry at all nameservers."""
        await self._ask_all(RequestCode.DELETE_KV_CONFIG, {"namespace": namespace, "key": key})

    async def forget_topic(self, topic: str) -> None:
        """Delete the routes of a topic at all nameservers, and its order configuration: a new topic
        of that name would have it."""
        await self.delete_kv(ORDER_TOPIC_CONFIG, topic)
        await self._ask_all(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic})

    async def _ask_all(
        self, code: int, ext: Mapping[str, str], body: bytes = b""
    ) -> dict[str, Command]:
        """The answer of each nameserver, by its address; the first error is raised when all were
        asked."""
        nameservers = self._core.nameservers
        answers = await self._core.invoke_each(nameservers, code, ext, body, self._timeout)
        found = {}
        for address, answer in answers.items():
            if isinstance(answer, BaseException):
                raise answer
            found[address] = answer
        return found


def _entries(answer: Command) -> dict[str, str]:
    if answer.code != ResponseCode.SUCCESS:
        return {}
    table = checked.table(checked.document(answer.body), "table")
    return {str(key): checked.as_text(value, f"the value of {key}") for key, value in table.items()}
