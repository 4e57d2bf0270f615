"""Setting the offsets of a group: what a reset changes, and how each broker is told.

| broker | a reset is | of one queue |
|---|---|---|
| SaturnMQ, RocketMQ with `useServerSideResetOffset` | made by the broker (222) | the same |
| other RocketMQ (5.1 and older by default), group with members | passed on to the members (222) | refused: the broker ignores queue and offset, and moves all queues to the time |
| other RocketMQ, group without members | committed by us (15), as mqadmin does | the same |
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from saturnmq.client.admin.broker_admin import read_settings
from saturnmq.client.admin.message_finding import masters_of
from saturnmq.client.admin.settings_at import group_at
from saturnmq.client.connections import OK
from saturnmq.client.consumer.starting import ask_offset
from saturnmq.client.core import ClientCore
from saturnmq.client.server_requests import offset_table
from saturnmq.protocol import checked
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.makes import is_ours, make_of
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import (
    ConsumerNotOnline,
    GroupNotExist,
    InvalidParameter,
    QueryNotFound,
    SystemError_,
    UnsupportedRequest,
)

END = -1
"""The time that stands for the end of a queue when offsets are reset."""
NO_OFFSET = "THe consumer group <"  # RocketMQ's words of a group without an offset in some queue


class OffsetReset(NamedTuple):
    """The change that a reset makes to one queue."""

    queue: MessageQueue
    committed: int | None
    """The offset until now; None if the group has none there."""
    first: int
    """The offset of the queue's first message."""
    target: int
    """The offset after the reset."""

    @property
    def repeated(self) -> int:
        """Messages that the group gets again."""
        return max(0, self._begin - self.target)

    @property
    def skipped(self) -> int:
        """Messages that the group does not get any more."""
        return max(0, self.target - self._begin)

    @property
    def _begin(self) -> int:
        return self.first if self.committed is None else max(self.first, self.committed)


