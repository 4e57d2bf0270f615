"""The asynchronous transaction producer: a message that counts only if a local transaction does.

    async def check(message: ReceivedMessage) -> TransactionState:
        return COMMIT if await database.has(message.keys[0]) else ROLLBACK

    async with TransactionProducer("payers", check=check) as producer:
        async with producer.transaction(Message("payments", b"...", keys="4711")):
            await database.pay("4711")

The message is stored as a half, which no consumer sees; then the local transaction runs; then the
broker is told how it ended. If it is not told - the process died, the network was away - it asks
any producer of the group, and `check` says it from what the application has written down.

A half is sent once, and again only if it was refused. While its local transaction runs here, and
when its end is known here, the broker's question is answered without the application. A half that
was sent twice nevertheless is rolled back, if the broker says which of them it asks about.

Ordinary messages go as with any producer. The transactions stand beside its engine, on the same
connections; halves have an engine of their own, which does not try again.
"""

from __future__ import annotations

import enum
import inspect
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

from saturnmq.client.core import DEFAULT_NAMESERVER, ClientCore, ErrorListener
from saturnmq.client.option_checks import check_timeout, checked
from saturnmq.client.producer import at_exit
from saturnmq.client.producer.batch import SendResult
from saturnmq.client.producer.engine import ProducerEngine
from saturnmq.client.producer.options import ProducerOptions
from saturnmq.client.producer.producer import Producer
from saturnmq.client.tls import Tls
from saturnmq.client.tracing import Trace
from saturnmq.protocol import properties as names
from saturnmq.protocol.codes import STORED, RequestCode, ResponseCode
from saturnmq.protocol.credentials import Credentials
from saturnmq.protocol.frame import TRANSACTION_COMMIT, TRANSACTION_NONE, TRANSACTION_ROLLBACK
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.message import Message, MessageQueue, ReceivedMessage
from saturnmq.protocol.namespaces import namespace_of
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.topics import AUTO_CREATE_TOPIC
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import (
    InvalidParameter,
    SaturnError,
    TopicNotExist,
    TransactionEnded,
    TransactionFailed,
)

log = logging.getLogger(__name__)

KNOWN_MOST = 10_000  # ended transactions whose end is remembered
PAUSE_S = 0.1


class TransactionState(enum.Enum):
    """How a local transaction ended; UNKNOWN: ask later."""

    COMMIT = TRANSACTION_COMMIT
    ROLLBACK = TRANSACTION_ROLLBACK
    UNKNOWN = TRANSACTION_NONE


def _require_state(said: object) -> TransactionState:
    if not isinstance(said, TransactionState):
        raise InvalidParameter(f"{said!r} is no end of a transaction: give a TransactionState")
    return said


def said_by_local(said: object) -> TransactionState:
    """The end that a local transaction returned: None is UNKNOWN, as in RocketMQ's client.
    InvalidParameter: another value."""
    return TransactionState.UNKNOWN if said is None else _require_state(said)


CheckListener = Callable[[ReceivedMessage], TransactionState | Awaitable[TransactionState]]
LocalTransaction = Callable[[Message, Any], TransactionState | Awaitable[TransactionState]]


