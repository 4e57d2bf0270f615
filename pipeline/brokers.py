"""A cluster as a source reads it: planning by bounds and cuts, reading in chunks of two mebibytes.

A task has one connection per broker. The next chunk is on its way while the last is decoded, and
nothing is done per message. When a broker does not answer, or has less than was asked for, the next
replica is asked, from where the last one stopped; `Where.read_from` says who is asked first. Nobody
waits for ever: `timeout_ms` without a message ends with an error that names the queue, the replicas
and why each could not be read.

RocketMQ's own brokers do not know ranges. They are pulled from as a consumer would (32 messages at
a time), their bounds come from the topic's statistics, and a message counts as a kibibyte.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from saturnmq.pipeline import connections
from saturnmq.pipeline.access import ANY, MASTER, Decoding, Where
from saturnmq.pipeline.plan import Range
from saturnmq.pipeline.reading import Tally, decoder
from saturnmq.protocol import jsonx
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import (
    ConnectFailed,
    ConnectionLost,
    MalformedFrame,
    QueryNotFound,
    RouteNotFound,
    SaturnError,
    SystemBusy,
    TopicNotExist,
    UnsupportedRequest,
    error_for,
)
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import MASTER_ID, TopicRoute
from saturnmq.protocol.topics import REPLY_SUFFIX, is_system_topic

if TYPE_CHECKING:
    from saturnmq.pipeline.decoding import Decoder

ROUTE_AGE_S = 1.0
REQUEST_TIMEOUT_S = 5.0
LAGS_S = 10.0  # so long is waited for messages that no replica has
PAUSE_S = 0.05
GUESSED_BYTES = 1024  # of a message on a broker that cannot weigh it
PULL_GROUP = "saturnmq-spark"
JAVA_BATCH = 32
RANGES = 5_000  # in one request to be cut
SUBSCRIPTION = 4  # bit of a pull's sysFlag
NOTHING_YET, NO_MATCH, MOVED = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
_PULL_CODES = (ResponseCode.SUCCESS, NOTHING_YET, NO_MATCH, MOVED)

T = TypeVar("T")


class BrokersUnreachable(SaturnError):
    """No replica of a broker, or no nameserver, could be asked"""


class Cluster:
    """Access to the cluster behind `where.nameservers`."""

    def __init__(self, where: Where) -> None:
        self._where = where
        self._nameservers = list(where.nameservers)
        self._routes: dict[str, tuple[float, TopicRoute | None]] = {}
        self._java: set[str] = set()  # addresses of brokers that do not know ranges

    def close(self) -> None:
        """The connections stay for the next one, for a while."""

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what there is ---------------------------------------------------------------------------

    def topics(self) -> list[str]:
        listed = self._ask_nameserver(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        clusters = self._ask_nameserver(RequestCode.GET_BROKER_CLUSTER_INFO)
        brokers = clusters.get("brokerAddrTable") or {}
        own = set(brokers) | {str(data.get("cluster")) for data in brokers.values()}
        own |= {f"{name}{REPLY_SUFFIX}" for name in own}
        return sorted(
            name
            for name in listed.get("topicList") or ()
            if name not in own and not is_system_topic(name)
        )

    def queues(self, topic: str) -> list[MessageQueue]:
        route = self._route(topic)
        return sorted(
            MessageQueue(topic, data.broker_name, queue_id)
            for data in (route.queues if route else ())
            if data.readable
            for queue_id in range(data.read_queues)
        )

    def bounds(self, topics: Collection[str]) -> dict[MessageQueue, tuple[int, int]]:
        found: dict[MessageQueue, tuple[int, int]] = {}
        for topic in topics:
            for broker in sorted({queue.broker_name for queue in self.queues(topic)}):

                def ask(address: str, topic: str = topic) -> dict[int, tuple[int, int]]:
                    return self._bounds_at(address, topic)

                try:
                    table = self._at(topic, broker, ask)
                except TopicNotExist:  # deleted, and the nameserver has not heard of it
                    continue
                for queue_id, bounds in table.items():
                    found[MessageQueue(topic, broker, queue_id)] = bounds
        return found

    def _bounds_at(self, address: str, topic: str) -> dict[int, tuple[int, int]]:
        ext = {"topic": topic}
        if address not in self._java:
            try:
                table = self._ask(address, RequestCode.QUEUE_BOUNDS, ext)
                return {int(key): (int(low), int(high)) for key, (low, high) in table.items()}
            except UnsupportedRequest:
                self._java.add(address)
        table = self._ask(address, RequestCode.GET_TOPIC_STATS_INFO, ext).get("offsetTable") or {}
        return {int(k[2]): (int(v["minOffset"]), int(v["maxOffset"])) for k, v in table.items()}

    def offset_at_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        ext = _place(queue) | {"timestamp": str(timestamp_ms)}

        def ask(address: str) -> int:
            answer = self._request(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext)
            return int(answer.ext["offset"])

        return self._at(queue.topic, queue.broker_name, ask)

    def committed(self, group: str, topic: str) -> dict[MessageQueue, int]:
        found = {}
        for queue in self.queues(topic):
            ext = _place(queue) | {"consumerGroup": group}

            def ask(address: str, ext: dict[str, str] = ext) -> int:
                try:
                    answer = self._request(address, RequestCode.QUERY_CONSUMER_OFFSET, ext)
                except QueryNotFound:
                    return -1
                return int(answer.ext["offset"])

            offset = self._at(topic, queue.broker_name, ask)
            if offset >= 0:
                found[queue] = offset
        return found

    def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        for queue, offset in offsets.items():
            ext = _place(queue) | {"consumerGroup": group, "commitOffset": str(offset)}

            def ask(address: str, ext: dict[str, str] = ext) -> None:
                self._request(address, RequestCode.UPDATE_CONSUMER_OFFSET, ext)

            self._at(queue.topic, queue.broker_name, ask, only_master=True)

    def cuts(
        self,
        ranges: Sequence[Range],
        max_bytes: int,
        max_rows: int,
        *,
        first_only: bool = False,
    ) -> list[Range]:
        pieces: list[Range] = []
        by_broker: dict[tuple[str, str], list[Range]] = {}
        for item in ranges:
            by_broker.setdefault((item.topic, item.broker), []).append(item)
        for (topic, broker), own in by_broker.items():
            for at in range(0, len(own), RANGES):
                part = [[item.queue_id, item.start, item.end] for item in own[at : at + RANGES]]

                def ask(
                    address: str, topic: str = topic, part: list[list[int]] = part
                ) -> list[list[int]]:
                    return self._cuts_at(address, topic, part, max_bytes, max_rows, first_only)

                pieces += [Range(topic, broker, *piece) for piece in self._at(topic, broker, ask)]
        return pieces

    def _cuts_at(
        self,
        address: str,
        topic: str,
        ranges: list[list[int]],
        max_bytes: int,
        max_rows: int,
        first_only: bool,
    ) -> list[list[int]]:
        ext = {"topic": topic, "maxBytes": str(max_bytes), "maxRows": str(max_rows)}
        if first_only:
            ext["firstOnly"] = "true"
        pieces: list[list[int]] = []
        rest = ranges
        while rest and address not in self._java:
            try:
                answer = self._ask(address, RequestCode.CUT_QUEUE, ext, jsonx.dumps(rest))
            except UnsupportedRequest:
                self._java.add(address)
                break
            pieces += answer["pieces"]
            rest = answer["rest"]
        if rest:
            pieces += _guessed(rest, max_bytes, max_rows, first_only)
        return pieces

    # -- messages --------------------------------------------------------------------------------

    def batches(self, piece: Range, decoding: Decoding) -> Iterator[Any]:
        """See `Access`; a generator that was not read to its end closes its connection."""
        reading = _Reading(piece, decoding)
        patience = _Patience(self._where, piece)
        while reading.offset < piece.end:
            address, is_last = self._next_replica(piece, patience)
            reading.is_last = is_last
            before = reading.offset
            try:
                yield from self._read_from(address, reading)
            except UnsupportedRequest:
                self._java.add(address)
            except _Elsewhere as lagging:
                patience.failed(address, str(lagging), lags=True)
            except SaturnError as error:
                if not error.retriable:
                    raise
                patience.failed(address, str(error), lags=False)
            if reading.offset > before:
                patience.progressed()
        reading.tally.check()

    def _next_replica(self, piece: Range, patience: _Patience) -> tuple[str, bool]:
        """Whom to ask now, and whether all others were asked."""
        while True:
            refresh = bool(patience.problems)
            try:
                replicas = self._replicas(piece.topic, piece.broker, refresh=refresh)
            except BrokersUnreachable as error:
                patience.failed("the nameservers", str(error), lags=False)
                replicas = []
            untried = [address for address in replicas if address not in patience.tried]
            if untried:
                patience.tried.add(untried[0])
                return untried[0], len(untried) == 1
            if not replicas:
                patience.failed(piece.broker, "no route names it", lags=False)
            patience.pause()

    def _read_from(self, address: str, reading: _Reading) -> Iterator[Any]:
        """Read on at one replica until all is read, or it fails, or has no more."""
        java = address in self._java
        timeout_s = min(self._where.timeout_ms / 1000, 30.0)
        chunk_bytes, group = self._where.chunk_bytes, self._where.group or PULL_GROUP
        channel = connections.take(address)
        idle = False  # nothing is under way on the channel
        try:
            channel.ask(reading.request(java, chunk_bytes, group), timeout_s)
            while True:
                answer = channel.answer()
                idle = True
                if answer.code not in _PULL_CODES:
                    raise error_for(answer.code, answer.remark)
                following = reading.following(answer)
                body = answer.body
                if following < reading.end:
                    idle = False
                    channel.ask(reading.request(java, chunk_bytes, group, following), timeout_s)
                if body:
                    yield from reading.decoded(body, address, java)
                reading.offset = following
                if following >= reading.end:
                    return
        finally:
            if idle:
                connections.give_back(channel)
            else:
                channel.close()

    # -- who is asked ----------------------------------------------------------------------------

    def _replicas(self, topic: str, broker: str, *, refresh: bool = False) -> list[str]:
        """The addresses of a broker's replicas, the first to be asked first."""
        route = self._route(topic, refresh=refresh)
        data = None if route is None else route.broker(broker)
        addresses = {} if data is None else data.addresses
        order = sorted(addresses)  # the master has the least id
        if self._where.read_from == ANY:
            random.shuffle(order)
        elif self._where.read_from != MASTER:
            order = [n for n in order if n != MASTER_ID] + [n for n in order if n == MASTER_ID]
        return [addresses[number] for number in order]

    def _at(
        self, topic: str, broker: str, ask: Callable[[str], T], *, only_master: bool = False
    ) -> T:
        """What the first replica that can answers; asked again a few times, with fresh routes."""
        problems: dict[str, str] = {}
        for attempt in range(self._where.retries + 1):
            if attempt:
                time.sleep(self._where.retry_interval_ms / 1000)
            route = self._route(topic, refresh=attempt > 0)
            data = None if route is None else route.broker(broker)
            addresses = {} if data is None else data.addresses
            for number in sorted(addresses):
                if only_master and number != MASTER_ID:
                    continue
                try:
                    return ask(addresses[number])
                except SaturnError as error:
                    if not error.retriable or isinstance(error, TopicNotExist):
                        raise
                    problems[addresses[number]] = str(error)
        raise _unreachable(f"broker {broker} of topic {topic}", problems)

    def _route(self, topic: str, *, refresh: bool = False) -> TopicRoute | None:
        known = self._routes.get(topic)
        now = time.monotonic()
        if known is not None and not refresh and now - known[0] < ROUTE_AGE_S:
            return known[1]
        route: TopicRoute | None
        try:
            answer = self._ask_nameserver(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
            route = TopicRoute.from_json(answer)
        except (TopicNotExist, RouteNotFound):
            route = None
        except BrokersUnreachable:
            if known is None:
                raise
            route = known[1]  # the last good one serves while no nameserver answers
        self._routes[topic] = (now, route)
        return route

    def _ask_nameserver(
        self, code: RequestCode, ext: dict[str, str] | None = None
    ) -> dict[str, Any]:
        problems = {}
        for address in list(self._nameservers):
            try:
                found: dict[str, Any] = self._ask(address, code, ext or {})
                return found
            except TopicNotExist:
                raise
            except SaturnError as error:
                if not error.retriable:
                    raise
                problems[address] = str(error)
                self._nameservers.append(self._nameservers.pop(0))
        raise _unreachable(
            f"nameserver of {', '.join(self._where.nameservers)}", problems, " (option endpoints)"
        )

    def _ask(
        self, address: str, code: RequestCode, ext: dict[str, str], body: bytes = b""
    ) -> dict[Any, Any]:
        """The JSON object of an answer."""
        answer = self._request(address, code, ext, body)
        value = jsonx.loads(answer.body) if answer.body else {}
        if not isinstance(value, dict):
            raise SystemBusy(f"{address} answers request {code} with {str(value)[:60]}")
        return value

    def _request(
        self, address: str, code: RequestCode, ext: dict[str, str], body: bytes = b""
    ) -> Command:
        try:
            answer = _once(address, code, ext, body)
        except ConnectFailed:
            raise
        except ConnectionLost:  # a kept connection may be one to a process that has started anew
            answer = _once(address, code, ext, body)
        if answer.code != ResponseCode.SUCCESS:
            raise error_for(answer.code, answer.remark)
        return answer


def _once(address: str, code: RequestCode, ext: dict[str, str], body: bytes) -> Command:
    channel = connections.take(address)
    try:
        answer = channel.request(Command.request(code, dict(ext), body), REQUEST_TIMEOUT_S)
    except BaseException:
        channel.close()
        raise
    connections.give_back(channel)
    return answer


class _Elsewhere(SaturnError):
    """This replica does not have the messages"""


class _Reading:
    """How far a range is read, and what is made of each answer."""

    def __init__(self, piece: Range, decoding: Decoding) -> None:
        self.offset = piece.start
        self.end = piece.end
        self._piece = piece
        self._decoding = decoding
        self.tally = Tally(piece, decoding)
        self._decoder: Decoder | None = None
        self.is_last = False  # no other replica is left to be asked
        self._filtered = (decoding.expression, decoding.expression_type) != ("*", "TAG")

    def request(
        self, java: bool, chunk_bytes: int, group: str, offset: int | None = None
    ) -> Command:
        """For the messages from `offset` on, or from where the reading is."""
        offset = self.offset if offset is None else offset
        ext = _place(self._piece.queue)
        if self._filtered or java:
            ext["subscription"] = self._decoding.expression
            ext["expressionType"] = self._decoding.expression_type
        if java:
            ext |= {
                "consumerGroup": group,
                "queueOffset": str(offset),
                "maxMsgNums": str(min(self.end - offset, JAVA_BATCH)),
                "sysFlag": str(SUBSCRIPTION),
                "commitOffset": "0",
                "suspendTimeoutMillis": "0",
                "subVersion": "0",
            }
            return Command.request(RequestCode.PULL_MESSAGE, ext)
        ext |= {"offset": str(offset), "end": str(self.end), "maxBytes": str(chunk_bytes)}
        return Command.request(RequestCode.READ_QUEUE, ext)

    def following(self, answer: Command) -> int:
        """Where to go on. _Elsewhere if this replica has nothing there; DataLoss if nobody has."""
        try:
            offset = min(int(answer.ext["nextBeginOffset"]), self.end)
            least = int(answer.ext["minOffset"])
        except (KeyError, ValueError):
            raise MalformedFrame(
                f"the answer to a read of {self._piece} does not say where to go on: {answer!r}"
            ) from None
        if self.offset < least and self.is_last:
            offset = min(max(offset, least), self.end)
            self.tally.lose(self.offset, offset, "they are deleted")
            return offset
        if offset <= self.offset or self.offset < least:
            raise _Elsewhere(
                f"it has the queue from {least} to {answer.ext.get('maxOffset')}, "
                f"{self.offset} to {self.end} are asked for"
            )
        return offset

    def decoded(self, body: Any, address: str, java: bool) -> Iterator[Any]:
        if java:
            body = _before(body, self.end)
        if self._decoder is None:
            self._decoder = decoder(self._decoding, self._piece.broker)
        where = f"broker {self._piece.broker} ({address}), {self._piece}"
        yield from self.tally.count(self._decoder.frames(body, where=where))


class _Patience:
    """How long one range may go without a message, and what stood in its way."""

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
        """Everybody was tried: wait before the next round, or give up."""
        waited = time.monotonic() - (self._since or time.monotonic())
        limit = self._where.timeout_ms / 1000
        if self._lags:
            limit = min(limit, LAGS_S)
        if waited >= limit:
            what = f"{self._piece} could not be read for {waited:.0f} s"
            raise _unreachable(what, self.problems, " (option pullTimeoutMs)", prefix="")
        time.sleep(PAUSE_S)
        self.tried.clear()
        self._lags = True


def _unreachable(
    what: str, problems: Mapping[str, str], hint: str = "", prefix: str = "no answer of any "
) -> BrokersUnreachable:
    why = "; ".join(f"{who}: {problem}" for who, problem in problems.items()) or "no route names it"
    return BrokersUnreachable(
        f"{prefix}{what}{hint}: check that it runs and can be reached from here\n{why}"
    )


def _place(queue: MessageQueue) -> dict[str, str]:
    return {"topic": queue.topic, "queueId": str(queue.queue_id)}


def _guessed(
    ranges: list[list[int]], max_bytes: int, max_rows: int, first_only: bool
) -> list[list[int]]:
    step = max(1, min(max_bytes // GUESSED_BYTES, max_rows))
    pieces = []
    for queue_id, start, end in ranges:
        for first in range(start, end, step):
            stop = min(first + step, end)
            pieces.append([queue_id, first, stop, (stop - first) * GUESSED_BYTES])
            if first_only:
                break
    return pieces


def _before(frames: memoryview, end: int) -> memoryview:
    """The frames of queue offsets below `end`: a filter lets a pull look further."""
    pos = 0
    while pos + 28 <= len(frames):
        size = int.from_bytes(frames[pos : pos + 4], "big")
        if size < 28 or int.from_bytes(frames[pos + 20 : pos + 28], "big") >= end:
            break
        pos += size
    return frames[:pos] if pos + 28 <= len(frames) else frames
