"""Consumer offsets: the place at which a group goes on, by group, topic and queue.

`config/consumerOffset.json`: `{"dataVersion":DV,"offsetTable":{"<topic>@<group>":{"<queue>":n}}}`,
written by this module every 5 s if something changed, read at start, copied by slaves (code 43). We
add keys that RocketMQ ignores: `"generationTable"`, of the same form, for marks of a generation
above 0, `"stale":true` (see `progress.py` for both), and `"deletedTable"` (`deleted_groups.py`).

Rule (docs/internals/format.md 10.3): a commit below the known offset is ignored; only an explicit
reset moves an offset back. The master answers pulls of the queue with PULL_OFFSET_MOVED
(OFFSET_RESET, docs/internals/protocol.md 2.2) until one that was told reads from the new offset,
and ignores commits until then: a member may not be known yet where an order arrives, an answer may
be lost, and a member that was told may go on to commit its old place (Java's of 4.9 does so for
10 s). One that was not told may read from there by chance: it has pulled all of the queue, and the
group is to go on at its end. It must give up the messages that it holds. Offsets in a topic go when
it is deleted, and those of a group if its deletion says so. No table that still has them, a slave's
or the file, brings them back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

from saturnmq.broker.tables.deleted_groups import KEY as DELETED
from saturnmq.broker.tables.deleted_groups import DeletedGroups
from saturnmq.broker.tables.progress import NOTHING, Mark, ProgressTable, mark_by_number
from saturnmq.broker.tables.table_memory import check_text, fits_frame
from saturnmq.broker.tables.table_persistence import Document, Row, readable
from saturnmq.protocol import checked
from saturnmq.runtime.steps import at_once

log = logging.getLogger(__name__)

SEPARATOR = "@"
STEP_PLACES = 5000  # looked at in one step: about a millisecond
STEP_READ = 500  # read in one step, the same
Search = Generator[None, None, list[str]]
"""It yields between two steps, and returns names in their order."""
Forgetting = Generator[None, None, None]
"""It yields between two steps."""


NUMBER_BYTES = 30  # of a queue and an offset in the table's text


class GroupOffset(NamedTuple):
    """A group's place in one queue."""

    topic: str
    group: str
    queue_id: int


_place = lru_cache(maxsize=4096)(GroupOffset)
"""The place of a request: the same ones come again and again."""


def _is_behind(heard: int | None, known: Mark) -> bool:
    """Whether a member that knows so many moves has missed a reset. One that does not say: no."""
    return heard is not None and heard < known.generation


def _pair_bytes(pair: tuple[str, str]) -> int:
    """The bytes of a pair's entry in the table's text, without numbers."""
    topic, group = pair
    return len(topic) + len(group) + len('"@":{},')


