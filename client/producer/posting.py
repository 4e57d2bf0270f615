"""Asynchronous sends of an idle lane: the request in the calling thread, its answer on the loop.

A message that comes alone would wake the loop's thread for nothing but the write of its request:
where messages are rare, that is a sixth of their way to a consumer. So the thread that sends it
writes the request, on a connection that only such requests use. From there on the batch is one as
any other: it is in flight in its lane, and the Sender decides what its answer, or the lack of one,
means. Messages that come while it is in flight, or so fast that they had better travel together,
take the ordinary path.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial

from saturnmq.client.connections import SUCCEEDED_S
from saturnmq.client.producer.batch import ProducerBatch, SendHandle
from saturnmq.client.producer.carriers import SMALL_BYTES, UNDER_WAY
from saturnmq.client.producer.engine import ProducerEngine
from saturnmq.client.producer.lanes import Lane, Pin
from saturnmq.protocol.channel import Channel
from saturnmq.protocol.message import Message, MessageQueue
from saturnmq.protocol.remoting import Body, Command
from saturnmq.runtime import forks
from saturnmq.runtime.errors import ConnectFailed, ConnectionLost, RequestTimeout, SaturnError

OPEN_AFTER = 8  # posts that found no connection; it is opened on the loop meanwhile
REST_S = 60.0  # an older connection is not used again: the peer may have closed it
LOOKS = 4  # for overdue answers, within a time-out


class Posting:
    """The connections of one producer on which its threads post, by the address of the master."""

    def __init__(self, engine: ProducerEngine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        self._lines: dict[str, PostLine] = {}
        self._wanted: dict[str, int] = {}  # posts that found no line
        self._closed = False
        engine.core.on_route_change(self._route_changed)
        forks.register(self)

    def post(self, message: Message, pinned: Pin | None) -> SendHandle | None:
        """The handle of a message that is on its way; None, with nothing done, if the ordinary path
        has to take it."""
        engine = self._engine
        lane = engine.accumulator.lanes.get(message.topic if pinned is None else pinned)
        if lane is None or not lane.is_idle or engine.sender.gathers or self._closed:
            return None
        if len(message.body) > SMALL_BYTES:
            return None
        turn = lane.next_queue
        queue = engine.sender.queue_now(lane)
        address = None if queue is None else engine.core.broker_address(queue.broker_name)
        if queue is None or address is None:
            return None
        line = self._lines.get(address)
        batch = None if line is None else line.post(lane, queue, message)
        if batch is None:
            lane.next_queue = turn  # the ordinary path goes there
            if line is None:
                self._want(address)
            return None
        return batch.handle(0)

    def _want(self, address: str) -> None:
        wanted = self._wanted[address] = self._wanted.get(address, 0) + 1
        if wanted == OPEN_AFTER:
            self._engine.call_on_loop(partial(self._begin, address))

    # -- the loop thread -----------------------------------------------------------------------

    def _begin(self, address: str) -> None:
        core = self._engine.core
        core.tasks.once(
            partial(self._open, address),
            name=f"a connection for posts to {address}",
            failed=partial(self._not_open, address),
        )

    def _not_open(self, address: str, _: SaturnError) -> None:
        # The ordinary path meets the same error and handles it; later posts try again.
        self._wanted.pop(address, None)

    async def _open(self, address: str) -> None:
        core = self._engine.core
        try:
            connect = partial(Channel, credentials=core.credentials)
            channel: Channel = await core.runtime.run_blocking(
                connect, core.runtime, address, core.connect_timeout
            )
        except ConnectFailed as error:
            self._not_open(address, error)
            return
        if self._closed or address in self._lines:  # two threads asked for it at once
            channel.close()
        else:
            self._lines[address] = PostLine(self._engine, self._loop, channel, self._ended)

    def _ended(self, address: str) -> None:
        self._lines.pop(address, None)
        self._wanted.pop(address, None)

    def _route_changed(self, topic: str) -> None:
        for address, line in self._lines.items():
            if not self._engine.core.routes.leads(address):
                line.succeeded()

    def forked(self) -> None:
        """A child takes the ordinary path, which raises the error."""
        self._closed = True

    def refuse(self) -> None:
        """Take nothing more; what is on its way stays so. Any thread may call it."""
        self._closed = True

    def close(self) -> None:
        """Close the connections; what is still on its way fails."""
        self._closed = True
        for line in list(self._lines.values()):
            line.end("the producer was closed")


class PostLine:
    """One connection: a thread at a time posts on it, the loop reads the answers."""

    def __init__(
        self,
        engine: ProducerEngine,
        loop: asyncio.AbstractEventLoop,
        channel: Channel,
        ended: Callable[[str], None],
    ) -> None:
        """`ended` is called on the loop with the address when the connection has ended."""
        self._engine = engine
        self._runtime = engine.core.runtime
        self._loop = loop
        self._channel = channel
        self._ended = ended
        self._turn = threading.Lock()
        self._closed = False  # it takes no posts
        self._over = False
        self._opaque = 0
        self._posts: dict[int, tuple[ProducerBatch, MessageQueue]] = {}  # by opaque
        self._rest: list[Body] = []  # the end of a request that the socket had no room for
        self._is_watched = False  # the loop looks for overdue answers
        self._timeout_s = engine.options.send_timeout
        loop.add_reader(channel.fileno(), self._read)

    def post(self, lane: Lane, queue: MessageQueue, message: Message) -> ProducerBatch | None:
        """The batch of a message that is on its way; None, with nothing done, if it cannot leave
        now. Any thread may call it."""
        if not self._turn.acquire(blocking=False):
            return None
        try:
            if self._closed or self._rest or len(self._posts) >= UNDER_WAY or self._is_old():
                return None
            batch = self._engine.only(message, lane)
            command = self._engine.sender.command(batch, queue)
            return batch if self._send(command, batch, queue) else None
        finally:
            self._turn.release()

    def _is_old(self) -> bool:
        if self._channel.idle_s() <= REST_S or self._posts:
            return False
        self._break("it was not used for long")
        return True

    def _send(self, command: Command, batch: ProducerBatch, queue: MessageQueue) -> bool:
        if not self._is_watched:
            self._is_watched = True
            self._engine.call_on_loop(self._watch)
        opaque = self._opaque = command.opaque = (self._opaque + 1) & 0x7FFFFFFF
        self._posts[opaque] = batch, queue  # before the loop reads the answer
        try:
            if not self._engine.sender.begin(batch, queue):
                del self._posts[opaque]
                return False
            self._rest = self._channel.post(command)
        except SaturnError as error:
            self._break(str(error))
        except BaseException:  # interrupted: half a request may be sent
            if batch not in self._engine.accumulator.active:
                self._posts.pop(opaque, None)
            self._break("the sender was interrupted")
            raise
        if self._rest:
            self._engine.call_on_loop(self._write_on)
        return True

    def _break(self, why: str) -> None:
        self._closed = True
        self._engine.call_on_loop(partial(self.end, why))

    # -- the loop thread -----------------------------------------------------------------------

    def _read(self) -> None:
        try:
            answers = self._channel.take()
        except SaturnError as error:
            self.end(str(error))
            return
        for answer in answers:
            post = self._posts.pop(answer.opaque, None)
            if post is not None:
                self._engine.sender.settled(*post, answer)

    def _write_on(self) -> None:
        if not self._over:
            self._loop.add_writer(self._channel.fileno(), self._write_rest)

    def _write_rest(self) -> None:
        with self._turn:
            try:
                self._rest = self._channel.post_rest(self._rest)
            except SaturnError as error:
                self._break(str(error))
            if not self._rest:
                self._loop.remove_writer(self._channel.fileno())

    def _watch(self) -> None:
        self._runtime.call_later(self._timeout_s / LOOKS, self._look)

    def _look(self) -> None:
        """Give up answers that did not come in time; the line is watched as long as it is used."""
        now = self._runtime.monotonic()
        with self._turn:
            late = [
                opaque
                for opaque, (batch, _) in self._posts.items()
                if min(batch.sent_at + self._timeout_s, batch.deadline) <= now
            ]
            overdue = [self._posts.pop(opaque) for opaque in late]
            self._is_watched = bool(self._posts) or self._channel.idle_s() < self._timeout_s
        for batch, queue in overdue:
            silent = self._channel.idle_s() > now - batch.sent_at
            what = f"no answer from {self._channel.address} to a post in time"
            self._engine.sender.settled(batch, queue, RequestTimeout(what))
            if silent:  # a new connection is faster than the back-off of this one
                self.end("no answer in time")
        if self._is_watched:
            self._watch()

    def succeeded(self) -> None:
        """Another broker leads the group now: if this one stays silent, it hangs, and nothing may
        wait for it."""
        self._runtime.call_later(SUCCEEDED_S, self._leave, self._runtime.monotonic())

    def _leave(self, since: float) -> None:
        if self._posts and self._channel.is_silent_since(since):
            self.end("it hangs, and another broker is master now")

    def end(self, why: str) -> None:
        """Close the connection; what waits for an answer is sent again, or fails."""
        if self._over:
            return
        with self._turn:  # no request is half written
            self._closed = self._over = True
        number = self._channel.fileno()
        self._loop.remove_reader(number)
        self._loop.remove_writer(number)
        self._channel.close()
        self._ended(self._channel.address)
        posts, self._posts = self._posts, {}
        for batch, queue in posts.values():
            lost = f"connection to {self._channel.address} lost ({why}) before the answer to a post"
            self._engine.sender.settled(batch, queue, ConnectionLost(lost))