class Transaction:
    """One transaction. As a context manager it commits at the end of the block, and rolls back if
    the block raises, unless the block ended it: with UNKNOWN, too, which leaves it to `check`."""

    message: Message
    """The message that consumers get if it is committed."""
    state: TransactionState
    """The end that was asked for; UNKNOWN before."""
    confirmed: bool
    """Whether the broker has answered that it is ended so. If not, it will ask."""

    def __init__(self, owner: Transactions, message: Message, queue: MessageQueue | None) -> None:
        self.message = message
        self.state = TransactionState.UNKNOWN
        self.confirmed = False
        self._owner = owner
        self._queue = queue
        self._result: SendResult | None = None
        self._ended = False  # by UNKNOWN, too

    @property
    def result(self) -> SendResult:
        """The place of the half; InvalidParameter before `begin`."""
        if self._result is None:
            raise InvalidParameter("the transaction has not begun: use 'with' or call begin()")
        return self._result

    @property
    def transaction_id(self) -> str:
        """The id by which the broker asks for it: that of the message."""
        return self.result.message_id

    async def begin(self) -> Transaction:
        """Store the half; `async with` calls it."""
        if self._result is not None:
            raise InvalidParameter(f"transaction {self.transaction_id} has begun already")
        self._result = await self._owner.send_half(self, self._queue)
        return self

    async def commit(self) -> None:
        """Let consumers have the message."""
        await self.end(TransactionState.COMMIT)

    async def rollback(self) -> None:
        """Drop the message."""
        await self.end(TransactionState.ROLLBACK)

    async def end(self, state: TransactionState) -> None:
        """End it; with UNKNOWN the broker will ask. TransactionEnded: it has ended otherwise.
        TransactionFailed: the broker has lost the half. Other failures raise nothing, because the
        broker asks then: see `confirmed`."""
        _require_state(state)
        unique = self.transaction_id
        if self.state not in (TransactionState.UNKNOWN, state):
            raise InvalidParameter(
                f"transaction {unique} has ended by {self.state.name}: it cannot end "
                f"by {state.name} as well"
            )
        self.state = state
        self._ended = True
        await self._owner.end(self)

    async def __aenter__(self) -> Transaction:
        return await self.begin()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._ended:
            return  # within the block
        await self.end(TransactionState.COMMIT if error is None else TransactionState.ROLLBACK)

    def __repr__(self) -> str:
        known = "not begun" if self._result is None else self.transaction_id
        return f"Transaction({known}, {self.state.name}, confirmed={self.confirmed})"


