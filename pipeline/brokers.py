"""A cluster as a source reads it: planning by bounds and cuts, reading in chunks of two mebibytes.

A task has one connection per broker. The next chunk is on its way while the last is decoded, small
ranges are asked for together, and nothing is done per message. When a broker does not answer, or
has less than was asked for, the next replica is asked, from where the last one stopped;
`Where.read_from` says who is asked first. No task waits for ever: `timeout_ms` without a message
ends with an error that names the queue, the replicas and why each could not be read (fetching.py).

RocketMQ's own brokers do not know ranges. They are pulled from as a consumer would (32 messages at
a time), their bounds come from the topic's statistics, and a message counts as a kibibyte.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cache, partial
from typing import Any, TypeVar

from saturnmq.client.channels import Nameservers, NameserversUnreachable, document, success
from saturnmq.pipeline import queue_bounds
from saturnmq.pipeline.access import ANY, MASTER, Decoding, Where
from saturnmq.pipeline.batched_topics import LeftOut, QueueTypes
from saturnmq.pipeline.connections import channels
from saturnmq.pipeline.cutting import Cutting
from saturnmq.pipeline.fetching import (
    PULL_CODES,
    PULL_GROUP,
    Elsewhere,
    Fetch,
    Lagging,
    Patience,
    place,
    unreachable,
)
from saturnmq.pipeline.plan import Range
from saturnmq.pipeline.reading import cut_off, decoder
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import MASTER_ID, TopicRoute, brokers_of
from saturnmq.protocol.topics import REPLY_SUFFIX, is_system_topic
from saturnmq.runtime.errors import (
    ConfigError,
    InvalidParameter,
    QueryNotFound,
    SaturnError,
    SubscriptionParseFailed,
    TopicNotExist,
    UnsupportedRequest,
    error_for,
)

ROUTE_AGE_S = 1.0
REQUEST_TIMEOUT_S = 5.0
RANGES = 5_000  # in one request to be cut
TOGETHER = 16  # requests at once, each with its piece of work for the broker
TOGETHER_RANGES = 1_000  # to be cut by requests at once: they fit into a socket's buffer

WITHDRAWN = "their queue is none of the topic's any more; raise its readQueueNums to read them"

T = TypeVar("T")


class ClusterAccess:
    """Access to the cluster behind `where.nameservers`."""

    def __init__(self, where: Where) -> None:
        self._where = where
        self._nameservers = Nameservers(where.nameservers, channels, REQUEST_TIMEOUT_S)
        self._java: set[str] = set()  # addresses of brokers that do not know ranges
        self._types = QueueTypes(channels, REQUEST_TIMEOUT_S)
        self._left_out = LeftOut()

    def close(self) -> None:
        """The connections stay for the next one, for a while."""

    def __enter__(self) -> ClusterAccess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what there is ---------------------------------------------------------------------------

    def topics(self) -> list[str]:
        ask = self._nameservers.ask
        listed = self._patiently(partial(ask, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
        brokers = brokers_of(self._patiently(partial(ask, RequestCode.GET_BROKER_CLUSTER_INFO)))
        own = {name for data in brokers for name in (data.broker_name, data.cluster)}
        own |= {f"{name}{REPLY_SUFFIX}" for name in own}
        found = sorted(
            name
            for name in listed.get("topicList") or ()
            if name not in own and not is_system_topic(name)
        )
        return self._left_out.without(found, self._types.batched(set(found), brokers))

    def queues(self, topic: str) -> list[MessageQueue]:
        route = self._patiently(partial(self._route, topic))
        return sorted(
            MessageQueue(topic, data.broker_name, queue_id)
            for data in (route.queues if route else ())
            if data.readable
            for queue_id in range(data.read_queues)
        )

    def bounds(
        self, topics: Collection[str], begun: Collection[MessageQueue] = ()
    ) -> dict[MessageQueue, tuple[int, int]]:
        readable = {queue for topic in topics for queue in self.queues(topic)}
        also: dict[tuple[str, str], list[int]] = {queue[:2]: [] for queue in sorted(readable)}
        for queue in set(begun) - readable:
            also.get(queue[:2], []).append(queue.queue_id)
        asks = [(self._master(*at), queue_bounds.request(at[0], ids)) for at, ids in also.items()]
        found: dict[MessageQueue, tuple[int, int]] = {}
        for (topic, broker), answer in zip(also, self._at_once(asks), strict=True):
            ids = also[topic, broker]
            ask = partial(self._bounds_at, topic=topic, broker=broker, also=ids)
            try:
                table = (
                    self._at(topic, broker, ask)
                    if answer is None
                    else queue_bounds.of_answer(broker, answer)
                )
            except TopicNotExist:  # deleted, and the nameserver has not heard of it
                continue
            for queue_id, bounds in table.items():
                found[MessageQueue(topic, broker, queue_id)] = bounds
        return found

    def _bounds_at(
        self, address: str, *, topic: str, broker: str, also: Sequence[int]
    ) -> queue_bounds.Bounds:
        ask = partial(_request, address)
        if address not in self._java:
            try:
                return queue_bounds.of_answer(address, ask(queue_bounds.request(topic, also)))
            except UnsupportedRequest:
                self._java.add(address)
        readable = [each.queue_id for each in self.queues(topic) if each.broker_name == broker]
        return queue_bounds.of_rocketmq(address, topic, readable, also, ask)

    def end_in_log(self, queue: MessageQueue) -> int | None:
        command = Command.request(RequestCode.GET_MAX_OFFSET, place(queue) | {"committed": "false"})
        try:
            master = self._master(queue.topic, queue.broker_name)
            return None if master is None else int(_request(master, command).ext["offset"])
        except SaturnError:
            return None

    def offset_at_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        ext = place(queue) | {"timestamp": str(timestamp_ms)}
        command = Command.request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext)
        answer = self._at(queue.topic, queue.broker_name, partial(_request, command=command))
        return int(answer.ext["offset"])

    def committed(self, group: str, topic: str) -> dict[MessageQueue, int]:
        found = {}
        for queue in self.queues(topic):
            ext = place(queue) | {"consumerGroup": group, "setZeroIfNotFound": "false"}
            command = Command.request(RequestCode.QUERY_CONSUMER_OFFSET, ext)
            try:
                answer = self._at(topic, queue.broker_name, partial(_request, command=command))
            except QueryNotFound:
                continue
            offset = int(answer.ext["offset"])
            if offset >= 0:
                found[queue] = offset
        return found

    def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        commands = []
        for queue, offset in offsets.items():
            ext = place(queue) | {"consumerGroup": group, "commitOffset": str(offset)}
            commands.append(Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, ext))
        places = [(queue.topic, queue.broker_name) for queue in offsets]
        asks = [(self._master(*at), command) for at, command in zip(places, commands, strict=True)]
        for at, command, answer in zip(places, commands, self._at_once(asks), strict=True):
            if answer is None:
                self._at(*at, partial(_request, command=command), only_master=True)

    def cuts(
        self,
        ranges: Sequence[Range],
        max_bytes: int,
        max_rows: int,
        *,
        first_only: bool = False,
    ) -> list[Range]:
        cutting = Cutting(max_bytes, max_rows, first_only)
        by_place: dict[tuple[str, str], list[list[int]]] = {}
        for item in ranges:
            own = by_place.setdefault((item.topic, item.broker), [])
            own.append([item.queue_id, item.start, item.end])
        asks = []
        for at, own in by_place.items():
            master = self._master(*at) if len(ranges) <= TOGETHER_RANGES else None
            asks.append((master, cutting.request(at[0], own)))
        pieces: list[Range] = []
        first = self._at_once(asks)
        for ((topic, broker), own), answer in zip(by_place.items(), first, strict=True):
            told = {"pieces": [], "rest": own} if answer is None else document(broker, answer)
            found, rest = told["pieces"], told["rest"]
            for begin in range(0, len(rest), RANGES):
                part = rest[begin : begin + RANGES]
                ask = partial(self._cuts_at, topic=topic, ranges=part, cutting=cutting)
                try:
                    found += self._at(topic, broker, ask)
                except TopicNotExist:  # deleted since it was planned: its reader tells
                    found += cutting.guessed(part)
            pieces += [Range(topic, broker, *piece) for piece in found]
        return pieces

    def _cuts_at(
        self, address: str, topic: str, ranges: list[list[int]], cutting: Cutting
    ) -> list[list[int]]:
        pieces: list[list[int]] = []
        rest = ranges
        while rest and address not in self._java:
            try:
                told = document(address, _request(address, cutting.request(topic, rest)))
            except UnsupportedRequest:
                self._java.add(address)
                break
            pieces += told["pieces"]
            rest = told["rest"]
        return pieces + cutting.guessed(rest)

    # -- messages --------------------------------------------------------------------------------

    def batches(self, pieces: Iterable[Range], decoding: Decoding) -> Iterator[Any]:
        """See `Access`; a generator that was not read to its end closes its connections."""
        decoder_for = cache(partial(decoder, decoding))  # one for each broker
        for group in _together(pieces, self._where.chunk_bytes):
            fetches = [Fetch(piece, decoding, decoder_for) for piece in group]
            with closing(self._first_batches(fetches)) as first:
                for fetch, begun in zip(fetches, first, strict=True):
                    yield from begun
                    yield from self._rest(fetch)

    def _first_batches(self, fetches: Sequence[Fetch]) -> Generator[Iterable[Any]]:
        """The first answers to requests for several ranges at once. Nothing where an answer
        is none: who reads the rest meets the reason."""
        if len(fetches) == 1:  # its next chunk is asked for while the first is decoded
            yield ()
            return
        chunk_bytes, group = self._where.chunk_bytes, self._where.group or PULL_GROUP
        asks = [
            (self._first_replica(fetch.piece), fetch.request(False, chunk_bytes, group))
            for fetch in fetches
        ]
        with closing(self._at_once(asks, PULL_CODES)) as answers:
            for fetch, (address, _), answer in zip(fetches, asks, answers, strict=True):
                yield fetch.begin(answer, address) if address and answer else ()

    def _rest(self, fetch: Fetch) -> Iterator[Any]:
        """The unread rest, from any replica that has it."""
        patience = Patience(self._where, fetch.piece)
        place_of = fetch.piece.topic, fetch.piece.broker
        while fetch.offset < fetch.end:
            before = fetch.offset
            try:
                address, fetch.is_last = self._next_replica(fetch.piece, patience)
                yield from self._read_from(address, fetch)
            except UnsupportedRequest:
                self._java.add(address)
            except Elsewhere as lagging:
                patience.failed(address, str(lagging), lags=True)
            except Lagging:
                end = self.end_in_log(fetch.piece.queue)
                if end is None or end > fetch.offset:
                    raise
                fetch.lose_rest(cut_off(end))
            except SaturnError as error:
                if isinstance(error, InvalidParameter) and self._is_withdrawn(fetch.piece):
                    fetch.lose_rest(WITHDRAWN)
                elif not error.retriable:
                    raise
                if isinstance(error, TopicNotExist) and address == self._master(*place_of):
                    fetch.lose_rest("their topic is deleted")
                patience.failed(address, str(error), lags=False)
            if fetch.offset > before:
                patience.progressed()
        fetch.tally.check()

    def _is_withdrawn(self, piece: Range) -> bool:
        """Whether the topic has fewer read queues on the broker now."""
        route = self._route(piece.topic, refresh=True)
        return any(
            data.broker_name == piece.broker and piece.queue_id >= data.read_queues
            for data in (route.queues if route else ())
        )

    def _next_replica(self, piece: Range, patience: Patience) -> tuple[str, bool]:
        """The replica to ask now, and whether all others were asked."""
        while True:
            refresh = bool(patience.problems)
            try:
                replicas = self._replicas(piece.topic, piece.broker, refresh=refresh)
            except NameserversUnreachable as error:
                patience.failed("the nameservers", str(error), lags=False)
                replicas = []
            untried = [address for address in replicas if address not in patience.tried]
            if untried:
                patience.tried.add(untried[0])
                return untried[0], len(untried) == 1
            if not replicas:
                patience.failed(piece.broker, "no route names it", lags=False)
            patience.pause()

    def _read_from(self, address: str, fetch: Fetch) -> Iterator[Any]:
        """Read on at one replica until all is read, or it fails, or has no more."""
        java = address in self._java
        timeout_s = min(self._where.timeout_ms / 1000, 30.0)
        chunk_bytes, group = self._where.chunk_bytes, self._where.group or PULL_GROUP
        if java and fetch.unchecked:
            self._check_expression(address, fetch, group)
        channel = channels.take(address)
        idle = False  # nothing is under way on the channel
        try:
            channel.ask(fetch.request(java, chunk_bytes, group), timeout_s)
            while True:
                answer = channel.answer()
                idle = True
                if answer.code not in PULL_CODES:
                    error = error_for(answer.code, answer.remark)
                    if isinstance(error, SubscriptionParseFailed):
                        raise _refused(address, fetch, error)
                    raise error
                following = fetch.following(answer)
                body = answer.body
                if following < fetch.end:
                    idle = False
                    channel.ask(fetch.request(java, chunk_bytes, group, following), timeout_s)
                if body:
                    yield from fetch.decoded(body, address, java)
                fetch.offset = following
                if following >= fetch.end:
                    return
        finally:
            if idle:
                channels.give_back(address, channel)
            else:
                channel.close()

    def _check_expression(self, address: str, fetch: Fetch, group: str) -> None:
        """ConfigError if a broker of RocketMQ's cannot filter by the expression."""
        asked = fetch.question(group)
        command = Command.request(RequestCode.CHECK_CLIENT_CONFIG, {}, fastjson.dumps(asked))
        answer = channels.request(address, command, REQUEST_TIMEOUT_S)
        if answer.code != ResponseCode.SUCCESS:
            raise _refused(address, fetch, error_for(answer.code, answer.remark))
        fetch.unchecked = False

    # -- who is asked ----------------------------------------------------------------------------

    def _addresses(self, topic: str, broker: str, *, refresh: bool = False) -> dict[int, str]:
        """The addresses of a broker's replicas, by number, also if no route names it any more: the
        broker knows whether the topic is deleted."""
        route = self._route(topic, refresh=refresh)
        data = None if route is None else route.broker(broker)
        if data is None:
            told = brokers_of(self._nameservers.ask(RequestCode.GET_BROKER_CLUSTER_INFO))
            data = next((each for each in told if each.broker_name == broker), None)
        return {} if data is None else data.addresses

    def _master(self, topic: str, broker: str) -> str | None:
        return self._addresses(topic, broker).get(MASTER_ID)

    def _first_replica(self, piece: Range) -> str | None:
        """The replica to ask first for these messages."""
        try:
            return next(iter(self._replicas(piece.topic, piece.broker)), None)
        except NameserversUnreachable:
            return None

    def _replicas(self, topic: str, broker: str, *, refresh: bool = False) -> list[str]:
        """The addresses of a broker's replicas, the first to be asked first."""
        addresses = self._addresses(topic, broker, refresh=refresh)
        order = sorted(addresses)  # the master has the least id
        if self._where.read_from == ANY:
            random.shuffle(order)
        elif self._where.read_from != MASTER:
            order = [n for n in order if n != MASTER_ID] + [n for n in order if n == MASTER_ID]
        return [addresses[number] for number in order]

    def _at_once(
        self,
        asks: Sequence[tuple[str | None, Command]],
        codes: Collection[int] = (ResponseCode.SUCCESS,),
    ) -> Generator[Command | None]:
        """The answers at these addresses, all asked at once. An answer is None if there is no
        address, if it has another code, or if no broker of ours is there: then ask again, with
        patience."""
        for at in range(0, len(asks), TOGETHER):
            part = [
                (None if address in self._java else address, command)
                for address, command in asks[at : at + TOGETHER]
            ]
            asked = [(address, command) for address, command in part if address is not None]
            with closing(channels.request_all(asked, REQUEST_TIMEOUT_S)) as answers:
                for address, _ in part:
                    answer = None if address is None else next(answers)
                    if isinstance(answer, Command) and answer.code in codes:
                        yield answer
                    else:
                        yield None

    def _at(
        self, topic: str, broker: str, ask: Callable[[str], T], *, only_master: bool = False
    ) -> T:
        """The answer of the first replica that can give one; a few attempts, with fresh routes."""
        problems: dict[str, str] = {}
        for attempt in range(self._where.retries + 1):
            if attempt:
                time.sleep(self._where.retry_interval_ms / 1000)
            try:
                addresses = self._addresses(topic, broker, refresh=attempt > 0)
            except NameserversUnreachable as error:
                problems["the nameservers"] = str(error)
                continue
            for number in sorted(addresses):
                if only_master and number != MASTER_ID:
                    continue
                try:
                    return ask(addresses[number])
                except SaturnError as error:
                    deleted = isinstance(error, TopicNotExist) and number == MASTER_ID
                    if deleted or not error.retriable:
                        raise
                    problems[addresses[number]] = str(error)
        raise unreachable(f"broker {broker} of topic {topic}", problems)

    def _patiently(self, ask: Callable[[], T]) -> T:
        """The answer of a nameserver; a few attempts while none answers."""
        for _ in range(self._where.retries):
            try:
                return ask()
            except NameserversUnreachable:
                time.sleep(self._where.retry_interval_ms / 1000)
        return ask()

    def _route(self, topic: str, *, refresh: bool = False) -> TopicRoute | None:
        return self._nameservers.route(topic, 0.0 if refresh else ROUTE_AGE_S)


def _together(pieces: Iterable[Range], max_bytes: int) -> Iterator[list[Range]]:
    """Group neighbouring ranges that together weigh no more than that; a heavier range, or one
    without a weight, is alone."""
    group: list[Range] = []
    room = 0
    for piece in pieces:
        weight = piece.bytes or max_bytes
        if group and (weight > room or len(group) == TOGETHER):
            yield group
            group = []
        room = (room if group else max_bytes) - weight
        group.append(piece)
    if group:
        yield group


def _refused(address: str, fetch: Fetch, why: SaturnError) -> ConfigError:
    """The broker does not filter by the expression."""
    return ConfigError(
        f"correct option subExpression, or have broker {address} filter by it "
        f"(enablePropertyFilter=true); it says of {fetch.expression!r}: {why}"
    )


def _request(address: str, command: Command) -> Command:
    """The answer to a request that is carried out; else its error."""
    return success(channels.request(address, command, REQUEST_TIMEOUT_S))