class ConsumerOffsets(ProgressTable[GroupOffset]):
    """The table of one broker. `is_over`: whether an offset in this queue of a topic is from before
    the topic was deleted."""

    def __init__(
        self,
        now_ms: Callable[[], int],
        is_over: Callable[[str, int, int], bool] = lambda *_: False,
        room_for: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`room_for` refuses an offset in one more queue if there is no room for it."""
        super().__init__(now_ms)
        self._room_for = room_for
        self._is_over = is_over
        self._deleted = DeletedGroups()
        # The log that they belong to (`lost_offsets.log_of`), if not this node's: a slave's table
        # may be ahead of its log, and of a later epoch.
        self.of_log: dict[str, str] = {}
        self._pairs: set[tuple[str, str]] = set()  # topic and group
        self._text_bytes = 0  # of the table as it is sent to other nodes
        self._counted = 0  # the number of offsets in that text
        self._some_are_gone = False  # counted pairs may have no offsets any more
        self._told: set[GroupOffset] = set()  # of a reset that nobody follows yet

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Take a group's offset; False if it would move back, or if a reset is pending."""
        place = _place(topic, group, queue_id)
        known = self.progress.marks.get(place)
        if known is not None and (known.generation & 1 or offset <= known.offset):
            return offset == known.offset
        if known is None:
            self._make_room(place)
            self.progress.marks[place] = self._known(place)
        has_risen = self.progress.advance(place, offset)
        assert has_risen, f"{place} is committed at {offset}, known is {known}"
        self.mark_dirty()
        return True

    def _known(self, place: GroupOffset) -> Mark:
        """The mark of this place, or the one before its first."""
        first = self._deleted.first
        return self.progress.marks.get(place) or Mark(first(place.group), NOTHING.offset)

    def validate(self) -> None:
        """AssertionError: a mark cannot be, or places are counted wrongly."""
        super().validate()
        self._deleted.validate()
        for place in self.progress.marks:
            assert place.queue_id >= 0, f"an offset in queue {place.queue_id} of {place.topic}"
        assert self._text_bytes >= NUMBER_BYTES * self._counted, (self._text_bytes, self._counted)

    def _make_room(self, place: GroupOffset) -> None:
        """Make room for one more offset. SystemBusy: there is no memory for it, or the table would
        not fit into one frame to slaves."""
        topic, group, queue_id = place
        self._room_for(f"the offset of group {group} in queue {queue_id} of {topic}")
        if self._counted != len(self.progress.marks):
            self._count_pairs()
        pair = topic, group
        more = NUMBER_BYTES + (0 if pair in self._pairs else _pair_bytes(pair))
        deleted = self._deleted.text_bytes
        if self._some_are_gone and not fits_frame(self._text_bytes + deleted + more):
            self._count_pairs()
            more = NUMBER_BYTES + (0 if pair in self._pairs else _pair_bytes(pair))
        check_text("consumer offsets", self._text_bytes + deleted, more)
        self._pairs.add(pair)
        self._text_bytes += more
        self._counted += 1

    def _count_pairs(self) -> None:
        self._pairs = {(place.topic, place.group) for place in self.progress.marks}
        self._counted = len(self.progress.marks)
        self._text_bytes = NUMBER_BYTES * self._counted + sum(map(_pair_bytes, self._pairs))
        self._some_are_gone = False

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the offset whatever it was; members hear of it when they read the queue."""
        place = _place(topic, group, queue_id)
        if place not in self.progress.marks:
            self._make_room(place)
        known = self._known(place)
        generation = (known.generation + 1) | 1
        assert generation > known.generation, f"a reset from {known} to generation {generation}"
        self.progress.marks[place] = Mark(generation, offset)
        self._told.discard(place)
        log.info("group %s, %s queue %d: reset to %d", group, topic, queue_id, offset)
        self.mark_dirty()

    def tell(self, group: str, topic: str, queue_id: int) -> None:
        """Note that a member has been told the group's offset: if it reads from there, it follows
        the reset."""
        place = _place(topic, group, queue_id)
        known = self.progress.marks.get(place)
        if known is not None and known.generation & 1:
            self._told.add(place)

    def move_for(
        self, group: str, topic: str, queue_id: int, offset: int, heard: int | None
    ) -> int | None:
        """The offset to which a member must move that reads from `offset`, and has not heard of a
        reset. `heard`: the `moves` that the member knows: another member may have heard of the
        reset for it. None, if it does not say: it has heard of the reset if it reads from the new
        offset after that was told."""
        place = _place(topic, group, queue_id)
        known = self.progress.marks.get(place)
        if known is None:
            return None
        is_behind = _is_behind(heard, known)
        if not (known.generation & 1 or is_behind):
            return None  # nearly every pull
        if known.offset != offset or is_behind or (heard is None and place not in self._told):
            self.tell(group, topic, queue_id)
            return known.offset
        self.take_reset(group, topic, queue_id)
        return None

    def has_missed(self, group: str, topic: str, queue_id: int, heard: int | None) -> bool:
        """Whether a member that knows so many moves has missed a reset, as this copy of the table
        shows, which may be old."""
        known = self.progress.marks.get(_place(topic, group, queue_id))
        return known is not None and _is_behind(heard, known)

    def moves(self, group: str, topic: str, queue_id: int) -> int:
        """The generation that a member knows which follows all resets."""
        known = self._known(_place(topic, group, queue_id))
        return known.generation + (known.generation & 1)

    def take_reset(self, group: str, topic: str, queue_id: int) -> None:
        """Count a reset, if there is one, as heard of: who reads goes on from its offset."""
        place = _place(topic, group, queue_id)
        known = self.progress.marks.get(place)
        self._told.discard(place)
        if known is not None and known.generation & 1:
            self.progress.marks[place] = Mark(known.generation + 1, known.offset)
            self.mark_dirty()

    def __len__(self) -> int:
        return len(self.progress.marks)

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        return self.progress.offset(_place(topic, group, queue_id))

    def topics_of(self, group: str) -> Search:
        """Find the topics in which a group has offsets."""
        return self._search(lambda place: place.topic if place.group == group else None)

    def groups_of(self, topic: str) -> Search:
        """Find the groups that have offsets in a topic."""
        return self._search(lambda place: place.group if place.topic == topic else None)

    def topics_by_group(self) -> Generator[None, None, dict[str, set[str]]]:
        """Find the groups, with the topics in which each has offsets."""
        places = list(self.progress.marks)
        found: dict[str, set[str]] = {}
        for start in range(0, len(places), STEP_PLACES):
            if start:
                yield
            for place in places[start : start + STEP_PLACES]:
                found.setdefault(place.group, set()).add(place.topic)
        return found

    def _search(self, name_of: Callable[[GroupOffset], str | None]) -> Search:
        places = list(self.progress.marks)
        found: set[str] = set()
        for start in range(0, len(places), STEP_PLACES):
            if start:
                yield
            names = map(name_of, places[start : start + STEP_PLACES])
            found.update(name for name in names if name is not None)
        return sorted(found)

    def items(self) -> Iterator[tuple[tuple[str, str], dict[int, int]]]:
        """The pairs (topic, group), with the group's offset in each queue."""
        table: dict[tuple[str, str], dict[int, int]] = {}
        for place, mark in self.progress:
            table.setdefault((place.topic, place.group), {})[place.queue_id] = mark.offset
        return iter(table.items())

    def forget(self, groups: Collection[str]) -> Forgetting:
        """Forget the offsets of these groups."""
        return self._drop(lambda place, _: place.group in groups)

    def delete(self, group: str) -> Forgetting:
        """Forget the offsets of this group, as its deletion demands: no table of another node
        brings them back."""
        places, newest = list(self.progress.marks), -1
        for start in range(0, len(places), STEP_PLACES):
            if start:
                yield
            for place in places[start : start + STEP_PLACES]:
                if place.group == group and (mark := self.progress.marks.get(place)) is not None:
                    newest = max(newest, mark.generation)
        if newest >= 0:
            self._deleted.add(group, newest)
            self.mark_dirty()
            yield from self._drop(self._is_of_deleted)

    def _is_of_deleted(self, place: GroupOffset, mark: Mark) -> bool:
        return mark.generation < self._deleted.first(place.group)

    def forget_deleted(self) -> Forgetting:
        """Forget the offsets in topics that were deleted."""
        is_over = self._is_over
        return self._drop(lambda at, mark: is_over(at.topic, at.queue_id, mark.offset))

    def keep(self, is_there: Callable[[str, int], bool]) -> None:
        """Forget offsets in queues that do not exist: earlier versions accepted those."""

        def is_gone(place: GroupOffset, _: Mark) -> bool:
            return not is_there(place.topic, place.queue_id)

        gone = next((place for place, mark in self.progress if is_gone(place, mark)), None)
        if gone is not None:
            before = len(self)
            at_once(self._drop(is_gone))
            log.warning(
                "%d offsets are of queues that do not exist, the first of queue %d of %s: they "
                "are dropped",
                before - len(self),
                gone.queue_id,
                gone.topic,
            )

    def _drop(self, is_gone: Callable[[GroupOffset, Mark], bool]) -> Forgetting:
        """Drop the offsets that `is_gone` names, in steps. Each offset is looked at as it is when
        its step comes; offsets that come meanwhile stay."""
        places = list(self.progress.marks)
        for start in range(0, len(places), STEP_PLACES):
            if start:
                yield
            marks, before = self.progress.marks, len(self)
            for place in places[start : start + STEP_PLACES]:
                mark = marks.get(place)
                if mark is not None and is_gone(place, mark):
                    del marks[place]
            if gone := before - len(self):
                assert gone > 0, f"{-gone} offsets came while {len(places)} were looked at"
                self._counted -= gone
                self._text_bytes -= NUMBER_BYTES * gone
                self._some_are_gone = True
                self.mark_dirty()

    def marks_of(self, document: Mapping[str, Any]) -> dict[GroupOffset, Mark]:
        return at_once(self.read(document))

    def read(self, document: Mapping[str, Any]) -> Generator[None, None, dict[GroupOffset, Mark]]:
        """Read the marks in a document; yield between two steps."""
        marks: dict[GroupOffset, Mark] = {}
        generations = checked.table(document, "generationTable")

        def read(key: str, queues: object) -> dict[GroupOffset, Mark]:
            parts = str(key).split(SEPARATOR)
            if len(parts) != 2:
                return {}  # topic@group@broadcast of 5.x: not ours
            of_queue = partial(mark_by_number, generations=checked.table(generations, key))
            table = checked.as_table(queues, "its entry")
            return {
                GroupOffset(parts[0], parts[1], queue): mark
                for queue, mark in readable(table, of_queue, f"the offset of {key} in queue")
            }

        step = 0
        for some in readable(checked.table(document, "offsetTable"), read, "the offsets of"):
            marks |= self.of_living(some)
            step += 1 + len(some)
            if step >= STEP_READ:
                step = 0
                yield
        return marks

    def of_living(self, marks: Mapping[GroupOffset, Mark]) -> dict[GroupOffset, Mark]:
        """These marks, without those of deleted topics and groups."""
        over, of_deleted = self._is_over, self._is_of_deleted
        living = {at: m for at, m in marks.items() if not over(at.topic, at.queue_id, m.offset)}
        if not self._deleted or self.progress.stale:  # then its deletions are replaced, too
            return living
        return {at: mark for at, mark in living.items() if not of_deleted(at, mark)}

    def load(self, document: Mapping[str, Any]) -> None:
        self._deleted.merge(document)
        super().load(document)

    def take(self, document: Mapping[str, Any], marks: Mapping[GroupOffset, Mark]) -> None:
        if document.get("stale") is True:
            return
        if self.progress.stale:
            self._deleted = DeletedGroups()
        if self._deleted.merge(document):
            self.mark_dirty()
            at_once(self._drop(self._is_of_deleted))
        super().take(document, marks)

    def document(self) -> Document:
        document = super().document()
        if self._deleted:
            document[DELETED] = self._deleted.to_json()
        return document

    def rows_of(
        self, marks: Mapping[GroupOffset, Mark], *, generations: bool
    ) -> Iterator[Row | None]:
        table: dict[str, dict[str, int]] = {}
        for place, mark in marks.items():
            number = mark.generation if generations else mark.offset
            if number or not generations:
                queues = table.setdefault(f"{place.topic}{SEPARATOR}{place.group}", {})
                queues[str(place.queue_id)] = number
            yield None
        yield from table.items()