class Transactions:
    """The transactions of one producer: their halves, their ends, and the questions of brokers.
    Loop thread only."""

    def __init__(
        self,
        core: ClientCore,
        group: str,
        check: CheckListener,
        topics: Sequence[str],
        options: ProducerOptions,
        *,
        trace: Trace,
        namespace: str,
    ) -> None:
        """`topics`: topics whose brokers may ask before anything is sent; `options`: those of the
        producer, of which halves have the time-out and the limits."""
        self.core = core
        self._namespace = namespace_of(namespace)
        self._group = self._namespace.wrap(group)
        self._check = check
        self._topics = tuple(topics)
        self._timeout = options.send_timeout
        self._halves = Producer(
            group,
            core=core,
            send_timeout=options.send_timeout,
            retries=0,
            delivery_timeout=options.send_timeout,
            max_message_bytes=options.max_message_bytes,
            compress_above=options.compress_above,
            trace=trace,
            namespace=namespace,
        )
        self._known: OrderedDict[str, Transaction] = OrderedDict()  # open ones and ended ones
        self._ordinary: ProducerEngine | None = None

    async def start(self, ordinary: ProducerEngine) -> None:
        """Become one whom brokers may ask, in the group of `ordinary`, which was started."""
        self._ordinary = ordinary
        await self._halves.start()
        at_exit.forget(self._halves._settle)  # somebody waits for each half
        self.core.register_producer(self._group, self)
        for topic in (*self._topics, AUTO_CREATE_TOPIC):
            try:
                await self.core.route(self._namespace.wrap(topic))
            except SaturnError as error:
                log.debug("no broker of %s may ask yet: %s", topic, error)
        await self.core.heartbeat_now()

    async def close(self) -> None:
        """Leave the group. Brokers ask another member about transactions that are open."""
        await self._halves.close()

    def on_reply(self, ext: Mapping[str, str], body: bytes) -> None:
        """The reply to a request of the ordinary engine (326)."""
        if self._ordinary is not None:
            self._ordinary.on_reply(ext, body)

    async def run(
        self,
        message: Message,
        local: LocalTransaction,
        arg: Any,
        queue: MessageQueue | None,
    ) -> Transaction:
        """A transaction from its half to its end, which `local` says."""
        transaction = await Transaction(self, message, queue).begin()
        try:
            state = said_by_local(await self._call(local, message, arg))
        except BaseException:
            self._leave_open(transaction)
            raise
        await transaction.end(state)
        return transaction

    # the half

    async def send_half(self, transaction: Transaction, queue: MessageQueue | None) -> SendResult:
        given = transaction.message
        message = Message(given.topic, given.body, properties=given.properties, flag=given.flag)
        message.properties[names.TRAN_MSG] = "true"
        message.properties[names.PGROUP] = self._group
        runtime = self.core.runtime
        deadline = runtime.monotonic() + self._timeout
        while True:
            try:
                result = await self._halves.send(message, queue=queue)
                break
            except SaturnError as error:
                refused = error.retriable and error.outcome == "rejected"
                if not refused or runtime.monotonic() + PAUSE_S >= deadline:
                    raise
            await runtime.sleep(PAUSE_S)
        self._known[result.message_id] = transaction
        if len(self._known) > KNOWN_MOST:
            self._known.popitem(last=False)
        return result

    # the end

    def _leave_open(self, transaction: Transaction) -> None:
        """Nobody here knows how it ended: its check must say."""
        self._known.pop(transaction.transaction_id, None)

    async def end(self, transaction: Transaction) -> None:
        """Tell the broker of the half how `transaction` ended."""
        result, core = transaction.result, self.core
        if transaction.state is TransactionState.UNKNOWN:
            self._leave_open(transaction)
            return
        deadline = core.runtime.monotonic() + self._timeout
        ext = {
            "tranStateTableOffset": str(result.queue_offset),
            "commitLogOffset": str(int(result.offset_message_id[-16:], 16)),
            "msgId": result.message_id,
            "transactionId": result.message_id,
        }
        while True:
            try:
                address = core.master_address(result.queue.broker_name)
                reply = await self._tell(address, ext, transaction.message, transaction.state)
                transaction.confirmed = reply.code == ResponseCode.SUCCESS
                return
            except (TransactionEnded, TransactionFailed, TopicNotExist):
                raise
            except SaturnError as error:
                log.debug("the end of %s is not known to its broker: %s", transaction, error)
                core.refresh_soon(self._namespace.wrap(transaction.message.topic))
                if core.runtime.monotonic() + PAUSE_S >= deadline:
                    return
            await core.runtime.sleep(PAUSE_S)

    async def _tell(
        self,
        address: str,
        ext: dict[str, str],
        message: Message | ReceivedMessage,
        state: TransactionState,
        *,
        asked: bool = False,
    ) -> Command:
        self._halves.engine.transaction_ended(
            message, ext["transactionId"], state.value, address, asked=asked
        )
        more = {
            "producerGroup": self._group,
            "commitOrRollback": str(state.value),
            "fromTransactionCheck": "true" if asked else "false",
        }
        command = Command.request(RequestCode.END_TRANSACTION, ext | more)
        return await self.core.invoke(address, command, self._timeout, STORED)

    # questions

    def check_transaction(self, ext: dict[str, str], frame: bytes, address: str) -> None:
        """CHECK_TRANSACTION_STATE 39: the broker at `address` asks."""
        message = decode_frames(frame, False, ext.get("bname", ""))[0]
        message.topic = self._namespace.plain(message.topic)
        if message.properties.get(names.PGROUP) == self._group:
            work = partial(self._answer, ext, message, address)
            self.core.tasks.once(work, name="check a transaction")

    async def _answer(self, ext: dict[str, str], message: ReceivedMessage, address: str) -> None:
        known = self._known.get(ext.get("transactionId", ""))
        if known is None:
            state = await self._call(self._check, message)
            if not isinstance(state, TransactionState):
                raise InvalidParameter(f"check says {state!r}: it must say a TransactionState")
        elif self._is_another(known, message):
            state = TransactionState.ROLLBACK
        else:
            state = known.state
        if state is TransactionState.UNKNOWN:
            return  # the broker asks again
        which = ("tranStateTableOffset", "commitLogOffset", "msgId", "transactionId")
        place = {name: ext.get(name, "") for name in which}
        try:
            await self._tell(address, place, message, state, asked=True)
        except SaturnError as error:
            log.debug("the answer for %s did not reach %s: %s", message.message_id, address, error)

    @staticmethod
    def _is_another(known: Transaction, message: ReceivedMessage) -> bool:
        """Whether a broker asks about another half with the same id: the one of an earlier attempt,
        which was stored although nobody heard of it. RocketMQ's brokers do not say which."""
        root = message.properties.get(names.TRAN_PREPARED_QUEUE_OFFSET)
        if root is None:
            return False
        result = known.result
        return (message.broker_name, root) != (result.queue.broker_name, str(result.queue_offset))

    async def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        """The result of the application's function; one that is not `async` runs in a thread."""
        if inspect.iscoroutinefunction(function):
            return await function(*args)
        result = await self.core.runtime.run_blocking(function, *args)
        return await result if inspect.isawaitable(result) else result


