"""`saturnmq demo`: the main job. A year of departures through a cluster whose nodes are killed
meanwhile.

Two nameservers, two masters, each with a slave that acknowledges every send (sync replication). One
producer sends every departure; one group consumes all, another only those of JFK and LGA. Halfway
one master is killed with SIGKILL, later one nameserver, later that master comes back. The end is a
table that counts what was promised against what arrived; exit status 1 if anything was lost or came
out of order.

Order: the departures of one aircraft share a sharding key, so they lie in one queue, and the next
one is sent when the one before is acknowledged. While the broker of their queue is down they wait
for it; departures without a tail number go wherever a broker is healthy.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from saturnmq.cli import flights
from saturnmq.cli.launcher import LocalCluster, Settings
from saturnmq.cli.output import AsJson, emit, table
from saturnmq.cli.tally import Delays, GroupTally, Sends

TOPIC = "flight-departures"
EVERYTHING = "departures-all"
TWO_AIRPORTS = "departures-jfk-lga"
NUMBER = "n"  # property: the departure's place in the file
WITHOUT_TAIL = 2_000  # sends without a tail number under way at most
DRAIN_TIMEOUT_S = 120.0
STALL_TIMEOUT_S = 60.0
RETRY_PAUSE_S = 0.2
# Files are allocated in full: with RocketMQ's sizes four brokers would take 6 GB to hold 0.3.
SMALL_FILES = {
    "mappedFileSizeCommitLog": 64 << 20,
    "maxHashSlotNum": 500_000,
    "maxIndexNum": 2_000_000,
}


def demo(
    file: Annotated[
        Path | None, typer.Option("--flights", help="The CSV, instead of fetching it.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="Keep the cluster's files there.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run the main job: real data, real processes, real kills."""

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    try:
        departures = flights.read(file or flights.fetch(say))
    except flights.FlightsUnavailable as problem:
        print(f"saturnmq: {problem}", file=sys.stderr)
        raise typer.Exit(1) from problem
    home = data or Path(tempfile.mkdtemp(prefix="saturnmq-demo-"))
    settings = Settings(
        nameservers=2, masters=2, slaves=1, replication="sync", broker_options=SMALL_FILES
    )
    say("starting 2 nameservers, 2 masters and 2 slaves with sync replication")
    try:
        cluster = LocalCluster.up(home, settings)
        try:
            job = Job(cluster, departures, say)
            _run(job.run)
        finally:
            cluster.down()
    finally:
        if data is None:
            shutil.rmtree(home, ignore_errors=True)
    report = job.report()
    if as_json:
        emit(report)
    else:
        _print(report, job.delays)
    if not report["ok"]:
        raise typer.Exit(1)


def _run(main: Callable[[], Any]) -> None:
    from saturnmq.runtime import native

    async def with_runtime(_runtime: Any) -> None:
        await main()

    native.run(with_runtime)