class OffsetResets:
    """Sets the offsets of groups, and tells what that changes."""

    def __init__(self, core: ClientCore, timeout: float) -> None:
        self._core = core
        self._timeout = timeout

    async def reset(
        self,
        group: str,
        topic: str,
        timestamp_ms: int,
        queue: MessageQueue | None,
        offset: int | None,
    ) -> dict[MessageQueue, int]:
        """Set the offsets; returns the new ones by queue."""
        queues = await self.queues(topic, queue, offset)
        if queue is not None:
            return await self._reset_one(group, queue, timestamp_ms, offset)
        found: dict[MessageQueue, int] = {}
        for address in await masters_of(self._core, topic):
            here = [q for q in queues if self._core.broker_address(q.broker_name) == address]
            found.update(await self._reset_all(address, group, topic, timestamp_ms, here))
        return found

    async def _reset_all(
        self, address: str, group: str, topic: str, timestamp_ms: int, queues: list[MessageQueue]
    ) -> dict[MessageQueue, int]:
        """Set the offsets in all queues of the topic on one broker, which are these."""
        try:
            return await self._told(address, group, topic, timestamp_ms, -1, -1)
        except ConsumerNotOnline:
            limit = "moves the offsets of members only"
        except SystemError_ as error:
            if not str(error).startswith(NO_OFFSET):
                raise
            limit = "moves members only if their group has committed in every queue of the topic"
        return await self._commit(address, group, queues, timestamp_ms, None, limit)

    async def _reset_one(
        self, group: str, queue: MessageQueue, timestamp_ms: int, offset: int | None
    ) -> dict[MessageQueue, int]:
        address = self._core.master_address(queue.broker_name)
        if not await self._knows_queues(address):
            limit = "without useServerSideResetOffset moves members in all queues of a topic only"
            return await self._commit(address, group, [queue], timestamp_ms, offset, limit)
        at = -1 if offset is None else offset
        found = await self._told(address, group, queue.topic, timestamp_ms, queue.queue_id, at)
        if set(found) != {queue} or offset not in (None, found[queue]):
            raise SystemError_(
                f"{address} was to set {queue} to {offset if timestamp_ms < 0 else timestamp_ms}, "
                f"and answers with {found}: look at the group's offsets"
            )
        return found

    async def _told(
        self, address: str, group: str, topic: str, timestamp_ms: int, queue_id: int, offset: int
    ) -> dict[MessageQueue, int]:
        ext = {
            "topic": topic,
            "group": group,
            "timestamp": str(timestamp_ms),
            "isForce": "true",
            "queueId": str(queue_id),
            "offset": str(offset),
        }
        answer = await self._ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)
        return offset_table(bytes(answer.body))

    async def _knows_queues(self, address: str) -> bool:
        """Whether a broker heeds the queue and the offset of a reset. The others obey the time
        alone, without a word, and -1 is the end of all queues."""
        ok = (ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION)
        answer = await self._ask(address, RequestCode.GET_BROKER_CONFIG, {}, ok)
        if is_ours(answer):
            return True
        settings = read_settings(answer, address)
        return settings.get("useServerSideResetOffset") == "true"

    async def _commit(
        self,
        address: str,
        group: str,
        queues: list[MessageQueue],
        timestamp_ms: int,
        offset: int | None,
        limit: str,
    ) -> dict[MessageQueue, int]:
        """Commit for a group without members what a broker with this limit cannot set."""
        ok = (ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE)
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        answer = await self._ask(address, code, {"consumerGroup": group}, ok)
        if answer.code == ResponseCode.SUCCESS:
            members = len(checked.items(checked.document(answer.body), "connectionSet"))
            raise UnsupportedRequest(
                f"broker {address} ({make_of(answer)}) {limit}, and group {group!r} has members "
                f"({members}): nothing was changed there; stop them and repeat"
            )
        if await group_at(self._core, address, group, self._timeout) is None:
            raise GroupNotExist(f"group {group!r} does not exist on broker {address}")
        moves = await self._changes(group, queues, timestamp_ms, offset)
        for each in moves:
            ext = {
                "consumerGroup": group,
                "topic": each.queue.topic,
                "queueId": str(each.queue.queue_id),
                "commitOffset": str(each.target),
            }
            await self._ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        for each in moves:
            now = await self.committed(group, each.queue)
            if now != each.target:
                raise SystemError_(
                    f"{address} was told to set {each.queue} to {each.target}, and has {now}: "
                    "did a member of the group start meanwhile?"
                )
        return {each.queue: each.target for each in moves}

    async def preview(
        self,
        group: str,
        topic: str,
        timestamp_ms: int,
        queue: MessageQueue | None,
        offset: int | None,
    ) -> list[OffsetReset]:
        """The changes that `reset` with the same arguments would make now, queue by queue."""
        queues = await self.queues(topic, queue, offset)
        return await self._changes(group, queues, timestamp_ms, offset)

    async def _changes(
        self, group: str, queues: Iterable[MessageQueue], timestamp_ms: int, offset: int | None
    ) -> list[OffsetReset]:
        rows = []
        for each in queues:
            first = await ask_offset(self._core, RequestCode.GET_MIN_OFFSET, each)
            end = await ask_offset(self._core, RequestCode.GET_MAX_OFFSET, each)
            if offset is not None:
                if not first <= offset <= end:
                    raise InvalidParameter(
                        f"offset {offset} is outside {each}: choose one from {first} to {end}"
                    )
                target = offset
            elif timestamp_ms < 0:
                target = end
            else:
                code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
                target = await ask_offset(self._core, code, each, {"timestamp": str(timestamp_ms)})
            rows.append(OffsetReset(each, await self.committed(group, each), first, target))
        return rows

    async def committed(self, group: str, queue: MessageQueue) -> int | None:
        """The group's offset in a queue; None if it has none."""
        extra = {"consumerGroup": group, "setZeroIfNotFound": "false"}
        try:
            return await ask_offset(self._core, RequestCode.QUERY_CONSUMER_OFFSET, queue, extra)
        except QueryNotFound:
            return None

    async def queues(
        self, topic: str, queue: MessageQueue | None, offset: int | None
    ) -> list[MessageQueue]:
        """The queues that are meant: all readable ones, or the given one."""
        await self._core.route(topic, refresh=True)
        readable = self._core.subscribe_queues(topic)
        if queue is None:
            if offset is not None:
                raise InvalidParameter(f"offset {offset} needs a queue: give `queue` too")
            return readable
        if offset is not None and offset < 0:
            raise InvalidParameter(f"offset {offset} of {queue} is negative; the least is 0")
        if queue not in readable:
            raise InvalidParameter(f"{queue} is none of the {len(readable)} queues of {topic!r}")
        return [queue]

    async def _ask(
        self, address: str, code: int, ext: dict[str, str], ok: Collection[int] = OK
    ) -> Command:
        return await self._core.invoke(address, Command.request(code, ext), self._timeout, ok)
