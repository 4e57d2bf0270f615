"""One life of a store: a drawn workload on a simulated disk, photographed at its I/O boundaries.

Before every operation of the disk, inside its writes and after every operation of the workload
the life stops at a boundary; there the `shutter` says which crash images to take, and each is
recovered and checked on the spot (`images.py`). The life itself is not disturbed by that: one run
of the workload gives the images of all its boundaries. It has crashes of its own, too, and goes on
with what recovery made of them.
"""

from __future__ import annotations

import posixpath
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from saturnmq.drills.crash.checks import CONFIG_PATH, Checker, Expected
from saturnmq.drills.crash.damage import BitRot
from saturnmq.drills.crash.images import (
    KILL,
    OUTCOMES,
    READS,
    ImageClock,
    Recoverer,
    crash,
    open_store,
)
from saturnmq.drills.crash.model import Model
from saturnmq.drills.crash.plan import ROOT, CrashPlan
from saturnmq.drills.crash.report import CrashReport
from saturnmq.drills.sim.disk import SimDisk
from saturnmq.protocol.batch import encode_batch
from saturnmq.protocol.frame import TRANSACTION_PREPARED, Frame, decode_frame
from saturnmq.runtime.errors import FlushDiskTimeout, SaturnError, StageLost
from saturnmq.store.config_files import ConfigFile
from saturnmq.store.derived.tombstones import KEY, Tombstone
from saturnmq.store.message_store import AppendResult, AtomicBatchPart, MessageStore, PendingMessage

Shutter = Callable[[int], Sequence[str]]
_LOG = posixpath.join(ROOT, "commitlog") + "/"
_TOTAL = 1 << 40
FLIPS = 20
SPOILT = 0.15  # of the groups and batches
LOG_NOT_SYNCED = "EIO: log not synced"


class Violated(Exception):
    """The life ends: what follows a violation says nothing."""