class Job:
    """One run. Everything happens on one event loop, so the counting needs no locks."""

    def __init__(
        self,
        cluster: LocalCluster,
        departures: list[flights.Departure],
        say: Callable[[str], None],
    ) -> None:
        self.cluster = cluster
        self.departures = departures
        self.say = say
        total = len(departures)
        self.sends = Sends(total)
        self.everything = GroupTally(EVERYTHING, None, total)
        self.two = GroupTally(TWO_AIRPORTS, frozenset({"JFK", "LGA"}), total)
        self.delays = Delays()
        self.events: list[tuple[float, str]] = []
        self.started = self.sent_by = self.consumed_by = 0.0
        self.problems: Counter[str] = Counter()
        self._waiting: dict[str, deque[int]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # -- the run --------------------------------------------------------------------------------

    async def run(self) -> None:
        from saturnmq import aio

        nameservers = self.cluster.nameservers
        async with aio.Admin(nameservers=nameservers) as admin:
            await admin.create_topic(TOPIC, queues=8)
        producer = aio.Producer(nameservers=nameservers, group="departures")
        consumers = [
            self._consumer(aio, nameservers, self.everything, "*"),
            self._consumer(aio, nameservers, self.two, "JFK || LGA"),
        ]
        await producer.start()
        for consumer in consumers:
            await consumer.start()
        self.started = time.monotonic()
        watchers = [
            asyncio.create_task(self._break_things()),
            asyncio.create_task(self._show_progress()),
        ]
        try:
            await self._send_with_deadline(producer)
            self.sent_by = time.monotonic()
            await watchers[0]
            await self._await_consumers()
            self.consumed_by = time.monotonic()
        finally:
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)
            for client in (*consumers, producer):
                await client.close()

    def _consumer(self, aio: Any, nameservers: list[str], group: GroupTally, tags: str) -> Any:
        from saturnmq import ConsumeResult

        everything = group is self.everything

        async def listener(messages: Any) -> ConsumeResult:
            now = time.monotonic()
            for message in messages:
                number = int(message.properties[NUMBER])
                departure = self.departures[number]
                if bytes(message.body) != departure.line:
                    raise RuntimeError(f"departure {number} came back with another body")
                if group.delivered(number, departure, now) and everything:
                    self.delays.add(departure)
            return ConsumeResult.SUCCESS

        consumer = aio.PushConsumer(
            group.name,
            nameservers=nameservers,
            listener=listener,
            ordered=True,
            consume_from="first",
            consume_message_batch_max_size=256,
            rebalance_interval_s=2.0,
        )
        consumer.subscribe(TOPIC, tags)
        return consumer

    # -- sending --------------------------------------------------------------------------------

    async def _send_with_deadline(self, producer: Any) -> None:
        """Give up when nothing at all was acknowledged for a while: the table then says so."""
        sending = asyncio.create_task(self._send_all(producer))
        moved, before = time.monotonic(), -1
        while not sending.done():
            await asyncio.wait({sending}, timeout=0.05)
            if self.sends.acknowledged != before:
                moved, before = time.monotonic(), self.sends.acknowledged
            elif time.monotonic() - moved > STALL_TIMEOUT_S:
                sending.cancel()
                for task in tuple(self._tasks):
                    task.cancel()
                await asyncio.gather(sending, *self._tasks, return_exceptions=True)
                self.say(f"gave up: no acknowledgement for {STALL_TIMEOUT_S:.0f} s")
                for text, count in self.problems.most_common(5):
                    self.say(f"  {count} times {text}")
                return
        await sending

    async def _send_all(self, producer: Any) -> None:
        room = asyncio.Semaphore(WITHOUT_TAIL)
        tasks = self._tasks

        def begin(coroutine: Any) -> None:
            task = asyncio.create_task(coroutine)
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        for number, departure in enumerate(self.departures):
            if departure.tail is None:
                await room.acquire()
                begin(self._send_one(producer, number, room))
            elif (line := self._waiting.get(departure.tail)) is not None:
                line.append(number)
            else:
                self._waiting[departure.tail] = deque([number])
                begin(self._send_aircraft(producer, departure.tail))
            if number % 512 == 0:
                await asyncio.sleep(0)
        while tasks:
            await asyncio.gather(*tuple(tasks))

    async def _send_aircraft(self, producer: Any, tail: str) -> None:
        line = self._waiting[tail]
        while line:
            await self._send(producer, line[0])
            line.popleft()
        del self._waiting[tail]

    async def _send_one(self, producer: Any, number: int, room: asyncio.Semaphore) -> None:
        try:
            await self._send(producer, number)
        finally:
            room.release()

    async def _send(self, producer: Any, number: int) -> None:
        """Send until acknowledged. A send whose outcome is unknown is sent again: at least once."""
        from saturnmq import Message, SaturnError

        departure = self.departures[number]
        while True:
            message = Message(
                TOPIC,
                departure.line,
                tag=departure.origin,
                keys=departure.key,
                sharding_key=departure.tail,
                properties={NUMBER: str(number)},
            )
            try:
                result = await producer.send(message)
            except SaturnError as problem:
                self.sends.retried += 1
                self.problems[f"{type(problem).__name__}: {problem}"[:200]] += 1
            else:
                if result.ok:
                    self.sends.acknowledge(number, time.monotonic())
                    return
                self.sends.retried += 1
                self.problems[result.status.value] += 1
            await asyncio.sleep(RETRY_PAUSE_S)

    # -- breaking -------------------------------------------------------------------------------

    async def _break_things(self) -> None:
        """The schedule: by share of acknowledged departures, and in time if that stands still."""
        victim = "master-1"
        await self._until(0.50)
        await self._do(f"kill -9 {victim}", lambda: self.cluster.kill(victim))
        await self._until(0.60, at_most_s=4.0)
        await self._do("kill -9 nameserver-0", lambda: self.cluster.kill("nameserver-0"))
        await self._until(0.70, at_most_s=4.0)
        await asyncio.sleep(2.0)  # long enough for everybody to have noticed
        await self._do(f"restart {victim}", lambda: self.cluster.restart(victim))

    async def _until(self, share: float, at_most_s: float = 600.0) -> None:
        deadline = time.monotonic() + at_most_s
        wanted = share * len(self.departures)
        while self.sends.acknowledged < wanted and time.monotonic() < deadline:
            await asyncio.sleep(0.01)

    async def _do(self, text: str, action: Callable[[], Any]) -> None:
        self.events.append((time.monotonic() - self.started, text))
        self._say_event(text)
        await asyncio.to_thread(action)

    async def _await_consumers(self) -> None:
        wanted = [
            (group, sum(group.wants(departure) for departure in self.departures))
            for group in (self.everything, self.two)
        ]
        deadline = time.monotonic() + DRAIN_TIMEOUT_S
        while time.monotonic() < deadline:
            if all(group.consumed >= count for group, count in wanted):
                return
            await asyncio.sleep(0.05)
        self.say(f"gave up waiting for the consumers after {DRAIN_TIMEOUT_S:.0f} s")

    async def _show_progress(self) -> None:
        from saturnmq.cli.output import progress_bar

        total = len(self.departures)
        two_total = sum(map(self.two.wants, self.departures))
        with progress_bar() as bar:
            rows: list[tuple[Any, Callable[[], int]]] = [
                (bar.add_task("acknowledged      ", total=total), lambda: self.sends.acknowledged),
                (bar.add_task("consumed          ", total=total), lambda: self.everything.consumed),
                (bar.add_task("consumed JFK, LGA ", total=two_total), lambda: self.two.consumed),
            ]
            tenths = 0
            while True:
                for task, count in rows:
                    bar.update(task, completed=count())
                if bar.disable and self.sends.acknowledged * 10 // total > tenths:  # no terminal
                    tenths = self.sends.acknowledged * 10 // total
                    self._say_event(f"{tenths * 10:3} % acknowledged, {self._consumed()}")
                await asyncio.sleep(0.2)

    def _consumed(self) -> str:
        return f"consumed {self.everything.consumed:,} and {self.two.consumed:,}"

    def _say_event(self, text: str) -> None:
        self.say(f"  {time.monotonic() - self.started:6.1f} s  {text}")

    # -- the end --------------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        total = len(self.departures)
        groups: list[dict[str, Any]] = []
        for group in (self.everything, self.two):
            groups.append(
                {
                    "group": group.name,
                    "wanted": sum(map(group.wants, self.departures)),
                    "consumed": group.consumed,
                    "lost": group.lost(self.departures, self.sends.acked),
                    "duplicates": group.duplicates,
                    "out_of_order": group.disorder,
                    "not_asked_for": group.foreign,
                    "longest_gap_s": round(group.gap.longest, 3),
                }
            )
        send_s = max(self.sent_by - self.started, 1e-9)
        consume_s = max(self.consumed_by - self.started, 1e-9)
        ok = self.sends.acknowledged == total and all(
            row["lost"] == row["out_of_order"] == row["not_asked_for"] == 0
            and row["consumed"] == row["wanted"]
            for row in groups
        )
        return {
            "ok": ok,
            "sent": total,
            "acknowledged": self.sends.acknowledged,
            "sent_again": self.sends.retried,
            "longest_send_gap_s": round(self.sends.gap.longest, 3),
            "sends_per_s": round(total / send_s),
            "consumed_per_s": round(sum(row["consumed"] for row in groups) / consume_s),
            "seconds": round(consume_s, 1),
            "groups": groups,
            "events": [{"at_s": round(at, 1), "event": text} for at, text in self.events],
            "delays": [{"hour": hour, **means} for hour, means in self.delays.rows()],
        }


