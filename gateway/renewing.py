"""Messages whose invisible time the server renews (`auto_renew`), for push consumers: a listener
may work on a message for longer than any time that was set before.

A renewal gives the message a new handle. Its client keeps the first one, which stays valid here
until the message is acknowledged, given back or forwarded: this table knows the present handle.
The times grow from renewal to renewal. After `RENEWED_MOST_S` the message waits once more, for the
time that the retry policy of its group has for this delivery, and comes again. When a client ends,
or is silent for too long, others get its messages at once. All this is tried again while a broker
is away, until the time of the message is over; only a broker's word that the handle is not valid
ends it before.

The table is in memory. If the node ends, the messages come again when their time is over.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from saturnmq.gateway.clients import Client
from saturnmq.gateway.handles import ReceiptHandle
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import InvalidParameter, MessageIllegal, NoMessage, SaturnError

log = logging.getLogger(__name__)

FIRST_MS = 60_000  # the invisible time of the pop itself
STEPS_MS = tuple(minutes * 60_000 for minutes in (1, 3, 5, 10, 30, 60))
RENEWED_MOST_S = 3 * 3600.0
AHEAD_S = 15.0  # so long before its time is over a message is renewed
LOOK_S = 5.0
AT_ONCE = 200  # renewals in one turn of the loop
RETURNED_MS = 1000  # after so long others get the messages of a client that has ended
PAUSE_MOST_S = 60.0  # between two tries to give a message back
INVALID = (InvalidParameter, MessageIllegal, NoMessage)
"""The answers of brokers to a handle that is not, or no longer, valid."""


@dataclass(slots=True, eq=False)
class Renewed:
    """A message that a client works on."""

    client: Client
    group: str
    topic: str
    handle: ReceiptHandle  # the present one
    failures: int  # deliveries before this one
    since: float
    over_at: float  # when others get the message, unless it is renewed
    step: int = 0
    asking: asyncio.Future[None] | None = None  # while it is being renewed


Change = Callable[[Renewed, int], Awaitable[ReceiptHandle]]
"""Give a message another invisible time, in milliseconds; the result is its new handle."""

LastWait = Callable[[Renewed], Awaitable[int]]
"""The time after which a message comes again that is renewed no more, in milliseconds."""


class Renewals:
    """The messages that are renewed, by their first handle. Loop thread only."""

    def __init__(self, runtime: Runtime, change: Change, last_wait: LastWait) -> None:
        self._runtime = runtime
        self._change = change
        self._last_wait = last_wait
        self._known: dict[str, Renewed] = {}
        self._of_client: dict[Client, dict[str, None]] = {}
        self._due: list[tuple[float, int, str]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._known)

    def begin(
        self, client: Client, group: str, topic: str, handle: ReceiptHandle, failures: int
    ) -> None:
        """A client got a message, for FIRST_MS; it was delivered `failures` times before."""
        text, now = str(handle), self._runtime.monotonic()
        over_at = now + FIRST_MS / 1000
        known = Renewed(client, group, topic, handle, failures, now, over_at)
        if client.gone.done():  # while the message was written
            self._runtime.spawn(self._return(known), name="renewal-end")
            return
        self._known[text] = known
        self._of_client.setdefault(client, {})[text] = None
        self._plan(text, over_at - AHEAD_S)

    def _plan(self, text: str, at: float) -> None:
        self._number += 1
        heapq.heappush(self._due, (at, self._number, text))

    async def present(self, text: str, handle: ReceiptHandle) -> ReceiptHandle:
        """The handle that is valid now for one that a client has."""
        known = self._known.get(text)
        if known is None:
            return handle
        if known.asking is not None:
            await asyncio.shield(known.asking)
        return known.handle

    def end(self, text: str) -> None:
        """The message of this handle is done, or its client set another time."""
        known = self._known.pop(text, None)
        if known is None:
            return
        of_client = self._of_client[known.client]
        del of_client[text]
        if not of_client:
            del self._of_client[known.client]

    async def run(self) -> None:
        """Renew until cancelled."""
        while True:
            await self._runtime.sleep(LOOK_S)
            now, number = self._runtime.monotonic(), 0
            while self._due and self._due[0][0] <= now:
                _, _, text = heapq.heappop(self._due)
                known = self._known.get(text)
                if known is None:
                    continue
                if now - known.since >= RENEWED_MOST_S:
                    log.warning(
                        "a client of group %s has worked on a message for %.0f s: it is not "
                        "renewed any more, and comes again",
                        known.group,
                        now - known.since,
                    )
                    self.end(text)
                    work = self._let_go(known, self._last_wait)
                    self._runtime.spawn(work, name="renewal-end")
                    continue
                known.asking = self._runtime.create_future()
                self._runtime.spawn(self._renew(text, known, known.asking), name="renewal")
                number += 1
                if not number % AT_ONCE:
                    await self._runtime.sleep(0)

    async def _renew(self, text: str, known: Renewed, asking: asyncio.Future[None]) -> None:
        invisible_ms = STEPS_MS[min(known.step, len(STEPS_MS) - 1)]
        try:
            known.handle = await self._change(known, invisible_ms)
        except SaturnError as error:
            log.info("a message of group %s is not renewed: %s", known.group, error)
            now = self._runtime.monotonic()
            if isinstance(error, INVALID) or now >= known.over_at:
                self.end(text)  # it was consumed otherwise, or comes again
            else:
                self._plan(text, now + LOOK_S)
        else:
            known.step += 1
            known.over_at = self._runtime.monotonic() + invisible_ms / 1000
            self._plan(text, known.over_at - AHEAD_S)
        finally:
            known.asking = None
            asking.set_result(None)

    def gone(self, client: Client) -> None:
        """A client has ended: others get its messages."""
        for text in list(self._of_client.get(client, ())):
            known = self._known[text]
            self.end(text)
            self._runtime.spawn(self._return(known), name="renewal-end")

    async def _return(self, known: Renewed) -> None:
        if known.asking is not None:
            await asyncio.shield(known.asking)
        await self._let_go(known, _soon)

    async def _let_go(self, known: Renewed, wait: LastWait) -> None:
        """Give a message that is renewed no more its last time."""
        pause_s = LOOK_S
        while True:
            try:
                await self._change(known, await wait(known))
                return
            except SaturnError as error:
                if isinstance(error, INVALID) or self._runtime.monotonic() >= known.over_at:
                    log.info("a message of group %s is not given back: %s", known.group, error)
                    return
            await self._runtime.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MOST_S)


async def _soon(_: Renewed) -> int:
    return RETURNED_MS