class StoreWorkload:
    """See the module's text; `run` lives it and gives the report."""

    def __init__(self, name: str, plan: CrashPlan, shutter: Shutter) -> None:
        self._name = name
        self._plan = plan
        self._shutter = shutter
        self._rng = random.Random(f"{name}/life")
        self._clock = ImageClock()
        self._config = plan.config()
        self._report = CrashReport(seeds=1)
        self._model = Model(plan.segment_bytes)
        self._checker = Checker(self._model, self._report.checks)
        self._recoverer = Recoverer(
            self._config, self._clock, self._checker, self._report, plan.nested
        )
        self._disk = SimDisk(
            random.Random(f"{name}/disk"), None, self._clock.now_ms, _TOTAL, plan.writeback
        )
        self._store: MessageStore | None = None
        self._written: object = None
        self._threaded = False  # a thread of the store works: the loop may do something beside it
        self._cut_at: int | None = None  # a truncation is under way
        self._starts: Sequence[int] = (0,)  # where the log may begin
        self._configs: list[object] = [None]
        self._sent = self._saved = 0
        self._fault = ""  # the planned one, for what may now be refused
        self._derived_failed = False

    @property
    def store(self) -> MessageStore:
        assert self._store is not None
        return self._store

    def run(self) -> CrashReport:
        """Live; violations are in the report, not raised."""
        report, plan = self._report, self._plan
        names, weights = list(plan.weights), list(plan.weights.values())
        try:
            self._disk.make_dirs(posixpath.dirname(CONFIG_PATH))
            self._disk.step = self._step
            self._open()
            for _ in range(plan.operations):
                self._clock.ms += self._rng.choice((0, 0, 1, 20, 1500))
                name = self._rng.choices(names, weights)[0]
                report.operations[name] += 1
                getattr(self, f"_{name}")()
                self._boundary(f"after {name}")
                self.store.validate()
            self._end()
        except Violated:
            pass
        except Exception as error:
            self._violation(f"the store failed: {type(error).__name__}: {error}")
        report.messages = self._sent
        report.checks = self._checker.made
        return report

    # boundaries

    def _step(self, operation: str, path: str) -> None:
        if operation in READS:
            return
        disk = self._disk
        if operation == "write" and path.startswith(_LOG) and disk.writing is not self._written:
            self._written = disk.writing
            assert disk.writing is not None
            _, pos, data = disk.writing
            self._model.intended(int(posixpath.basename(path)) + pos, data)
        self._boundary(f"before {operation} {path}")
        if not self._threaded or operation != "flush" or self.store.in_group:
            return
        if self._rng.random() < self._plan.beside:
            self._threaded = False
            self._rng.choice((self._put, self._put_batch, self._dispatch))()
            self._threaded = True

    def _boundary(self, place: str) -> None:
        report = self._report
        report.boundaries += 1
        if self._store is not None:
            flushed = min(self._store.watermarks.flushed, self._model.appended)
            self._model.flushed = max(self._model.flushed, flushed)
            if self._store.failed is not None and self._fault == LOG_NOT_SYNCED:
                self._cache_lies()
        if self._model.wrong:
            self._violated(self._model.wrong[0])
        number = report.boundaries
        for outcome in self._shutter(number):
            rng = random.Random(f"{self._name}/{number}/{outcome}")
            image = crash(self._disk, outcome, rng, report)
            image.total_bytes = _TOTAL
            wrong = self._recoverer.recover(image, self._expected(outcome), rng)
            if wrong:
                self._violated(f"boundary {number} ({place}), {outcome}: {wrong[0]}")

    def _expected(self, outcome: str) -> Expected:
        model = self._model
        required = model.appended if outcome == KILL else model.flushed
        expected = Expected(required, model.flushed, list(self._configs), self._starts)
        cut_at = self._cut_at
        if cut_at is not None:
            expected.uncut, expected.cut_at = model.flushed, cut_at
            expected.required = min(required, cut_at)
            expected.flushed = min(model.flushed, cut_at)
        return expected

    def _violation(self, text: str) -> None:
        self._report.violations.append(f"{self._name}: {text}")

    def _violated(self, text: str) -> None:
        self._violation(text)
        raise Violated

    # starts and ends

    def _open(self) -> None:
        """Open the disk as it is; what recovery left is what counts from now on."""
        model = self._model
        expected = self._expected(KILL)
        self._store = None
        self._derived_failed = False
        self._disk.plans.clear()
        self._disk.total_bytes = _TOTAL
        self._fault = ""
        store = open_store(self._config, self._disk, self._clock)
        wrong = self._checker.store(self._disk, store, expected)
        if wrong:
            self._violated(f"after a start: {wrong[0]}")
        end = store.watermarks.appended
        model.cut(end)
        model.flushed = model.appended = end
        model.start = store.watermarks.start
        self._starts = (model.start,)
        self._configs = [ConfigFile(self._disk, CONFIG_PATH).load()]
        self._store = store
        self._fit_tombstones()

    def _reopen(self) -> None:
        """A clean stop and a start."""
        store = self.store
        try:
            store.close()
        except OSError:
            if not self._fault:
                raise
        if store.failed is None:
            self._model.flushed = self._model.appended
        elif self._fault == LOG_NOT_SYNCED:
            self._cache_lies()
        self._disk.locks.clear()
        self._open()

    def _die(self) -> None:
        """kill -9 and a start."""
        self._replace(crash(self._disk, KILL, self._rng, self._report))

    def _lose_power(self) -> None:
        self._model.appended = self._model.flushed
        outcome = self._rng.choice(OUTCOMES[1:])
        self._replace(crash(self._disk, outcome, self._rng, self._report))

    def _replace(self, image: SimDisk) -> None:
        self._disk = image
        self._disk.step = self._step
        self._open()

    def _end(self) -> None:
        """Everything heals: what was sent is dispatched, a stop is clean, a start finds it all."""
        self._disk.plans.clear()
        self._disk.total_bytes = _TOTAL
        if self._fault and self.store.failed is None:
            self._fault = ""
            self._dispatch_all()
            self._put()  # a full disk is a state that ends by itself
        self._reopen()
        self._read()
        if self._plan.flips:
            self._flip_bits()

    def _flip_bits(self) -> None:
        """Bit rot in what a clean stop leaves."""
        self.store.close()
        rot = BitRot(self._model, self._config, self._clock)
        for number in range(FLIPS):
            rng = random.Random(f"{self._name}/flip/{number}")
            image = crash(self._disk, "nothing", rng, self._report)
            self._report.images += 1
            self._report.recoveries += 1
            self._report.faults["bit flipped"] += 1
            self._checker.made["I11"] += 1
            wrong = rot.check(image, rng)
            if wrong:
                self._violated(f"flip {number}: {wrong[0]}")

    # the writer

    def _pick_queue(self) -> tuple[str, int]:
        plan, rng = self._plan, self._rng
        return f"topic{rng.randrange(plan.topics)}", rng.randrange(plan.queues)

    def _body(self) -> bytes:
        self._sent += 1
        head = b"%d|" % self._sent
        return head + bytes([self._sent & 0xFF]) * (self._rng.choice(self._plan.bodies))

    def _properties(self) -> bytes:
        rng, number = self._rng, self._sent
        text = f"UNIQ_KEY\x01U{number}\x02"
        if rng.random() < 0.5:
            text += f"TAGS\x01t{rng.randrange(3)}\x02"
        if rng.random() < 0.4:
            text += f"KEYS\x01k{rng.randrange(5)} m{number}\x02"
        return text.encode()

    def _put(self, sys_flag: int = 0) -> None:
        topic, queue_id = self._pick_queue()
        body, properties = self._body(), self._properties()
        message = PendingMessage(topic, queue_id, body, properties, sys_flag=sys_flag)
        expected = 0 if sys_flag else self._model.next_offset(topic, queue_id)
        before = len(self._model.log)
        try:
            put = self.store.put(message)
        except SaturnError as error:
            self._refused(error, before)
            return
        if put.queue_offset != expected:
            self._violated(f"I4 {topic}/{queue_id} gave offset {put.queue_offset}, not {expected}")
        frame = decode_frame(self._model.log, put.physical_offset)
        if not isinstance(frame, Frame) or (frame.body, frame.topic) != (body, topic.encode()):
            self._violated(f"I2 {frame} is at {put.physical_offset} instead of what was sent")
        self._appended(put)

    def _put_half(self) -> None:
        self._put(TRANSACTION_PREPARED)

    def _put_batch(self) -> None:
        topic, queue_id = self._pick_queue()
        items = [(self._body(), self._properties()) for _ in range(self._rng.randint(1, 5))]
        expected = self._model.next_offset(topic, queue_id)
        before = len(self._model.log)
        batch = encode_batch((body, properties, 0) for body, properties in items)
        spoilt = self._rng.random() < SPOILT
        batch[11] ^= spoilt  # of the first checksum
        try:
            put = self.store.put_batch(topic, queue_id, batch)
        except SaturnError as error:
            self._refused(error, before, may=True)  # it may be too large for a segment
            return
        if spoilt:
            self._violated(f"a batch with a wrong checksum was stored in {topic}/{queue_id}")
        if (put.queue_offset, put.count) != (expected, len(items)):
            self._violated(f"I4 {topic}/{queue_id} gave {put.queue_offset}, not {expected}")
        at: int = put.physical_offset
        for body, _ in items:
            frame = decode_frame(self._model.log, at)
            if not isinstance(frame, Frame) or frame.body != body:
                self._violated(f"I2 {frame} is at {at} instead of what was sent")
                return
            at += frame.size
        self._appended(put)

    def _put_group(self) -> None:
        """All of it or nothing; between two parts threads and the loop do other things."""
        before, after = len(self._model.log), self._model.appended
        spoilt = self._rng.random() < SPOILT
        put: AppendResult | None = None
        try:
            parts = [self._part() for _ in range(self._rng.randint(1, 4))]
            if spoilt:  # the last part is not what was checked
                parts[-1] = replace(parts[-1], count=parts[-1].count + 1)
            for put in self.store.append_group(b"{}", parts):
                if put is None and self._rng.random() < self._plan.beside:
                    self._rng.choice((self._flush, self._dispatch, self._derive, self._prepare))()
        except SaturnError as error:
            if spoilt and isinstance(error, StageLost):
                self._model.cut(after)
                return
            self._refused(error, before, may=True)  # it may be too large for a segment
            return
        if spoilt or put is None or put.count != sum(part.count for part in parts):
            self._violated(f"I3 a group whose last part is damaged is acknowledged: {put}")
            return
        self._appended(put)

    def _part(self) -> AtomicBatchPart:
        topic, queue_id = self._pick_queue()
        items = [(self._body(), self._properties()) for _ in range(self._rng.randint(1, 5))]
        data = bytes(encode_batch((body, properties, 0) for body, properties in items))
        count, size = self.store.measure_part(topic, data)
        return AtomicBatchPart(topic, queue_id, count, size, lambda: data)

    def _appended(self, put: AppendResult) -> None:
        self._model.appended = put.end_offset
        self._report.acked += put.count

    def _refused(self, error: SaturnError, before: int, may: bool = False) -> None:
        self._report.operations["refused"] += 1
        if not (may or self._fault or self.store.failed):
            self._violated(f"a message is refused without a fault: {error}")
        model = self._model
        is_refusal = not isinstance(error, FlushDiskTimeout)  # that one says "may be stored"
        if is_refusal and model.count(len(model.log)) > model.count(before):
            model.refused.append((before, len(model.log)))

    # threads beside it

    def _flush(self) -> None:
        store = self.store
        ticket = store.begin_flush()
        if ticket is None:
            return
        try:
            ticket.run()
        except OSError as error:
            store.complete_flush(ticket, error)
        else:
            store.complete_flush(ticket)

    def _cache_lies(self) -> None:
        """A sync failed: what it should have written is unknown, the cache tells it no more."""
        self._model.appended = self._model.flushed

    def _beside(self, work: Callable[[], None]) -> None:
        self._threaded = True
        try:
            work()
        finally:
            self._threaded = False

    def _flush_beside(self) -> None:
        self._beside(self._flush)

    def _dispatch(self) -> None:
        for _ in range(self._rng.randint(1, 4)):
            if not self._reput():
                break

    def _dispatch_all(self) -> None:
        while self._reput():
            pass

    def _reput(self) -> bool:
        try:
            return bool(self.store.reput())
        except OSError:
            if not self._fault:
                raise
            return False

    def _derive(self) -> None:
        if self._derived_failed:
            return  # the broker's task ends there
        try:
            self._beside(self.store.flush_derived)
            self._beside(self.store.checkpoint)
        except OSError:
            if not self._fault:
                raise
            self._derived_failed = True

    def _prepare(self) -> None:
        try:
            self.store.make_room_ahead()
            self.store.prepare_ahead()
        except OSError:
            if not self._fault:
                raise

    # the rest

    def _save_config(self) -> None:
        self._save(self.store.tombstones)

    def _save(self, tombstones: Mapping[str, Tombstone]) -> bool:
        """Whether that is known to be durable."""
        self._saved += 1
        document = {
            "version": self._saved,
            "text": "x" * self._rng.choice((1, 100, 5000)),
            KEY: {topic: tombstone.to_json() for topic, tombstone in tombstones.items()},
        }
        self._configs.append(document)
        try:
            ConfigFile(self._disk, CONFIG_PATH).save(document)
        except OSError:
            if not self._fault:
                raise
            return False
        self._configs = [document]
        return True

    def _delete_topic(self) -> None:
        """As a broker does it; the next message to the topic makes it anew."""
        store = self.store
        topic, _ = self._pick_queue()
        self._flush()  # no image has a log that ends before the deletion
        if store.failed is not None or store.watermarks.flushed < store.watermarks.appended:
            return
        tombstones = {**store.tombstones, topic: store.tombstone(topic)}
        if not self._save(tombstones):
            return
        store.bury(tombstones)
        self._derive()
        if not self._fault:
            for _ in store.remove_deleted():
                pass

    def _fit_tombstones(self) -> None:
        """Nothing was deleted behind the end of the log, and queues go on where a tombstone says:
        durably so before the log grows."""
        store, end = self.store, self._model.appended
        fitting = {topic: t.within(end) for topic, t in store.tombstones.items()}
        if fitting != store.tombstones and self._save(fitting):
            store.bury(fitting)
        for topic, tombstone in fitting.items():
            for queue_id, offset in tombstone.next.items():
                self._model.skip(topic, queue_id, offset)

    def _read(self) -> None:
        """Consumers see whole messages, and none that is not flushed (I9)."""
        store, model = self.store, self._model
        visible = store.align_to_batch(min(store.watermarks.flushed, store.watermarks.dispatched))
        if model.group_at(visible) is not None:
            self._violated(f"I9 {visible} would be visible, which lies in a group")
        for (topic, queue_id), queue in model.queues.items():
            offset = store.min_offset(topic, queue_id)
            self._checker.made["I9"] += 1
            result = store.get_message(topic, queue_id, offset, 32, visible=visible)
            frames, at = memoryview(result.data), 0
            while at < len(frames):
                frame = decode_frame(frames, at)
                if not isinstance(frame, Frame) or frame.physical_offset + frame.size > visible:
                    self._violated(f"I9 {topic}/{queue_id} delivers {frame} beyond {visible}")
                    return
                place = frame.physical_offset
                if queue.starts[frame.queue_offset] != place:
                    self._violated(f"I4 {topic}/{queue_id} offset {frame.queue_offset} is another")
                if frames[at : at + frame.size] != model.log[place : place + frame.size]:
                    self._violated(f"I2 {topic}/{queue_id} delivers bytes that were not sent")
                at += frame.size

    def _truncate(self) -> None:
        """Act as a slave whose master has another log."""
        if self.store.failed is not None or self._fault:
            return
        ends = self._model.ends
        offset = ends[max(0, len(ends) - self._rng.randint(1, 6))]
        if offset < self._model.start:
            return
        self._cut_at = offset
        self.store.truncate(offset)
        self._model.cut(offset)
        self._cut_at = None
        self._dispatch_all()  # it gives no queue offsets before that
        self._fit_tombstones()

    def _clean(self) -> None:
        """Delete whole segments at the front, in two steps: put aside, and when their time came."""
        store, model = self.store, self._model
        self._starts = range(model.start, model.flushed + 1, model.segment_bytes)
        ticket = store.begin_clean()
        try:
            if ticket is not None:
                self._beside(ticket.run)
        except OSError:
            if not self._fault:
                raise
        self._starts = range(model.start, store.watermarks.start + 1, model.segment_bytes)
        if not self._fault:
            model.start = store.watermarks.start
            self._starts = (model.start,)

    # faults

    def _fail(self, operation: str, pattern: str, name: str) -> None:
        if self._fault:
            return
        self._fault = name
        self._report.faults[name] += 1
        times = self._rng.choice((1, 1, 2, None))
        self._disk.plan(operation, pattern=f"{ROOT}/{pattern}", times=times)

    def _fail_flush(self) -> None:
        self._fail("flush", "commitlog/*", LOG_NOT_SYNCED)

    def _fail_write(self) -> None:
        self._fail("write", "commitlog/*", "EIO: log not written")

    def _fail_derived(self) -> None:
        operation = self._rng.choice(("flush", "write"))
        self._fail(operation, self._rng.choice(("consumequeue/*", "index/*")), "EIO: derived files")

    def _fill_disk(self) -> None:
        """The disk is full; it has room again with the next call."""
        disk = self._disk
        if self._fault == "ENOSPC":
            self._fault = ""
            disk.total_bytes = _TOTAL
            self._dispatch_all()  # finds that there is room again
        elif not self._fault:
            self._fault = "ENOSPC"
            self._report.faults["ENOSPC"] += 1
            total, free = disk.free_space(ROOT)
            disk.total_bytes = total - free + self._rng.choice((0, 300, 5000))
