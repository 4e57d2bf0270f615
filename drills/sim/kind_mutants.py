"""Known bugs of requests with replies, polls, offsets that operators move, dead letters and typed
topics, kept to be found again in their scenes (`scenes/`).
"""

from __future__ import annotations

from typing import Any

from saturnmq.broker.handlers import send
from saturnmq.broker.tables.clients import ClientTable
from saturnmq.broker.tables.offsets import ConsumerOffsets, GroupOffset
from saturnmq.client.admin import dead_letters
from saturnmq.client.consumer import offset_store, pulling
from saturnmq.client.consumer.poll_round import PollRound
from saturnmq.client.consumer.pull_consumer import PullConsumer
from saturnmq.client.producer.requesting import Requests
from saturnmq.drills.mutants import Mutant, Patch
from saturnmq.drills.sim.scene_mutants import NO_FAULTS, RESTARTS
from saturnmq.protocol import properties as names
from saturnmq.protocol.remoting import Command


def _nothing(original: Any) -> Any:
    return lambda *args, **kwargs: None


def _next_one(original: Any) -> Any:
    def on_reply(self: Requests, ext: Any, body: bytes) -> None:
        numbers, (first, *others) = list(self._waiting), self._waiting.values()
        self._waiting.update(zip(numbers, [*others, first], strict=True))
        original(self, ext, body)

    return on_reply


def _anyone(original: Any) -> Any:
    def producer(self: ClientTable, client_id: str) -> Any:
        return next(iter(self._client_ids), None)

    return producer


def _last_poll_too(original: Any) -> Any:
    def settle(self: PollRound, *args: Any) -> None:
        self._round.last = 0
        original(self, *args)

    return settle


def _all_polled(original: Any) -> Any:
    async def give_up_queues(self: PullConsumer, queues: Any) -> None:
        self.round.settle()
        self._polled.note_all()
        await original(self, queues)

    return give_up_queues


def _until_told(original: Any) -> Any:
    def move_for(self: ConsumerOffsets, group: str, topic: str, queue: int, at: int) -> int | None:
        goal: int | None = original(self, group, topic, queue, at)
        self.take_reset(group, topic, queue)
        return goal

    return move_for


def _without_moves(original: Any) -> Any:
    def term_in(answer: Command) -> dict[str, str]:
        said: dict[str, str] = original(answer)
        said.pop("saturnMoves", None)
        return said

    return term_in


_MOVES_UNSAID = tuple(
    Patch(module, "term_in", _without_moves) for module in (pulling, offset_store)
)


def _any_commit(original: Any) -> Any:
    def commit(self: ConsumerOffsets, group: str, topic: str, queue: int, offset: int) -> bool:
        known = self.progress.marks.get(GroupOffset(topic, group, queue))
        if known is not None and offset > known.offset:
            self.take_reset(group, topic, queue)
        done: bool = original(self, group, topic, queue, offset)
        return done

    return commit


def _uncounted(original: Any) -> Any:
    def rows_of(self: ConsumerOffsets, marks: Any, *, generations: bool) -> Any:
        return original(self, {} if generations else marks, generations=generations)

    return rows_of


def _as_often_as_before(original: Any) -> Any:
    def send_again(queue: Any, group: str, message: Any, properties: Any) -> Any:
        return original(queue, group, message, properties, deliveries=message.reconsume_times)

    return send_again


def _as_a_letter(original: Any) -> Any:
    def send_again(queue: Any, group: str, message: Any, properties: Any) -> Any:
        return original(queue, group, message, {**properties, names.WAIT: "false"})

    return send_again


def _twice(original: Any) -> Any:
    async def resend(core: Any, group: str, letter: Any, **options: Any) -> None:
        await original(core, group, letter, **options)
        await original(core, group, letter, **options)

    return resend


# Where members lose queues while they are at work.
_REBALANCES = {"gap_s": 2.0, "weights": NO_FAULTS | {"clients_cut_off": 6, "connections": 4}}

