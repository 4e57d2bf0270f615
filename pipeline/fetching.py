"""A range of a queue on its way from a cluster: what is asked for, what an answer means, and how
long the range may go without a message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from saturnmq.pipeline.access import Decoding, Where
from saturnmq.pipeline.batched_topics import refusal
from saturnmq.pipeline.plan import Range
from saturnmq.pipeline.reading import ReadTally
from saturnmq.protocol.codes import PULL_SUBSCRIPTION, RequestCode, ResponseCode
from saturnmq.protocol.kernels import has_wrapped
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.subscription import TAG_EXPRESSION
from saturnmq.runtime.errors import MalformedFrame, SaturnError

if TYPE_CHECKING:
    from saturnmq.pipeline.decoding import Decoder

LAGS_S = 10.0  # so long is waited for messages that no replica has
PAUSE_S = 0.05
PULL_GROUP = "saturnmq-spark"
JAVA_BATCH = 32
PULL_CODES = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


class BrokersUnreachable(SaturnError):
    """No replica of a broker could be asked"""


class Lagging(BrokersUnreachable):
    """All replicas of a broker have less than was asked for"""


class Elsewhere(SaturnError):
    """This replica does not have the messages"""


class Fetch:
    """The progress of reading a range, and the handling of each answer."""

    def __init__(
        self, piece: Range, decoding: Decoding, decoder_for: Callable[[str], Decoder]
    ) -> None:
        """`decoder_for` gives the decoder of a broker's messages; it is asked when there are
        some."""
        self.offset = piece.start
        self.end = piece.end
        self.piece = piece
        self._decoding = decoding
        self._decoder_for = decoder_for
        self.tally = ReadTally(piece, decoding)
        self.is_last = False  # no other replica is left to be asked
        self.expression = decoding.expression
        self.unchecked = decoding.expression_type != TAG_EXPRESSION

    def question(self, group: str) -> dict[str, Any]:
        """The first question of a RocketMQ consumer: whether the broker can filter by its
        expression. It gives every message to a pull with one that it cannot parse."""
        subscription = {
            "topic": self.piece.topic,
            "subString": self.expression,
            "expressionType": self._decoding.expression_type,
        }
        return {"clientId": PULL_GROUP, "group": group, "subscriptionData": subscription}

    def request(
        self, java: bool, chunk_bytes: int, group: str, offset: int | None = None
    ) -> Command:
        """A request for the messages from `offset` on, or from the place where the reading is."""
        offset = self.offset if offset is None else offset
        ext = place(self.piece.queue)
        if java or not self._decoding.takes_all:
            ext["subscription"] = self._decoding.expression
            ext["expressionType"] = self._decoding.expression_type
        if java:
            ext |= {
                "consumerGroup": group,
                "queueOffset": str(offset),
                "maxMsgNums": str(min(self.end - offset, JAVA_BATCH)),
                "sysFlag": str(PULL_SUBSCRIPTION),
                "commitOffset": "0",
                "suspendTimeoutMillis": "0",
                "subVersion": "0",
            }
            return Command.request(RequestCode.PULL_MESSAGE, ext)
        ext |= {"offset": str(offset), "end": str(self.end), "maxBytes": str(chunk_bytes)}
        return Command.request(RequestCode.READ_QUEUE, ext)

    def following(self, answer: Command) -> int:
        """The offset to go on at. Elsewhere: this replica has nothing there; DataLoss: no replica
        has."""
        try:
            offset = min(int(answer.ext["nextBeginOffset"]), self.end)
            least = int(answer.ext["minOffset"])
        except (KeyError, ValueError):
            raise MalformedFrame(
                f"the answer to a read of {self.piece} does not say where to go on: {answer!r}"
            ) from None
        if self.offset < least and self.is_last:
            offset = min(max(offset, least), self.end)
            self.tally.lose(self.offset, offset, "they are deleted")
            return offset
        if offset <= self.offset or self.offset < least:
            raise Elsewhere(
                f"it has the queue from {least} to {answer.ext.get('maxOffset')}, "
                f"{self.offset} to {self.end} are asked for"
            )
        return offset

    def lose_rest(self, why: str) -> None:
        """Nobody has the messages that were not read."""
        self.tally.lose(self.offset, self.end, why)
        self.offset = self.end

    def begin(self, answer: Command, address: str) -> Iterator[Any]:
        """The batches of an answer that nobody has looked at yet; none if it does not lead on."""
        try:
            following = self.following(answer)
        except (Elsewhere, MalformedFrame):
            return
        if answer.body:
            yield from self.decoded(answer.body, address, java=False)
        self.offset = following

    def decoded(self, body: Any, address: str, java: bool) -> Iterator[Any]:
        """The batches of the frames that one answer has. ConfigError: they are inner batches, which
        RocketMQ's brokers give as they are."""
        if java:
            body = _before(body, self.end)
        if has_wrapped(body):
            raise refusal(self.piece.topic)
        where = f"broker {self.piece.broker} ({address}), {self.piece}"
        yield from self.tally.count(self._decoder_for(self.piece.broker).frames(body, where=where))


class Patience:
    """The time for which one range may go without a message, and the obstacles that it met."""

    def __init__(self, where: Where, piece: Range) -> None:
        self._where = where
        self._piece = piece
        self.problems: dict[str, str] = {}
        self.tried: set[str] = set()
        self._since: float | None = None
        self._lags = True

    def progressed(self) -> None:
        self.tried.clear()
        self.problems.clear()
        self._since = None
        self._lags = True

    def failed(self, who: str, why: str, *, lags: bool) -> None:
        self.problems[who] = why
        self._lags = self._lags and lags
        if self._since is None:
            self._since = time.monotonic()

    def pause(self) -> None:
        """Everybody was tried: wait before the next round, or give up. Lagging: all have less than
        was asked for."""
        waited = time.monotonic() - (self._since or time.monotonic())
        limit = self._where.timeout_ms / 1000
        if self._lags:
            limit = min(limit, LAGS_S)
        if waited >= limit:
            what = f"{self._piece} could not be read for {waited:.0f} s"
            error = unreachable(what, self.problems, " (option pullTimeoutMs)", prefix="")
            raise Lagging(str(error)) if self._lags else error
        time.sleep(PAUSE_S)
        self.tried.clear()
        self._lags = True


def unreachable(
    what: str, problems: Mapping[str, str], hint: str = "", prefix: str = "no answer of any "
) -> BrokersUnreachable:
    """BrokersUnreachable, with what everybody said who was asked."""
    why = "; ".join(f"{who}: {problem}" for who, problem in problems.items()) or "no route names it"
    return BrokersUnreachable(
        f"{prefix}{what}{hint}: check that it runs and can be reached from here\n{why}"
    )


def place(queue: MessageQueue) -> dict[str, str]:
    """The fields of a request that say which queue."""
    return {"topic": queue.topic, "queueId": str(queue.queue_id)}


def _before(frames: memoryview, end: int) -> memoryview:
    """The frames of queue offsets below `end`: a filter lets a pull look further."""
    pos = 0
    while pos + 28 <= len(frames):
        size = int.from_bytes(frames[pos : pos + 4], "big")
        if size < 28 or int.from_bytes(frames[pos + 20 : pos + 28], "big") >= end:
            break
        pos += size
    return frames[:pos] if pos + 28 <= len(frames) else frames
