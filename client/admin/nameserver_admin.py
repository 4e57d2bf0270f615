"""Nameservers for operators: their settings while they run, and their key-value configuration.

Codes 100 102 216 219 318 319 of docs/internals/protocol.md 3. Nameservers know nothing of each
other, so a change goes to each of them, at once: one that is away delays no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from saturnmq.client.admin.broker_admin import read_settings, settings_body
from saturnmq.client.core import ClientCore
from saturnmq.protocol import checked
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import ORDER_TOPIC_CONFIG
from saturnmq.runtime.errors import SaturnError

_Request = tuple[int, Mapping[str, str]]  # its code and its fields

REPEAT = "repeat it"
KV_ANSWERS = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)


class NameserverAdmin:
    """Asks the nameservers of one core."""

    def __init__(self, core: ClientCore, timeout: float) -> None:
        self._core = core
        self._timeout = timeout

    async def settings(self) -> dict[str, dict[str, str]]:
        """The settings of each nameserver, by its address."""
        answers = await self._ask_all([(RequestCode.GET_NAMESRV_CONFIG, {})])
        return {address: read_settings(answer, address) for address, answer in answers.items()}

    async def change(self, settings: Mapping[str, str]) -> None:
        """Change settings of all nameservers."""
        body = settings_body(settings)
        await self._ask_all([(RequestCode.UPDATE_NAMESRV_CONFIG, {})], body=body)

    async def kv(self, namespace: str) -> dict[str, str]:
        """The entries of a namespace, as the nameserver in use has them; empty if there are
        none."""
        command = Command.request(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": namespace})
        return await self._core.ask_nameserver(command, _entries, self._timeout, KV_ANSWERS)

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Write an entry at all nameservers."""
        await self._ask_all([_put(namespace, key, value)])

    async def delete_kv(self, namespace: str, key: str) -> None:
        """Delete an entry at all nameservers."""
        await self._ask_all([_delete(namespace, key)])

    async def order_topic(self, topic: str, conf: str) -> None:
        """Write the order configuration of a topic that was made."""
        done = f"topic {topic!r} was made"
        await self._ask_all([_put(ORDER_TOPIC_CONFIG, topic, conf)], done=done)

    async def forget_topics(self, topics: Iterable[str], done: str, then: str = REPEAT) -> None:
        """Delete the routes of topics at all nameservers, and their order configuration: new topics
        of their names would have it. An error says what was `done` before, and what comes
        `then`."""
        requests = []
        for topic in topics:
            requests.append(_delete(ORDER_TOPIC_CONFIG, topic))
            requests.append((RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic}))
        await self._ask_all(requests, done=done, then=then)

    async def _ask_all(
        self,
        requests: Iterable[_Request],
        *,
        body: bytes = b"",
        done: str = "",
        then: str = REPEAT,
    ) -> dict[str, Command]:
        """The answer of each nameserver to the last of these requests, by its address. One that
        fails is asked for no more of them. When all were asked, an error of the first one's class
        names those that failed, what was done already, and what comes then."""
        nameservers = self._core.nameservers
        found: dict[str, Command] = {}
        failed: dict[str, BaseException] = {}
        for code, ext in requests:
            asked = [each for each in nameservers if each not in failed]
            answers = await self._core.invoke_each(asked, code, ext, body, self._timeout)
            for address, answer in answers.items():
                if isinstance(answer, BaseException):
                    failed[address] = answer
                else:
                    found[address] = answer
        if failed:
            first = next(iter(failed.values()))
            nothing_done = len(failed) == len(nameservers) and not done
            if nothing_done or not isinstance(first, SaturnError):
                raise first
            told = "; ".join(f"{address}: {error}" for address, error in failed.items())
            text = f"{len(failed)} of {len(nameservers)} nameservers did not do it: {told}"
            error = type(first)(f"{done}, but {text}; {then}" if done else text, code=first.code)
            error.outcome = "unknown"  # of the whole
            raise error
        return found


def _put(namespace: str, key: str, value: str) -> _Request:
    return RequestCode.PUT_KV_CONFIG, {"namespace": namespace, "key": key, "value": value}


def _delete(namespace: str, key: str) -> _Request:
    return RequestCode.DELETE_KV_CONFIG, {"namespace": namespace, "key": key}


def _entries(answer: Command) -> dict[str, str]:
    if answer.code != ResponseCode.SUCCESS:
        return {}
    table = checked.table(checked.document(answer.body), "table")
    return {str(key): checked.as_text(value, f"the value of {key}") for key, value in table.items()}