def _print(report: dict[str, Any], delays: Delays) -> None:
    everything, two = report["groups"]
    rows: list[tuple[str, Any, Any]] = [
        ("sent", report["sent"], ""),
        ("acknowledged", report["acknowledged"], ""),
        ("sent again", report["sent_again"], ""),
        ("consumed", everything["consumed"], two["consumed"]),
        ("lost", everything["lost"], two["lost"]),
        ("duplicates", everything["duplicates"], two["duplicates"]),
        ("out of order, per aircraft", everything["out_of_order"], two["out_of_order"]),
        ("longest gap in sends, s", report["longest_send_gap_s"], ""),
        ("longest gap in consumption, s", everything["longest_gap_s"], two["longest_gap_s"]),
        ("sends a second", report["sends_per_s"], ""),
        ("consumed a second, both groups", report["consumed_per_s"], ""),
        ("seconds, outages included", report["seconds"], ""),
    ]
    table("the main job", ["", "all", "JFK, LGA"], rows)
    origins = delays.origins()
    table(
        "mean departure delay in minutes, by scheduled hour",
        ["hour", *origins],
        [(hour, *(means[origin] for origin in origins)) for hour, means in delays.rows()],
    )
    print("nothing lost, nothing out of order" if report["ok"] else "FAILED: see the table")
