"""One seed, one simulated cluster: a nameserver, a broker, a producer and a consumer that meet
faults.

python -m saturnmq.drills.sim.run SEED [SEED ...] repeats runs and prints their reports

Everything runs in this thread on virtual time. The seed draws the sizes (tiny segments, so that
files roll all the time), the load and the faults: power losses of the broker at random moments or
inside its n-th disk operation from now (also while it recovers), connections that die, links that
are cut for a while. The broker flushes before it acknowledges, so nothing acknowledged may be
lost (fault-model §2, row sync). After the faults end, everything acknowledged must arrive within
`LIVENESS_S` of virtual time (I12), and `history.py` checks the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from saturnmq.broker.broker import Broker
from saturnmq.broker.config import BrokerConfig
from saturnmq.client.core import ClientCore
from saturnmq.client.producer import Producer
from saturnmq.client.push_consumer import PushConsumer
from saturnmq.client.results import ConsumeResult
from saturnmq.drills.sim.disk import PowerLoss, SimDisk
from saturnmq.drills.sim.history import History, make_body
from saturnmq.drills.sim.loop import SimLoop, SimStuck, TooLong
from saturnmq.drills.sim.network import SimNetwork
from saturnmq.drills.sim.runtime import PoweredOff, SimRuntime
from saturnmq.drills.sim.trace import Trace
from saturnmq.nameserver.server import NameServer
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.message import Message, MessageQueue, ReceivedMessage
from saturnmq.protocol.remoting import Command

TOPIC = "orders"
GROUP = "readers"
ROOT = "/store"
NAMESERVER_IP, BROKER_IP, PRODUCER_IP, CONSUMER_IP = "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"
LIVENESS_S = 120.0
LIMIT_S = 1800.0


@dataclass
class Plan:
    """What a seed draws: sizes, load, faults (swarm testing: each run its own mix)."""

    segment_bytes: int
    queue_entries: int
    queues: int
    messages_per_queue: int
    padding: int
    ordered: bool
    power_losses: int
    process_kills: int
    losses_inside_operations: bool
    connection_kills: int
    partitions: int

    @classmethod
    def draw(cls, rng: random.Random) -> Plan:
        return cls(
            segment_bytes=rng.choice((8 << 10, 16 << 10, 64 << 10)),
            queue_entries=rng.choice((16, 50, 1000)),
            queues=rng.randint(1, 4),
            messages_per_queue=rng.randint(10, 40),
            padding=rng.choice((0, 100, 1000)),
            ordered=rng.random() < 0.5,
            power_losses=rng.choice((1, 1, 2, 3)),
            process_kills=rng.choice((0, 0, 1, 2)),
            losses_inside_operations=rng.random() < 0.5,
            connection_kills=rng.choice((0, 0, 2, 5)),
            partitions=rng.choice((0, 0, 1)),
        )


@dataclass
class Report:
    """What a run did and found; `ok` means no check failed."""

    seed: int
    plan: Plan
    trace_hash: str = ""
    errors: list[str] = field(default_factory=list)
    sent: int = 0
    acked: int = 0
    unknown: int = 0
    rejected: int = 0
    delivered: int = 0
    duplicates: int = 0
    power_losses: int = 0
    process_kills: int = 0
    connection_kills: int = 0
    partitions: int = 0
    pages_kept: int = 0
    pages_dropped: int = 0
    pages_torn: int = 0
    steps: int = 0
    virtual_s: float = 0.0
    last_steps: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.errors

    def __str__(self) -> str:
        numbers = " ".join(f"{name}={getattr(self, name)}" for name in NUMBERS)
        head = f"seed {self.seed}: {'ok' if self.ok else 'FAILED'} {self.virtual_s:.1f} s {numbers}"
        return "\n".join([f"{head} trace={self.trace_hash}", *(f"  {e}" for e in self.errors)])


NUMBERS = (
    *("sent", "acked", "unknown", "rejected", "delivered", "duplicates"),
    *(
        "power_losses",
        "process_kills",
        "connection_kills",
        "partitions",
        "pages_kept",
        "pages_dropped",
        "pages_torn",
        "steps",
    ),
)


class Machine:
    """The broker's machine: its disk outlives the incarnations of its process."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.disk = SimDisk(
            random.Random(f"{cluster.seed}/disk"),
            cluster.trace,
            now_ms=cluster.nameserver.now_ms,
        )
        self.incarnation = 0
        self.runtime = cluster.runtime("broker", BROKER_IP)
        self.off = asyncio.Event()
        self.losses = self.kills = 0

    async def boot(self) -> None:
        """Starts a broker on the disk as the last power loss left it."""
        self.incarnation += 1
        self.off.clear()
        self.disk.power_on()
        self.runtime = self.cluster.runtime("broker", BROKER_IP, self.incarnation)
        broker = Broker(self.cluster.broker_config(), self.runtime, self.disk)
        start = self.runtime.spawn(broker.start(), name="start")
        failed = asyncio.ensure_future(self.off.wait())
        await asyncio.wait((start, failed), return_when=asyncio.FIRST_COMPLETED)
        failed.cancel()
        if start.done() and not start.cancelled() and not self.off.is_set():
            start.result()

    def lose_power(self) -> None:
        """Now, between two instructions."""
        if self.off.is_set():
            return
        self.losses += 1
        self.disk.step = None
        silence = self.cluster.rng.choice((0.0, 0.01, 1.0))
        self.runtime.power_off(reset_peers_after=silence)
        self.disk.power_off()
        self.off.set()

    def kill_process(self) -> None:
        """`kill -9`: the page cache lives on, the next incarnation finds unflushed bytes."""
        if self.off.is_set():
            return
        self.kills += 1
        self.disk.step = None
        self.runtime.power_off(reset_peers_after=0.0)
        self.disk.kill()
        self.off.set()

    def lose_power_inside(self, operations: int) -> None:
        """In the n-th disk operation from now, at its boundary."""
        left = operations

        def step(operation: str, path: str) -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                self.lose_power()
                raise PowerLoss(f"power lost before {operation} {path}")

        self.disk.step = step


