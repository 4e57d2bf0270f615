"""The traces of a consumer: SubBefore for each message that the application gets, SubAfter when it
is done with it, as RocketMQ's clients write them (protocol/trace.py).

A listener that traces stands in place of the application's, which so costs nothing without traces.
The messages of one call share its time among them. Nobody says when polled messages are consumed,
so a poll leaves both records at once, the second one as a success; RocketMQ's
DefaultLitePullConsumer does the same. A message that is received for a time leaves its second
record when it is acknowledged or given up, and none when its time runs out. A message whose broker
said TRACE_ON=false leaves no trace.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

from saturnmq.client.consumer.listening import Listener, Listeners, OneListener, Verdict, is_async
from saturnmq.client.consumer.results import ConsumeResult
from saturnmq.client.core import ClientCore
from saturnmq.client.tracing import Trace, Tracer, topic_of
from saturnmq.protocol import properties as names
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.protocol.popped import handle_of
from saturnmq.protocol.trace import DEFAULT_REGION, ContextCode, TraceKind, TraceRecord

RECEIVED_MOST = 65_536  # messages of which the second record is still to come


class _Call(NamedTuple):
    """A call of the listener that is under way."""

    began_ms: int
    messages: int
    records: list[TraceRecord]  # SubBefore


class ConsumptionTraces:
    """Makes listeners that trace, and traces what is polled. Any thread; begin() and close() on
    the loop's."""

    def __init__(self, core: ClientCore, group: str, trace: Trace) -> None:
        self._tracer = tracer = Tracer(core, group, "SUB", topic_of(trace))
        self.begin, self.close = tracer.begin, tracer.close

    def polled(self, messages: Sequence[ReceivedMessage]) -> None:
        """The application polled `messages` of one queue."""
        if messages:
            self._after(self._before(messages), ContextCode.SUCCESS)

    def around(self, given: Listeners) -> Listeners:
        """The listeners to call in place of those that were given."""
        many, one = given
        return (
            None if many is None else self._around_many(many),
            None if one is None else self._around_one(one),
        )

    def _around_many(self, listener: Listener) -> Listener:
        if is_async(listener):

            async def traced_async(messages: list[ReceivedMessage]) -> Verdict:
                call = self._before(messages)
                try:
                    verdict = await cast(Awaitable[Verdict], listener(messages))
                except BaseException:
                    self._after(call, ContextCode.EXCEPTION)
                    raise
                self._after(call, _code(verdict))
                return verdict

            return traced_async

        def traced(messages: list[ReceivedMessage]) -> Verdict | Awaitable[Verdict]:
            call = self._before(messages)
            try:
                verdict = listener(messages)
            except BaseException:
                self._after(call, ContextCode.EXCEPTION)
                raise
            self._after(call, _code(verdict))
            return verdict

        return traced

    def _around_one(self, listener: OneListener) -> OneListener:
        if is_async(listener):

            async def awaited(messages: list[ReceivedMessage]) -> Verdict:
                return await cast(Awaitable[Verdict], listener(messages[0]))

            many = self._around_many(awaited)

            async def traced_async(message: ReceivedMessage) -> Verdict:
                return await cast(Awaitable[Verdict], many([message]))

            return traced_async
        many = self._around_many(lambda messages: listener(messages[0]))
        return lambda message: many([message])

    def _before(self, messages: Sequence[ReceivedMessage]) -> _Call:
        tracer = self._tracer
        now, request = tracer.now_ms(), tracer.request_id()
        records = [
            TraceRecord(
                TraceKind.SUB_BEFORE,
                message.message_id,
                group=tracer.group,
                timestamp_ms=now,
                region=message.properties.get(names.MSG_REGION, DEFAULT_REGION),
                keys=message.properties.get(names.KEYS, ""),
                request_id=request,
                retries=message.reconsume_times,
            )
            for message in messages
            if message.properties.get(names.TRACE_ON) != "false"
        ]
        for record in records:
            tracer.add(record)
        return _Call(now, len(messages), records)

    def _after(self, call: _Call, code: ContextCode) -> None:
        now = self._tracer.now_ms()
        for record in call.records:
            self._tracer.add(
                replace(
                    record,
                    kind=TraceKind.SUB_AFTER,
                    timestamp_ms=now,
                    cost_ms=max(now - call.began_ms, 0) // call.messages,
                    success=code == ContextCode.SUCCESS,
                    context_code=code,
                )
            )


class ReceiptTraces(ConsumptionTraces):
    """The traces of messages that are received for a time; loop thread only."""

    def __init__(self, core: ClientCore, group: str, trace: Trace) -> None:
        super().__init__(core, group, trace)
        # By the place of the message, the oldest first.
        self._received: OrderedDict[tuple[object, ...], _Call] = OrderedDict()

    def received(self, messages: Sequence[ReceivedMessage]) -> None:
        """The application received `messages`, to end each for itself."""
        for message in messages:
            self._received[_place(message)] = self._before([message])
            if len(self._received) > RECEIVED_MOST:
                self._received.popitem(last=False)

    def finished(self, messages: Sequence[ReceivedMessage], code: ContextCode) -> None:
        """The application is done with `messages`. Those that another consumer received leave no
        record here."""
        for message in messages:
            call = self._received.pop(_place(message), None)
            if call is not None:
                self._after(call, code)


def _place(message: ReceivedMessage) -> tuple[object, ...]:
    """Where the message is, which a change of its invisible time leaves as it is."""
    handle = handle_of(message)
    return message.topic, handle.kind, handle.broker, handle.queue_id, handle.offset


def _code(verdict: object) -> ContextCode:
    done = verdict is None or verdict is ConsumeResult.SUCCESS
    return ContextCode.SUCCESS if done else ContextCode.FAILED
