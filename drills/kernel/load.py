"""Messages at a steady rate, and the moment each was acknowledged.

Bodies tell their number and are otherwise noise drawn from the seed, so that every byte of a
message can be checked from its number alone.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from saturnmq import Message, Producer
from saturnmq.client.producer.batch import SendHandle
from saturnmq.drills.kernel.mounts import undisturbed

TICK_S = 0.005
TOPIC = "power-cuts"
SETTLE_S = 30.0
SEND_TIMEOUT_S = 3.0


class AckedMessage(NamedTuple):
    """An acknowledged message: when (monotonic seconds), which, and where it lies."""

    at: float
    number: int
    queue_id: int
    queue_offset: int


class Bodies:
    """The body of each number."""

    def __init__(self, seed: int) -> None:
        self._noise = random.Random(seed).randbytes(4096)

    def __getitem__(self, number: int) -> bytes:
        start = number * 61 % 2048
        return b"%d " % number + self._noise[start : start + 20 + number * 37 % 300]

    def number(self, body: bytes) -> int | None:
        """The number of this message; None if it is none of ours."""
        head = body.split(b" ", 1)[0]
        number = int(head) if head.isdigit() else -1
        return number if number >= 0 and self[number] == body else None


class Load:
    """A producer in a thread of its own; `with` starts and ends it."""

    def __init__(self, nameservers: Sequence[str], rate: int, seed: int) -> None:
        self.bodies = Bodies(seed)
        self.acks: list[AckedMessage] = []
        self.refused: list[tuple[float, str]] = []  # when, and what was answered
        self.sent = 0
        self.seconds = 0.0
        self._rate = rate
        self._stop = threading.Event()
        self._idle = threading.Condition()
        self._producer = Producer(
            "power-cuts", nameservers, send_timeout=SEND_TIMEOUT_S, retries=0, compress_above=None
        )
        self._thread = threading.Thread(target=self._work, name="load", daemon=True)

    def __enter__(self) -> Load:
        with undisturbed():
            self._producer.start()
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.close(timeout=1.0)

    def stop(self) -> None:
        """No more messages; returns when those under way are answered."""
        self._stop.set()
        self._thread.join()
        with self._idle:
            if not self._idle.wait_for(lambda: self._open == 0, SETTLE_S):
                raise TimeoutError(f"{self._open} sends are unanswered after {SETTLE_S:.0f} s")

    def until_acked(self, count: int) -> None:
        """Wait for `count` acknowledgements."""
        with self._idle:
            if not self._idle.wait_for(lambda: len(self.acks) >= count, SETTLE_S):
                said = self.refused[-1][1] if self.refused else "nothing"
                raise TimeoutError(
                    f"{len(self.acks)} of {count} acknowledgements in {SETTLE_S:.0f} s; "
                    f"the last refusal: {said}"
                )

    @property
    def _open(self) -> int:
        return self.sent - len(self.acks) - len(self.refused)

    def _work(self) -> None:
        begin = time.monotonic()
        while not self._stop.wait(TICK_S):
            due = int((time.monotonic() - begin) * self._rate) + 1 - self.sent
            # Messages that a stalled broker delayed are sent over the next ticks, not at once.
            for _ in range(min(due, max(1, self._rate // 50))):
                self._send(self.sent)
                self.sent += 1
        self.seconds = time.monotonic() - begin

    def _send(self, number: int) -> None:
        handle = self._producer.send_async(Message(TOPIC, self.bodies[number]))
        handle.add_done_callback(lambda handle: self._settled(number, handle))

    def _settled(self, number: int, handle: SendHandle) -> None:
        at = time.monotonic()
        error = handle.exception()
        with self._idle:
            if error is not None:
                self.refused.append((at, f"{type(error).__name__}: {error}"))
            elif not (result := handle.result(0)).ok:
                self.refused.append((at, result.status.name))
            else:
                self.acks.append(
                    AckedMessage(at, number, result.queue.queue_id, result.queue_offset)
                )
            self._idle.notify_all()