class TransactionProducer(Producer):
    """Sends messages that count only if a local transaction does, and ordinary ones as well; used
    on one event loop.

    async with TransactionProducer("payers", "127.0.0.1:9876", check=check) as producer:
        async with producer.transaction(Message("payments", b"...")):
            ...  # the local transaction
    """

    @checked
    def __init__(
        self,
        group: str,
        nameservers: str | Sequence[str] = DEFAULT_NAMESERVER,
        *,
        check: CheckListener,
        topics: Sequence[str] = (),
        send_timeout: float = ProducerOptions.send_timeout,
        max_message_bytes: int = ProducerOptions.max_message_bytes,
        compress_above: int | None = ProducerOptions.compress_above,
        trace: Trace = False,
        namespace: str = "",
        tls: Tls = None,
        credentials: Credentials | None = None,
        on_error: ErrorListener | None = None,
        core: ClientCore | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        """ConfigError names a value that makes no sense.

        nameservers: "HOST:PORT[,...]" or a sequence of them
        check: called with a message whose transaction was left open; says how that ended. An
            `async` function runs on the loop, another one in a thread
        topics: topics whose brokers may ask from the start on, before anything is sent
        send_timeout: seconds to store a half, and to tell the broker how it ended; of an ordinary
            message, those of one attempt
        max_message_bytes: largest size of a body; the broker has a limit too, maxMessageSize
        compress_above: bodies from so many bytes on are compressed; None is never
        trace: True writes a trace of each message and each end to RMQ_SYS_TRACE_TOPIC; or the topic
        namespace: topics and groups are NAMESPACE%NAME for the brokers, as with RocketMQ's clients
        tls: True, or the context, encrypts; None is as SATURNMQ_CLIENT_TLS says
        credentials: the user; None is as SATURNMQ_ACCESS_KEY and SATURNMQ_SECRET_KEY say
        on_error: called with each error that no call of the application can raise; it runs on the
            client's loop and must return at once
        """
        super().__init__(
            group,
            nameservers,
            send_timeout=send_timeout,
            max_message_bytes=max_message_bytes,
            compress_above=compress_above,
            trace=trace,
            namespace=namespace,
            tls=tls,
            credentials=credentials,
            on_error=on_error,
            core=core,
            runtime=runtime,
        )
        self._transactions = Transactions(
            self.core, group, check, topics, self.options, trace=trace, namespace=namespace
        )

    async def start(self) -> Self:
        """Connect, and become one whom brokers may ask; called by `async with`."""
        await super().start()
        await self._transactions.start(self.engine)
        return self

    async def close(self, timeout: float | None = 30.0) -> None:
        """Flush, and leave the group. Brokers ask another member about transactions that are
        open."""
        check_timeout(timeout)
        await self._transactions.close()
        await super().close(timeout)

    def transaction(self, message: Message, *, queue: MessageQueue | None = None) -> Transaction:
        """A transaction for this message, to be used with `async with`."""
        return Transaction(self._transactions, message, queue)

    async def send_in_transaction(
        self,
        message: Message,
        local: LocalTransaction,
        arg: Any = None,
        *,
        queue: MessageQueue | None = None,
    ) -> Transaction:
        """Store the half, call `local(message, arg)`, and end the transaction as that says; None
        is UNKNOWN. If it raises or returns something else, the error is raised here, and the
        transaction stays open: the broker will ask."""
        return await self._transactions.run(message, local, arg, queue)


__all__ = ["Transaction", "TransactionProducer", "TransactionState"]
