"""Consumed offsets of one group: on the brokers (clustering) or in a local file (broadcasting).

Both keep a table in memory that only rises (except by an explicit reset) and write it every few
seconds and at shutdown. To a broker this is one UPDATE_CONSUMER_OFFSET (15) per queue; all requests
of one commit leave in one write of the connection. They are one-way while the consumer runs and
answered at shutdown. A commit over a connection that is gone since, or to a slave while there was
no master, may be lost: it is repeated to the present broker. The local file is RocketMQ's
`offsets.json`: `{"offsetTable":{{"brokerName":..,"queueId":..,"topic":..}:N}}`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from typing import Protocol

from saturnmq.client.core import ClientCore
from saturnmq.client.terms import note_term
from saturnmq.protocol import checked, fastjson
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.epochs import term_in
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import (
    ClientForked,
    ConfigError,
    ConnectionLost,
    OffsetsLocked,
    OffsetsNotSaved,
    SaturnError,
)

log = logging.getLogger(__name__)

_Commit = tuple[str, Command, MessageQueue]  # the first item is the address

COMMIT_INTERVAL_S = 5.0
INSTANCE = "DEFAULT"  # RocketMQ's name of an instance that was given none
OFFSETS = "~/.saturnmq/offsets"


class FileDoor(Protocol):
    """The file operations that broadcasting needs; called in a worker thread, may raise OSError."""

    def read(self, path: str) -> bytes | None:
        """The content, or None if there is no such file."""

    def replace(self, path: str, data: bytes) -> None:
        """Atomically and durably puts `data` in place of what was there."""

    def lock(self, path: str) -> str | None:
        """Keeps every other caller from locking `path` until unlock() or the end of the process. If
        it is locked already, returns who has the lock.
        """

    def unlock(self, path: str) -> None:
        """Gives up a lock; does nothing without one."""


class OffsetStore(Protocol):
    """The interface of either kind for a consumer."""

    async def load(
        self, queue: MessageQueue, *, stored_only: bool = False, begins: bool = False
    ) -> int | None: ...
    def update(self, queue: MessageQueue, offset: int) -> None: ...
    def reset(self, queue: MessageQueue, offset: int) -> None: ...
    def known(self, queue: MessageQueue) -> int | None: ...
    def forget(self, queue: MessageQueue) -> None: ...
    async def commit(
        self, queues: Iterable[MessageQueue] | None = None, *, confirm: bool = False
    ) -> SaturnError | None: ...


class OffsetTable:
    """Offsets in memory; they only rise, except by reset()."""

    def __init__(self) -> None:
        self.offsets: dict[MessageQueue, int] = {}
        self.dirty: set[MessageQueue] = set()

    def update(self, queue: MessageQueue, offset: int) -> None:
        if offset > self.offsets.get(queue, -1):
            self.offsets[queue] = offset
            self.dirty.add(queue)

    def reset(self, queue: MessageQueue, offset: int) -> None:
        self.offsets[queue] = offset
        self.dirty.add(queue)

    def known(self, queue: MessageQueue) -> int | None:
        return self.offsets.get(queue)

    def forget(self, queue: MessageQueue) -> None:
        self.offsets.pop(queue, None)
        self.dirty.discard(queue)


class RemoteOffsets(OffsetTable):
    """Offsets on the brokers, one table per group there."""

    def __init__(self, core: ClientCore, group: str) -> None:
        super().__init__()
        self._core = core
        self._group = group
        self._sent_on: dict[MessageQueue, object] = {}  # the connection of the last commit

    def forget(self, queue: MessageQueue) -> None:
        super().forget(queue)
        self._sent_on.pop(queue, None)
        self._core.terms.pop((self._group, queue), None)

    def _address(self, queue: MessageQueue) -> str:
        address = self._core.broker_address(queue.broker_name, master=False)
        if address is None:
            raise ConnectionLost(f"no broker of {queue.broker_name} is in the route")
        return address

    def _connection(self, queue: MessageQueue) -> object | None:
        address = self._core.broker_address(queue.broker_name, master=False)
        return None if address is None else self._core.connected(address)

    async def load(
        self, queue: MessageQueue, *, stored_only: bool = False, begins: bool = False
    ) -> int | None:
        """The group's offset on the broker; None if it has none (code 22). Other errors are raised.
        A broker of ours answers with the epoch of its log: a consumer that `begins` exactly
        there has to send it with its first pull, too.

        For a group without an offset the broker may answer that it begins at the queue's beginning
        (starting.py), unless `stored_only`.
        """
        ext = {
            "consumerGroup": self._group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "bname": queue.broker_name,
        }
        if stored_only:
            ext["setZeroIfNotFound"] = "false"
        request = Command.request(RequestCode.QUERY_CONSUMER_OFFSET, ext)
        ok = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        answer = await self._core.invoke(self._address(queue), request, ok=ok)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        offset = checked.integer(answer.ext, "offset", least=-1)
        term = term_in(answer)
        if begins and offset >= self.offsets.get(queue, -1):
            note_term(self._core.terms, self._group, queue, term)
        return offset if offset >= 0 else None

    async def commit(
        self, queues: Iterable[MessageQueue] | None = None, *, confirm: bool = False
    ) -> SaturnError | None:
        """Sends the changed offsets; with `confirm` waits for the brokers' answers (shutdown, lock
        hand-over, an application that waits). Gives the first failure, if there is one; those
        offsets are committed again with the next ones.
        """
        failed: SaturnError | None = None
        for queue, connection in self._sent_on.items():
            if self._connection(queue) is not connection:
                self.dirty.add(queue)
        chosen = self.dirty if queues is None else self.dirty.intersection(queues)
        first: dict[tuple[str, str], _Commit] = {}
        others: list[_Commit] = []
        for queue in sorted(chosen):
            try:
                address = self._address(queue)
            except ConnectionLost as error:
                failed = failed or error
                continue  # stays dirty: the next commit tries again
            self.dirty.discard(queue)
            ext = {
                "consumerGroup": self._group,
                "topic": queue.topic,
                "queueId": str(queue.queue_id),
                "commitOffset": str(self.offsets[queue]),
                "bname": queue.broker_name,
            }
            # Without it the broker could not recognise a commit of messages that were lost.
            ext |= self._core.terms.get((self._group, queue), {})
            request = Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
            if confirm and (address, queue.topic) in first:
                others.append((address, request, queue))
            elif confirm:
                first[address, queue.topic] = address, request, queue
            elif (connection := self._core.connected(address)) is not None:
                self._core.oneway(address, request)
                self._sent_on[queue] = connection
            else:
                self.dirty.add(queue)
                self._core.tasks.once(partial(self._reach, address), name=f"connect {address}")
        # RocketMQ's brokers make the table of a group and topic at its first commit, and may lose
        # other offsets that are committed at the same time.
        try:
            for together in (first.values(), others):
                found = await asyncio.gather(*(self._confirmed(*each) for each in together))
                failed = failed or next((error for error in found if error is not None), None)
        except BaseException:  # cancelled, too: nobody knows which of them arrived
            sent = {queue for _, _, queue in (*first.values(), *others)}
            self.dirty |= sent & self.offsets.keys()
            raise
        return failed

    async def _confirmed(
        self, address: str, request: Command, queue: MessageQueue
    ) -> SaturnError | None:
        try:
            await self._core.invoke(address, request)
        except ClientForked:
            raise
        except SaturnError as error:
            log.warning("offset of %s not committed: %s", queue, error)
            if queue in self.offsets:
                self.dirty.add(queue)
            return error
        self._sent_on.pop(queue, None)
        return None

    async def _reach(self, address: str) -> None:
        try:
            await self._core.connect(address)
        except SaturnError as error:
            log.debug("offsets wait for %s: %s", address, error)


class WrittenOffsets(OffsetTable):
    """Offsets that are written by one call at a time, each to its end: a thread cannot be stopped,
    so a caller that is cancelled leaves its call to it, and the next one waits for that.
    """

    def __init__(self, core: ClientCore) -> None:
        super().__init__()
        self._core = core
        self._writing = asyncio.Lock()
        self._failing = False

    async def commit(
        self, queues: Iterable[MessageQueue] | None = None, *, confirm: bool = False
    ) -> SaturnError | None:
        """Writes the changed offsets. Gives a failure to a caller that wants `confirm`, and reports
        others, the first of several; the offsets are written again with the next ones.
        """
        writing = self._core.runtime.spawn(self._write_alone(queues), name="write offsets")
        failed = await asyncio.shield(writing)
        if failed is not None and not confirm and not self._failing:
            self._core.report_error(failed)
        self._failing = failed is not None
        return failed

    async def _write_alone(self, queues: Iterable[MessageQueue] | None) -> OffsetsNotSaved | None:
        async with self._writing:
            chosen = self.dirty if queues is None else self.dirty.intersection(queues)
            return await self._write(chosen) if chosen else None

    async def _write(self, queues: set[MessageQueue]) -> OffsetsNotSaved | None:
        """Write the offsets of `queues`, which have changed, or say why they are not written."""
        raise NotImplementedError


class LocalOffsets(WrittenOffsets):
    """Offsets of a broadcasting consumer in its own file, `path`; the file `former` counts while
    that is missing.
    """

    def __init__(
        self, core: ClientCore, files: FileDoor, path: str, former: str | None = None
    ) -> None:
        super().__init__(core)
        self._files = files
        self._path = path
        self._former = former
        self._stored: dict[MessageQueue, int] = {}
        self._has_file = False

    async def open(self) -> None:
        """Takes the file for this consumer alone, and reads it.

        OffsetsLocked: another consumer has it. ConfigError: the file cannot be used, or holds
        something else.
        """
        run = self._core.runtime.run_blocking
        try:
            holder = None if self._has_file else await run(self._files.lock, self._path)
            if holder is not None:
                raise OffsetsLocked(
                    f"{self._path} keeps the offsets of another consumer, of {holder}: give each "
                    "one that runs under this user a name of its own, instance_name='...'"
                )
            self._has_file = True  # also if the start is cancelled now, and begins anew
            data = await run(self._files.read, self._path)
            if data is None and self._former is not None:
                data = await run(self._files.read, self._former)
        except OSError as error:
            await self.close()
            raise ConfigError(
                f"no offsets can be kept in {self._path}: {error}; give another offsets_path='...'"
            ) from error
        try:
            table = checked.table(checked.document(data or b""), "offsetTable")
            self._stored = {checked.as_queue(key): _number(at) for key, at in table.items()}
        except SaturnError as error:
            await self.close()
            raise ConfigError(
                f"{self._path} holds no offsets: {error}; remove it to begin at consume_from"
            ) from error

    async def close(self) -> None:
        """Releases the file for another consumer."""
        self._has_file = False
        await self._core.runtime.run_blocking(self._files.unlock, self._path)

    async def load(
        self, queue: MessageQueue, *, stored_only: bool = False, begins: bool = False
    ) -> int | None:
        return self.offsets.get(queue, self._stored.get(queue))

    async def _write(self, queues: set[MessageQueue]) -> OffsetsNotSaved | None:
        """Writes the whole table; which `queues` have changed makes no difference to a file."""
        self.dirty.clear()
        self._stored.update(self.offsets)
        data = b'{"offsetTable":' + bytes(fastjson.dumps_mq_map(dict(self._stored))) + b"}"
        try:
            await self._core.runtime.run_blocking(self._files.replace, self._path, data)
        except BaseException as error:
            self.dirty.update(self.offsets)
            if not isinstance(error, OSError):
                raise
            return OffsetsNotSaved(
                f"the offsets in {self._path} cannot be saved: {error}; messages consumed from "
                "now on come again after a restart unless a later attempt succeeds"
            )
        return None


def offsets_of_instance(
    core: ClientCore, group: str, files: FileDoor | None, instance_name: str, path: str | None
) -> LocalOffsets:
    """The offsets of a broadcasting consumer, in the file `path` or in that of its instance."""
    if files is None:
        from saturnmq.client.consumer.local_files import LocalFiles

        files = LocalFiles()
    former = None
    if path is None:
        path = f"{OFFSETS}/{instance_name}/{group}/offsets.json"
        if instance_name == INSTANCE:  # the place from before consumers had names
            former = f"{OFFSETS}/{group}/offsets.json"
    return LocalOffsets(core, files, path, former)


def _number(value: object) -> int:
    # Java writes the AtomicLong as a number; some versions as {"value":N}.
    offset = value.get("value") if isinstance(value, dict) else value
    return checked.as_integer(offset, "an offset", least=-1)
