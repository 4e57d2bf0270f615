"""Nameservers for operators: their settings while they run, and their key-value configuration.

Codes 100 102 219 318 319 of docs/internals/protocol.md 3. Nameservers know nothing of each other,
so a change goes to each of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from saturnmq.client.admin.broker_admin import read_settings, settings_body
from saturnmq.client.core import ClientCore
from saturnmq.protocol import checked
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import SaturnError

KV_ANSWERS = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)


class NameserverAdmin:
    """Asks the nameservers of one core."""

    def __init__(self, core: ClientCore, timeout: float) -> None:
        self._core = core
        self._timeout = timeout

    async def settings(self) -> dict[str, dict[str, str]]:
        """The settings of each nameserver, by its address."""
        found = {}
        for address in self._core.nameservers:
            command = Command.request(RequestCode.GET_NAMESRV_CONFIG)
            answer = await self._core.invoke(address, command, self._timeout)
            found[address] = read_settings(answer, address)
        return found

    async def change(self, settings: Mapping[str, str]) -> None:
        """Change settings of all nameservers."""
        await self._tell_all(RequestCode.UPDATE_NAMESRV_CONFIG, {}, settings_body(settings))

    async def kv(self, namespace: str) -> dict[str, str]:
        """The entries of a namespace, as the nameserver in use has them; empty if there are
        none."""
        command = Command.request(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": namespace})
        return await self._core.ask_nameserver(command, _entries, self._timeout, KV_ANSWERS)

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Write an entry at all nameservers."""
        ext = {"namespace": namespace, "key": key, "value": value}
        await self._tell_all(RequestCode.PUT_KV_CONFIG, ext)

    async def delete_kv(self, namespace: str, key: str) -> None:
        """Delete an entry at all nameservers."""
        await self._tell_all(RequestCode.DELETE_KV_CONFIG, {"namespace": namespace, "key": key})

    async def _tell_all(self, code: int, ext: Mapping[str, str], body: bytes = b"") -> None:
        """Tell each nameserver; the first error is raised when all were told."""
        failed: SaturnError | None = None
        for address in self._core.nameservers:
            command = Command.request(code, dict(ext), body)
            try:
                await self._core.invoke(address, command, self._timeout)
            except SaturnError as error:
                failed = failed or error
        if failed is not None:
            raise failed


def _entries(answer: Command) -> dict[str, str]:
    if answer.code != ResponseCode.SUCCESS:
        return {}
    table = checked.table(checked.document(answer.body), "table")
    return {str(key): checked.as_text(value, f"the value of {key}") for key, value in table.items()}
