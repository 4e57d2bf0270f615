"""One seed, one simulated cluster: nameservers, broker groups, clients and an operator that meet
faults.

Everything runs in this thread on virtual time. While faults go on nothing is asked but safety;
then all is healed, and within `LIVENESS_S` every sender must have got its messages acknowledged,
every consumer group must have all of them, and every slave the log of its master (I12).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import Sequence
from functools import partial

from saturnmq.broker.config import BrokerConfig
from saturnmq.broker.replication.election import Campaign
from saturnmq.broker.replication.elector import Ballot
from saturnmq.client.admin.promotion import check_elected, promote_elected
from saturnmq.drills.sim import aftermath, encores
from saturnmq.drills.sim.allowance import Allowance
from saturnmq.drills.sim.etcd import ETCD, EtcdStore, SimEtcd
from saturnmq.drills.sim.faults import Faults, Operator, PromotionOrder
from saturnmq.drills.sim.history import LATER, Place, SimHistory, make_body
from saturnmq.drills.sim.load import BOOKKEEPER, READERS, Bookkeeper, GroupReader, Senders
from saturnmq.drills.sim.loop import SimLoop, TooLong
from saturnmq.drills.sim.network import SimNetwork
from saturnmq.drills.sim.nodes import SimBroker, SimNameServer, World
from saturnmq.drills.sim.plan import (
    BROKER_PORT,
    LIVENESS_S,
    MESSAGE_BYTES_MAX,
    ROOT,
    TOPIC,
    TRANSACTION_CHECK_S,
    TRANSACTION_CHECKS,
    TRANSACTION_TIMEOUT_S,
    SimPlan,
)
from saturnmq.drills.sim.report import SimReport
from saturnmq.drills.sim.scenes import SCENES
from saturnmq.drills.sim.staging import Sinks
from saturnmq.drills.sim.verdict import Evidence, Verdict, told
from saturnmq.nameserver.claims import HOLD_MS
from saturnmq.protocol.ids import decode_message_id
from saturnmq.protocol.message_types import MIXED
from saturnmq.protocol.signing import Signing
from saturnmq.runtime.errors import SaturnError

LOCK_S = 65.0
LATER_S = 20.0  # the delay of what a listener sends back, and some
SAMPLE_S = 0.25
REFUSED_S = 5.0  # an etcd that was restored is refused so long after the faults, at the latest
STEPS_MAX = 4_000  # in one sample, BUSY_SAMPLES in a row; usual are some hundreds
BUSY_SAMPLES = 8
BYTES_PER_STEP = 16  # by which logs grow: a slave may copy a long one in tiny transfers
LOOK_EVERY = 4


class SimCluster:
    """The nodes of one run and what it recorded."""

    def __init__(self, seed: int, loop: SimLoop, plan: SimPlan) -> None:
        self.seed, self.loop, self.plan = seed, loop, plan
        self.trace = loop.trace
        network = SimNetwork(loop, seed, tiny_chunks=plan.tiny_chunks)
        self.world = World(seed, loop, network, plan)
        self.history = SimHistory()
        self.calm = self._over = False  # the faults are over; the nodes are being stopped
        self._known_at = 0.0  # every nameserver knows this cluster's brokers, every client a route
        self.quiet_s = 0.0
        self.states: Counter[str] = Counter()
        self.stored: dict[Place, str] = {}
        self.problems = self.world.problems
        self.lost = self._looks = 0
        self.groups = [f"broker-{'ab'[n]}" for n in range(plan.groups)]
        self.etcd = EtcdStore(loop) if plan.lease_s else None
        self._doors: dict[str, SimEtcd] = {}  # of the process of each node, to that
        self.nameservers = [SimNameServer(self.world, n) for n in range(plan.nameservers)]
        self.brokers = [
            SimBroker(self.world, group, number, self._broker_config, ballot=self._ballot)
            for group in self.groups
            for number in range(1 + plan.slaves)
        ]
        self.strangers: list[SimBroker] = []  # brokers that do not belong here
        # When each group's nodes were seen to have all of its log.
        self.healed = {group: [0.0] for group in self.groups}
        self._helped: list[tuple[str, float]] = []
        self.readers: list[GroupReader] = []
        for group in READERS:
            self.history.reader(group)
            self.readers += [GroupReader(self, group, n) for n in range(plan.consumers)]
        self.senders = Senders(self)
        self.sinks = Sinks(self)
        self.bookkeeper = Bookkeeper(self)
        self.operator = Operator(self)
        self.scenes = [
            scene(self, number)
            for number, (name, scene) in enumerate(SCENES.items())
            if name in plan.scenes
        ]
        self.allowance = Allowance(
            plan,
            self.brokers,
            self.operator.promotions,
            self.nameservers,
            self.healed,
            self._helped,
        )
        self.faults = Faults(self)

    def nodes_of(self, group: str) -> list[SimBroker]:
        return [node for node in self.brokers if node.group == group]

    def client_names(self) -> list[str]:
        return [
            *(reader.name for reader in self.readers),
            self.senders.name,
            self.sinks.name,
            self.bookkeeper.name,
            self.operator.name,
            *(name for scene in self.scenes for name in scene.client_names()),
        ]

    def names(self) -> list[str]:
        nameservers = [node.name for node in self.nameservers]
        brokers = [node.name for node in self.brokers]
        return [*nameservers, *brokers, *([ETCD] if self.etcd else []), *self.client_names()]

    def name_of(self, message_id: str) -> str:
        """The broker that gave this id."""
        host, _, _ = decode_message_id(message_id)
        return self.name_at(host)

    def name_at(self, ip: str) -> str:
        """The broker of that address: a client may meet one of elsewhere."""
        return next(node.name for node in [*self.brokers, *self.strangers] if node.ip == ip)

    def _ballot(self, node: SimBroker) -> Ballot | None:
        """The tools of a node for elections, if there is an etcd."""
        if self.etcd is None:
            return None
        door = self._doors[node.name] = SimEtcd(self.etcd, node.runtime)
        return Ballot(door, partial(self._elected, node), partial(self._electable, node))

    async def _elected(
        self, node: SimBroker, group: str, me: str, others: list[str], campaign: Campaign
    ) -> None:
        # No election is unclean here: none may lose what an operator's force may.
        order = PromotionOrder(node, False, self.loop.time(), math.inf)
        self.operator.promotions.append(order)
        try:
            epoch, force, asks = campaign.epoch, campaign.force, campaign.asks
            await promote_elected(
                node.runtime,
                group,
                me,
                others,
                epoch=epoch,
                force=force,
                asks=asks,
                signing=Signing(self.plan.secret),
            )
            self.operator.done += 1
        finally:
            order.ended = self.loop.time()

    async def _electable(
        self, node: SimBroker, group: str, me: str, others: list[str], force: bool
    ) -> None:
        signing = Signing(self.plan.secret)
        await check_elected(node.runtime, group, me, others, force=force, signing=signing)

    def _broker_config(self, node: SimBroker) -> BrokerConfig:
        return self.config_of(node, self.nameservers)

    def config_of(
        self, node: SimBroker, nameservers: Sequence[SimNameServer], ha_address: str = ""
    ) -> BrokerConfig:
        """The configuration of a node with these nameservers; a slave may get its master's HA
        address."""
        plan, broker_id = self.plan, node.id_in_file
        role = "SLAVE" if broker_id else "SYNC_MASTER" if plan.copies > 1 else "ASYNC_MASTER"
        return BrokerConfig(
            broker_name=node.group,
            broker_id=broker_id,
            role=role,
            in_sync_replicas=plan.copies if plan.copies > 1 and not broker_id else 0,
            host=node.ip,
            port=BROKER_PORT,
            ha_port=BROKER_PORT + 1,
            ha_master_address=ha_address,
            nameservers=tuple(nameserver.address for nameserver in nameservers),
            root=ROOT,
            flush_disk_type="SYNC_FLUSH" if plan.sync_flush else "ASYNC_FLUSH",
            flush_interval_ms=int(plan.flush_s * 1000),
            ha_transfer_bytes=plan.transfer_bytes,
            ha_heartbeat_ms=int(plan.heartbeat_s * 1000),
            ha_reconnect_ms=int(plan.reconnect_s * 1000),
            slave_sync_ms=int(plan.tables_s * 1000),
            flush_offsets_ms=int(plan.offsets_s * 1000),
            register_ms=int(plan.register_s * 1000),
            etcd_endpoints=(ETCD,) if plan.lease_s else (),
            election_lease_s=plan.lease_s or BrokerConfig.election_lease_s,
            default_topic_queues=plan.queues,
            transaction_timeout_ms=int(TRANSACTION_TIMEOUT_S * 1000),
            transaction_check_ms=int(TRANSACTION_CHECK_S * 1000),
            transaction_check_max=TRANSACTION_CHECKS,
            max_message_bytes=MESSAGE_BYTES_MAX,
            check_message_types=plan.checks_types,
            allow_mixed_types=plan.checks_types,
            replication_secret=plan.secret,
            stage_memory_bytes=512,  # so that some of a stage is in files
            store_options={
                "commitlog_segment_bytes": plan.segment_bytes,
                "consumequeue_segment_bytes": 20 * plan.queue_entries,
                "index_slots": plan.index_slots,
                "index_items": plan.index_items,
                "zero_ahead_bytes": 8 << 10,
                "clean_forcibly": False,  # a full disk is no reason to delete what nobody expects
            },
        )

    # the run

    async def run(self) -> None:
        for nameserver in self.nameservers:
            await nameserver.boot()
        for node in self.brokers:
            await node.boot()
        await self.operator.start()
        await self._create_topic()
        for reader in self.readers:
            await reader.start()
        await self.senders.start()
        await self.bookkeeper.start()
        if self.plan.sink_epochs:
            await self.sinks.start()
        for scene in self.scenes:
            await scene.start()
        looking = asyncio.create_task(self._look())
        working = asyncio.create_task(self._suffer_and_heal())
        await asyncio.wait((looking, working), return_when=asyncio.FIRST_COMPLETED)
        looking.cancel()
        if not working.done():
            await looking  # says why it ended
        working.result()

    async def _suffer_and_heal(self) -> None:
        await self.faults.run()
        self.calm = True
        self.trace.note("calm")
        await self._become_quiet()
        await encores.play(self)
        self._take_stock()
        self._check_offsets()
        await self._check_refusals()
        await self._stop()

    async def _create_topic(self) -> None:
        """Create the topic on every group until every node has copied it: no promise covers topics
        before that."""
        create = partial(
            self.operator.admin.create_topic,
            TOPIC,
            queues=self.plan.queues,
            message_type=MIXED if self.plan.checks_types else None,
        )
        deadline = self.loop.time() + 30.0
        while not all(map(self._knows_topic, self.brokers)):
            if self.loop.time() > deadline:
                raise RuntimeError(f"the topic is not on every node {30:g} s after it was created")
            with contextlib.suppress(SaturnError):  # a group may not be complete yet
                await self.operator.runtime.run(create())
            await asyncio.sleep(0.2)

    def _knows_topic(self, node: SimBroker) -> bool:
        broker = node.serving
        topic = broker.context.topics.get(TOPIC) if broker is not None else None
        return topic is not None and topic.write_queues == self.plan.queues

    async def _look(self) -> None:
        """Note the states of the nodes: a run says nothing about a state that it never reaches."""
        before: dict[str, str] = {}
        ends: dict[str, int] = {}
        steps, size, busy = self.trace.steps, 0, 0
        while True:
            before_size, size = size, sum(node.log_end for node in self.brokers)
            most = STEPS_MAX + max(0, size - before_size) // BYTES_PER_STEP
            busy = busy + 1 if self.trace.steps - steps > most else 0
            if busy >= BUSY_SAMPLES:
                raise TooLong(
                    f"I15 {self.trace.steps - steps} steps in {SAMPLE_S} s at "
                    f"{self.loop.time():.2f}: something asks again and again without a pause"
                )
            steps = self.trace.steps
            self._look_at_groups()
            self._note_healed()
            for node in self.brokers:
                broker = node.serving
                state = broker.context.role.state_name if broker is not None else "down"
                if state != before.get(node.name):
                    self.states[state] += 1
                    if before.get(node.name) == "recovering" and node.log_end > ends[node.name]:
                        self.states["tail copied back"] += 1
                    before[node.name], ends[node.name] = state, node.log_end
            for look in [*(x.validate for x in self.brokers), *(x.validate for x in self.readers)]:
                look()
            await asyncio.sleep(SAMPLE_S)

    def _look_at_groups(self) -> None:
        """Check now and then, on every node, the rows of sinks that consumers can see. A node that
        knows that it lacks a part of its log may have a part of an atomic batch, and lets no
        consumer pass over the missing part."""
        self._looks += 1
        if self.sinks.rows and not self._over and self._looks % LOOK_EVERY == 0:
            for node in self.brokers:
                broker = node.serving
                if broker is not None and not broker.closed and not broker.context.role.lacks:
                    visible = broker.context.visible
                    with aftermath.watched(node.disk):
                        seen = aftermath.stored(broker.store, node.group, visible)
                        values = [value for _, value in seen if value is not None]
                    where = f"{node.name} at {self.loop.time():.2f}"
                    self.problems += self.sinks.broken(where, node.group, values)

    async def _become_quiet(self) -> None:
        calm_at = self.loop.time()
        # A nameserver that was restarted while a foreign node was there may hold the name for it.
        # The queues that a dead member of an ordered group had locked are nobody's for a minute.
        locked = self.plan.ordered and self.faults.made["consumer killed"]
        held_s = HOLD_MS / 1000 if self.strangers else 0.0
        misled_s = self.plan.route_s + held_s if self.strangers else 0.0  # clients have no route
        self._known_at = calm_at + misled_s
        liveness_s = LIVENESS_S + held_s
        delivery_s = max(LOCK_S if locked else 0.0, liveness_s)
        helped = False
        for what, bound, is_so in (
            ("a group has no master", liveness_s, self._has_masters),
            ("sends do not succeed", liveness_s, self._all_sent),
            ("slaves do not catch up", liveness_s, self.caught_up),
            ("not delivered", delivery_s, self._all_delivered),
            # Consumers send back, sinks end their epochs: the logs may have grown since.
            ("slaves do not keep up", delivery_s, self.caught_up),
        ):
            while not is_so():
                self.quiet_s = self.loop.time() - calm_at
                if self.quiet_s > bound:
                    if not helped and await self._help():
                        helped, calm_at = True, self.loop.time()
                        continue
                    self.problems.append(f"I12 {bound:g} s after the last fault: {what}")
                    self.problems.append("  " + "; ".join(map(self._describe, self.brokers)))
                    return
                await asyncio.sleep(0.1)
            self.trace.note("calm.past", what)
        # Wait for messages that may come later; the verdict says whether they had to.
        deadline = self.loop.time() + LATER_S + misled_s
        while self.loop.time() < deadline and not (self._nothing_to_come() and self.caught_up()):
            await asyncio.sleep(0.1)

    async def _help(self) -> bool:
        """After some losses nodes may wait for an operator, if all that was promised is still
        somewhere and they say so. Where logs differ below what is confirmed, or one lacks its
        beginning, this one replaces the disk with the damage; where the newest master has lost its
        disk, and nobody had followed it, the best of the others leads by force. So it does where
        the copies that a master had counted were those of a slave's clone, which is gone."""
        made = self.faults.made
        damaged: list[SimBroker] = []
        chosen: list[SimBroker] = []
        for group in self.groups:
            nodes = self.nodes_of(group)
            lost = [node for node in nodes if not self.is_whole(node)]
            leaderless = not any(node.leads for node in nodes)
            waits = lost or (leaderless and made["node cloned"])
            if not waits or not await self._says_why(group):
                continue
            if lost and (made["bit flipped"] or made["segment deleted"]):
                damaged += lost
            elif leaderless:
                whole = [node for node in nodes if node not in lost]
                chosen.append(max(whole, key=lambda node: (node.log_end, node.name)))
        if not damaged and not chosen:
            return False
        gone = [
            value
            for value, ack in self.history.acked.items()
            if not self.allowance.may_go(ack.place.group, ack.at, ack.by)
            and not aftermath.is_anywhere(self.brokers, make_body(value, self.plan.padding))
        ]
        self.problems += told("I16 nodes wait for an operator, and this is nowhere", gone)
        self.states["waits for an operator"] += len(damaged) + len(chosen)
        for node in damaged:
            self.trace.note("replaced", node.name)
            node.kill()
            await node.settle()
            await node.wipe()
            await node.boot()
        for node in chosen:  # none of it counts as an order that may lose something
            self.trace.note("promoted by force", node.name)
            promote = self.operator.admin.promote
            self._helped.append((node.group, self.loop.time()))
            await self.operator.runtime.run(promote(node.group, node.address, force=True))
        return True

    async def _says_why(self, group: str) -> bool:
        """Whether `admin replicas` shows why a member does not go on."""
        try:
            members = await self.operator.runtime.run(self.operator.admin.replicas(group))
        except SaturnError:
            return False
        return any(
            member.lacks or member.trouble or (member.refuses and member.role != "slave")
            for member in members
        )

    def since(self) -> float:
        """The time at which patience with scenes begins: now, but not before they can be known."""
        return max(self.loop.time(), self._known_at)

    def in_trouble(self) -> bool:
        return any(problem.startswith("I12") for problem in self.problems)

    def _nothing_to_come(self) -> bool:
        if not self._all_delivered():
            return False
        stored = set(self.stored.values())
        waiting = [v for v, a in self.history.acked.items() if a.place.queue == LATER]
        return not self.history.sent_back and stored.issuperset(waiting)

    def _describe(self, node: SimBroker) -> str:
        broker = node.serving
        if broker is None:
            return f"{node.name} down"
        role, marks = broker.context.role, broker.store.watermarks
        return (
            f"{node.name} {role.state_name} epoch {role.promised_epoch} log {marks.appended} "
            f"flushed {marks.flushed} confirmed {marks.confirmed} {role.why}"
        )

    def is_whole(self, node: SimBroker) -> bool:
        """Whether it has had all of its group's log since its disk lost anything."""
        aged_at, healed = node.past.aged_at, self.healed[node.group]
        return not node.ageing and (not aged_at or aged_at[-1] < healed[-1])

    def _note_healed(self) -> None:
        for group, healed in self.healed.items():
            nodes = self.nodes_of(group)
            losses = [at for node in nodes for at in node.past.lost_at()]
            if losses and max(losses) >= healed[-1] and self._has_caught_up(group):
                healed.append(self.loop.time())

    def _has_masters(self) -> bool:
        return all(any(node.leads for node in self.nodes_of(group)) for group in self.groups)

    def _all_sent(self) -> bool:
        return all(lane.done() for lane in [*self.senders.lanes, *self.sinks.lanes])

    def caught_up(self) -> bool:
        """Every slave follows and has all: logs may be equally long before one of them is cut."""
        return all(map(self._has_caught_up, self.groups))

    def _has_caught_up(self, group: str) -> bool:
        nodes, master = self.nodes_of(group), self.master_of(group).serving
        if master is None or len({node.log_end for node in nodes}) > 1:
            return False
        marks = master.store.watermarks
        if marks.dispatched < marks.confirmed:
            return False
        if self.plan.rare and not aftermath.are_equal(nodes):  # damage is mended by then
            return False
        return master.context.copies_in_sync() == len(nodes)

    def _all_delivered(self) -> bool:
        self._read_stored()
        return all(
            value in seen
            for seen in self.history.first_seen.values()
            for value in self.stored.values()
        )

    def master_of(self, group: str) -> SimBroker:
        """The node that leads; any, if none does."""
        nodes = self.nodes_of(group)
        return next((node for node in nodes if node.leads), nodes[0])

    def _read_stored(self) -> None:
        self.stored.clear()
        for group in self.groups:
            broker = self.master_of(group).serving
            if broker is not None:
                for place, value in aftermath.stored(broker.store, group):
                    self.stored[place] = value or "?"

    def _take_stock(self) -> None:
        self._read_stored()
        ordered = {READERS[0]: False, READERS[1]: self.plan.ordered}
        verdict = Verdict(
            Evidence(self.history, self.stored, self.is_saved, self.allowance, ordered)
        )
        self.problems += verdict.run()
        self.lost = verdict.lost
        for group in self.groups:
            values = [value for place, value in self.stored.items() if place.group == group]
            self.problems += self.sinks.broken(f"the log of {group}", group, values)
        self.problems += verdict.partitions(self.sinks.missing(set(self.stored.values())))
        for scene in self.scenes:
            self.problems += [f"{problem} ({scene.topic})" for problem in scene.verdict()]

    def is_saved(self, value: str) -> bool:
        """Whether a truncation put this value into a side file."""
        return aftermath.is_saved(self.brokers, make_body(value, self.plan.padding))

    def _check_offsets(self) -> None:
        """I6: what every node had saved is not forgotten, and no offset is behind its queue."""
        for group in self.groups:
            broker = self.master_of(group).serving
            if broker is None:
                continue
            committed = broker.context.offsets.query(BOOKKEEPER, TOPIC, 0) or 0
            if committed > self.bookkeeper.asked[group]:
                self.problems.append(
                    f"I6 {group}: the master has offset {committed}, at most "
                    f"{self.bookkeeper.asked[group]} was committed"
                )
            certain = self.bookkeeper.certain[group]
            if committed < certain and not self.lost:
                self.problems.append(
                    f"I6 {group}: every node had saved offset {certain}, the master has {committed}"
                )
            for (topic, consumers), queues in broker.context.offsets.items():
                if consumers == BOOKKEEPER:
                    continue  # it does not know of messages that were lost
                for queue, offset in queues.items():
                    end = broker.store.max_offset(topic, queue)
                    if offset > end:
                        self.problems.append(
                            f"I6 {consumers} committed {offset} of {topic} {queue}: "
                            f"it ends at {end}"
                        )

    async def _check_refusals(self) -> None:
        """Check that a node refuses an etcd that knows less now than it told the node before, and
        reports that."""
        misled = [node for node in self.brokers if self._was_told_more(node)]
        deadline = self.loop.time() + REFUSED_S
        while misled and not self.in_trouble():
            for group in self.groups:
                with contextlib.suppress(SaturnError):
                    replicas = self.operator.admin.replicas(group)
                    members = await self.operator.runtime.run(replicas)
                    refuse = [m.address for m in members if "an old snapshot" in str(m.no_failover)]
                    misled = [node for node in misled if node.address not in refuse]
            if misled and self.loop.time() > deadline:
                names = [node.name for node in misled]
                self.problems += told("I16 an etcd that has forgotten is believed", names)
                return
            await asyncio.sleep(SAMPLE_S)

    def _was_told_more(self, node: SimBroker) -> bool:
        return node.name in self._doors and self._doors[node.name].was_told_more

    async def _stop(self) -> None:
        self._over = True
        for reader in self.readers:
            await reader.runtime.run(reader.close())
        for client in (self.senders, self.bookkeeper, self.operator):
            await client.runtime.run(client.close())
        if self.plan.sink_epochs:
            await self.sinks.runtime.run(self.sinks.close())
        for scene in self.scenes:
            await scene.close()
        if self.in_trouble():
            return  # logs that are not equal yet have no verdict
        for group in self.groups:
            nodes = self.nodes_of(group)
            ends = []
            for node in sorted(nodes, key=lambda node: node.leads):
                broker = node.serving
                if broker is not None:
                    await node.runtime.run(broker.close())
            for node in nodes:
                assert node.broker is not None
                ends.append(node.broker.store.watermarks.appended)
                self.problems += aftermath.check_store(node, self.plan)
            self.problems += aftermath.compare_logs(nodes, ends)

    def report(self) -> SimReport:
        history, faults = self.history, Counter(self.faults.made)
        for node in self.brokers:
            for fates in (node.fates, node.disk.fates):
                faults["pages dropped or torn"] += fates.dropped + fates.torn
        states = Counter(self.states)
        states["promoted"] = self.operator.done
        states["promotion refused"] = self.operator.refusals.total()
        states["truncated"] = sum(len(n.side_files()) + len(n.saved) for n in self.brokers)
        problems = list(self.problems)
        for runtime in self.world.runtimes:
            problems += [f"a task died: {death}" for death in runtime.deaths]
        return SimReport(
            seeds=1,
            sent=len(history.invoked),
            acked=len(history.acked),
            unknown=len(history.unknown),
            rejected=len(history.rejected),
            delivered=history.delivered,
            duplicates=history.duplicates,
            lost=self.lost,
            steps=self.trace.steps,
            virtual_s=self.loop.time(),
            quiet_s=self.quiet_s,
            faults=+faults,
            states=+states,
            violations=problems + self.loop.failures,
            trace_hash=self.trace.hexdigest(),
        )