class Cluster:
    """The nodes of one run and what it recorded."""

    def __init__(self, seed: int, loop: SimLoop) -> None:
        self.seed = seed
        self.loop = loop
        self.trace = loop.trace
        self.rng = random.Random(f"{seed}/faults")
        self.plan = Plan.draw(self.rng)
        self.network = SimNetwork(loop, seed, tiny_chunks=self.rng.choice((0.0, 0.05, 0.3)))
        self.history = History()
        self.nodes: list[SimRuntime] = []
        self.nameserver = self.runtime("nameserver", NAMESERVER_IP)
        self.machine = Machine(self)
        self.nameservers = [f"{NAMESERVER_IP}:9876"]
        self.kills = self.cuts = 0

    def runtime(self, name: str, ip: str, incarnation: int = 0) -> SimRuntime:
        offset = random.Random(f"{self.seed}/{name}/clock").randint(-2000, 2000)
        seed = f"{self.seed}/{incarnation}"
        node = SimRuntime(self.loop, self.network, seed, name, ip, wall_offset_ms=offset)
        self.nodes.append(node)
        return node

    def broker_config(self) -> BrokerConfig:
        return BrokerConfig(
            broker_name="broker-a",
            host=BROKER_IP,
            port=10911,
            ha_port=10912,
            nameservers=tuple(self.nameservers),
            root=ROOT,
            flush_disk_type="SYNC_FLUSH",
            default_topic_queues=self.plan.queues,
            max_message_bytes=4096,
            store_options={
                "commitlog_segment_bytes": self.plan.segment_bytes,
                "consumequeue_segment_bytes": 20 * self.plan.queue_entries,
                "index_slots": 64,
                "index_items": 200,
                "zero_ahead_bytes": 8 << 10,
            },
        )

    # -- the run --------------------------------------------------------------------------------

    async def run(self) -> None:
        server = NameServer(self.nameserver, NAMESERVER_IP, 9876)
        await server.start()
        await self.machine.boot()
        producing = self.runtime("producer", PRODUCER_IP)
        consuming = self.runtime("consumer", CONSUMER_IP)
        consumer = self.make_consumer(consuming)
        producer = Producer(group="senders", nameservers=self.nameservers, runtime=producing)
        await producer.start()
        await self.create_topic(producer.core)
        lanes = [
            producing.spawn(self.send_lane(producer, producing, queue), name=f"lane-{queue}")
            for queue in range(self.plan.queues)
        ]
        await consumer.start()
        faults = asyncio.create_task(self.break_things())
        await asyncio.gather(*lanes)
        await faults
        await self.until_all_arrived()
        await consumer.close()
        await producer.close()

    async def create_topic(self, core: ClientCore) -> None:
        queues = str(self.plan.queues)
        ext = {"topic": TOPIC, "readQueueNums": queues, "writeQueueNums": queues, "perm": "6"}
        ext |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"}
        request = Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, {**ext, "order": "false"})
        await core.invoke(f"{BROKER_IP}:10911", request)
        for _ in range(100):
            with contextlib.suppress(SaturnError):
                await core.route(TOPIC, refresh=True)
                break
            await asyncio.sleep(0.1)

    def make_consumer(self, runtime: SimRuntime) -> PushConsumer:
        async def listener(messages: Sequence[ReceivedMessage]) -> ConsumeResult:
            for message in messages:
                queue, offset = message.queue_id, message.queue_offset
                body = bytes(message.body)
                self.trace.note("deliver", f"{queue}:{offset}", body)
                self.history.deliver(queue, offset, body)
            return ConsumeResult.SUCCESS

        consumer = PushConsumer(
            GROUP,
            self.nameservers,
            runtime=runtime,
            listener=listener,
            orderly=self.plan.ordered,
            from_beginning=True,
        )
        consumer.subscribe(TOPIC, "*")
        return consumer

    async def send_lane(self, producer: Producer, runtime: SimRuntime, lane: int) -> None:
        """One sender, one queue, one message after the other; a message is tried until it is
        acked.
        """
        history = self.history
        for counter in range(self.plan.messages_per_queue):
            attempt = 0
            while True:
                value = f"{lane}/{counter}.{attempt}"
                history.invoked[value] = lane
                message = Message(TOPIC, make_body(value, self.plan.padding), keys=value)
                try:
                    result = await producer.send(
                        message, queue=MessageQueue(TOPIC, "broker-a", lane)
                    )
                except SaturnError as error:
                    if error.outcome == "rejected":
                        history.rejected[value] = repr(error)
                    else:
                        history.unknown[value] = repr(error)
                    self.trace.note("send.failed", f"{value} {type(error).__name__}")
                else:
                    self.trace.note(
                        "send", f"{value} {result.queue.queue_id}:{result.queue_offset}"
                    )
                    if result.ok:
                        history.acked[value] = (result.queue.queue_id, result.queue_offset)
                        break
                    history.unknown[value] = result.status.name
                attempt += 1
                await runtime.sleep(0.2)
            await runtime.sleep(runtime.random.uniform(0.0, 0.1))

    async def break_things(self) -> None:
        """The seeded schedule; ends when the last fault is healed and the broker is up again."""
        rng, plan = self.rng, self.plan
        faults: list[Callable[[], Coroutine[Any, Any, None]]] = [
            *[self.lose_power] * plan.power_losses,
            *[self.kill_broker] * plan.process_kills,
            *[self.kill_connections] * plan.connection_kills,
            *[self.cut_links] * plan.partitions,
        ]
        rng.shuffle(faults)
        for fault in faults:
            await asyncio.sleep(rng.uniform(0.01, 1.5))
            await fault()
        self.machine.disk.step = None
        self.network.heal()

    async def lose_power(self) -> None:
        machine, rng = self.machine, self.rng
        if self.plan.losses_inside_operations:
            machine.lose_power_inside(rng.randint(1, 40))
            try:
                async with asyncio.timeout(2.0):
                    await machine.off.wait()
            except TimeoutError:
                machine.lose_power()
        else:
            machine.lose_power()
        await self.recover()

    async def kill_broker(self) -> None:
        self.machine.kill_process()
        await self.recover()

    async def recover(self) -> None:
        """Boots the broker's machine until it stays up."""
        machine, rng = self.machine, self.rng
        for _ in range(10):
            await machine.runtime.settle()
            await asyncio.sleep(rng.uniform(0.0, 2.0))
            if self.plan.losses_inside_operations and rng.random() < 0.3:
                machine.lose_power_inside(rng.randint(1, 60))  # while it recovers
            await machine.boot()
            if not machine.off.is_set():
                return
        raise RuntimeError(
            "ten recoveries in a row were cut; the seed's luck is too bad to be true"
        )

    async def kill_connections(self) -> None:
        for node in ("producer", "consumer"):
            for transport in self.network.connections(node, "broker"):
                if self.rng.random() < 0.7:
                    self.kills += 1
                    self.network.kill(transport)

    async def cut_links(self) -> None:
        self.cuts += 1
        a, b = self.rng.choice((("producer", "broker"), ("consumer", "broker")))
        self.network.partition([a], [b])
        if self.rng.random() < 0.7:
            self.network.partition([b], [a])
        await asyncio.sleep(self.rng.uniform(0.1, 5.0))
        self.network.heal()

    async def until_all_arrived(self) -> None:
        deadline = self.loop.time() + LIVENESS_S
        while self.loop.time() < deadline:
            if not self.history.outstanding:
                return
            await asyncio.sleep(0.1)

    # -- the verdict ----------------------------------------------------------------------------

    def report(self, crash: BaseException | None) -> Report:
        history, disk = self.history, self.machine.disk
        report = Report(
            self.seed,
            self.plan,
            trace_hash=self.trace.hexdigest(),
            sent=len(history.invoked),
            acked=len(history.acked),
            unknown=len(history.unknown),
            rejected=len(history.rejected),
            delivered=len(history.delivered),
            duplicates=history.duplicates,
            power_losses=self.machine.losses,
            process_kills=self.machine.kills,
            connection_kills=self.kills,
            partitions=self.cuts,
            pages_kept=disk.fates.kept,
            pages_dropped=disk.fates.dropped,
            pages_torn=disk.fates.torn,
            steps=self.trace.steps,
            virtual_s=self.loop.time(),
        )
        if crash is not None:
            report.errors.append(f"the run did not end: {crash!r}")
        report.errors += history.check(self.plan.ordered)
        for node in self.nodes:
            report.errors += [f"a task died: {death}" for death in node.deaths]
        report.errors += self.loop.failures
        report.last_steps = list(self.trace.lines)
        return report


def simulate(seed: int) -> Report:
    """Runs one seed to its end and checks it. Equal seeds give equal reports, trace hash
    included.
    """
    loop = SimLoop(random.Random(f"{seed}/loop"), Trace(), limit_s=LIMIT_S)
    loop.ignored_failures = (PowerLoss, PoweredOff)
    # A collection at a moment of its own choosing would close coroutines in the middle of a run.
    collecting = gc.isenabled()
    gc.disable()
    crash: BaseException | None = None
    try:
        asyncio.set_event_loop(loop)
        cluster = Cluster(seed, loop)
        try:
            loop.run_until_complete(cluster.run())
        except (Exception, SimStuck, TooLong, PowerLoss) as error:
            crash = error
        report = cluster.report(crash)
        for node in cluster.nodes:
            node.power_off()
        loop.run_until_complete(asyncio.sleep(0))
        return report
    finally:
        asyncio.set_event_loop(None)
        loop.close()
        if collecting:
            gc.enable()


def main(arguments: Sequence[str]) -> int:
    """Prints each seed's report, and the last steps of those that fail."""
    failed = 0
    for argument in arguments:
        report = simulate(int(argument))
        print(report)
        if not report.ok:
            failed += 1
            print("\n".join(report.last_steps[-40:]))
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