# Where masters lead without a slave, and are lost.
_ALONE = {
    "copies": 2,
    "slaves": 1,
    "safety_s": 40.0,
    "gap_s": 2.0,
    "patience_s": 0.5,
    "away": 0.6,
    "weights": NO_FAULTS | {"full_disk": 4, "slaves_cut_off": 4, "power_loss": 3},
}

# Name: (failure, found by, patches, scene, what replaces drawn values of the Plan besides).
_TABLE: dict[str, tuple[str, str, tuple[Patch, ...], str, dict[str, Any]]] = {
    "reply-to-another-request": (
        "a requester takes a reply for that of another of its requests",
        "I19: a reply to another request",
        (Patch(Requests, "on_reply", _next_one),),
        "replying",
        {},
    ),
    "reply-to-anyone": (
        "a broker passes a reply to any requester",
        "I19: it was taken, and its requester has nothing",
        (Patch(ClientTable, "producer", _anyone),),
        "replying",
        {},
    ),
    "polled-is-done": (
        "with auto_commit the messages of the last poll are committed, too",
        "I6: passed while its member works on them",
        (Patch(PollRound, "_settle", _last_poll_too),),
        "polling",
        {},
    ),
    "handed-over-as-done": (
        "a queue that goes to another member is committed as far as it was polled",
        "I6: passed while its member works on them",
        (Patch(PullConsumer, "give_up_queues", _all_polled),),
        "polling",
        _REBALANCES,
    ),
    "seek-unheard": (
        "a member that goes back in a queue polls on from where it was",
        "I6: elsewhere than sought",
        (Patch(PullConsumer, "_go_to", _nothing),),
        "polling",
        {},
    ),
    "pause-unheard": (
        "a queue that is left out is polled",
        "I6: polled, and paused",
        (Patch(PollRound, "pause", _nothing),),
        "polling",
        {},
    ),
    "reset-unheard": (
        "members are not told that the offset of their group was moved",
        "I6: not delivered since",
        (Patch(ConsumerOffsets, "move_for", _nothing),),
        "resetting",
        {},
    ),
    "reset-told-once": (
        "a member that does not get the answer never hears that the offset was moved",
        "I6: not delivered since; a connection breaks",
        (Patch(ConsumerOffsets, "move_for", _until_told),),
        "resetting",
        {},
    ),
    "reset-undone-by-a-commit": (
        "a commit counts that was made before its member heard of an order",
        "I6: not delivered since",
        (Patch(ConsumerOffsets, "commit", _any_commit), *_MOVES_UNSAID),
        "resetting",
        {},
    ),
    "resets-uncounted": (
        "no table says how often an offset was moved, so the greater one wins",
        "I6: not delivered since; or an order that is never known everywhere",
        (Patch(ConsumerOffsets, "rows_of", _uncounted),),
        "resetting",
        RESTARTS,
    ),
    "letter-counted": (
        "a letter that is sent again keeps its count of attempts",
        "I1: resent, and never delivered",
        (Patch(dead_letters, "send_again", _as_often_as_before),),
        "resending",
        {},
    ),
    "letter-without-copies": (
        "a letter that is sent again says that it waits for no copy, as retries do",
        "I1: resent, and never delivered; a promotion cuts it off",
        (Patch(dead_letters, "send_again", _as_a_letter),),
        "resending",
        _ALONE,
    ),
    "letter-resent-twice": (
        "two copies of a letter are sent, and one is told",
        "I1: delivered more often than told",
        (Patch(dead_letters, "resend", _twice),),
        "resending",
        {},
    ),
    "types-unchecked-in-batches": (
        "of a batch no message's type is looked at",
        "I3: of another type, and taken",
        (Patch(send, "check_types", _nothing),),
        "checking-types",
        {},
    ),
}
KIND_MUTANTS = {
    name: Mutant(name, failure, found_by, patches)
    for name, (failure, found_by, patches, _, _) in _TABLE.items()
}
KIND_BIAS: dict[str, dict[str, Any]] = {
    name: {"scenes": frozenset({scene}), **bias} for name, (*_, scene, bias) in _TABLE.items()
}
