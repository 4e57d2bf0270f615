"""The synchronous transaction producer: the blocking Producer with the transactions of
client/producer/transactions.py on its loop. The local transaction runs in the thread of the caller,
as connections to databases want; `check` runs in a thread of the client's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from saturnmq.client.blocking import Producer
from saturnmq.client.core import DEFAULT_NAMESERVER, ErrorListener
from saturnmq.client.loop_thread import LoopThread
from saturnmq.client.producer import transactions
from saturnmq.client.producer.batch import SendResult
from saturnmq.client.producer.engine import ProducerEngine
from saturnmq.client.producer.options import ProducerOptions
from saturnmq.client.producer.transactions import CheckListener, TransactionState
from saturnmq.client.tls import Tls
from saturnmq.client.tracing import Trace
from saturnmq.protocol.credentials import Credentials
from saturnmq.protocol.message import Message, MessageQueue
from saturnmq.runtime.errors import ClientClosed


class TransactionProducer(Producer):
    """Sends messages that count only if a local transaction does, and ordinary ones as well; any
    thread may call.

    with TransactionProducer("payers", "127.0.0.1:9876", check=check) as producer:
        with producer.transaction(Message("payments", b"...")):
            ...  # the local transaction
    """

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
    ) -> None:
        """ConfigError names a value that makes no sense.

        nameservers: "HOST:PORT[,...]" or a sequence of them
        check: called with a message whose transaction was left open; says how that ended. An
            `async` function runs on the client's loop, another one in a thread
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
        )
        self._check = check
        self._topics = tuple(topics)
        self._transactions: transactions.Transactions | None = None

    async def _make(self, thread: LoopThread) -> ProducerEngine:
        engine = await super()._make(thread)
        self._transactions = transactions.Transactions(
            engine.core,
            self.group,
            self._check,
            self._topics,
            self.options,
            trace=self._trace or False,
            namespace=self._namespace.name,
        )
        await self._transactions.start(engine)
        return engine

    async def _end(self, engine: ProducerEngine, timeout: float | None) -> None:
        if self._transactions is not None:
            await self._transactions.close()
        await super()._end(engine, timeout)

    def transaction(self, message: Message, *, queue: MessageQueue | None = None) -> Transaction:
        """A transaction for this message, to be used with `with`."""
        if self._transactions is None:
            raise ClientClosed("the producer is not started: use 'with' or call start()")
        self.engine.check_forked()
        return Transaction(self, transactions.Transaction(self._transactions, message, queue))

    def send_in_transaction(
        self,
        message: Message,
        local: Callable[[Message, Any], TransactionState],
        arg: Any = None,
        *,
        queue: MessageQueue | None = None,
    ) -> Transaction:
        """Store the half, call `local(message, arg)`, and end the transaction as that says; None
        is UNKNOWN. If it raises or returns something else, the error is raised here, and the
        transaction stays open: the broker will ask."""
        transaction = self.transaction(message, queue=queue).begin()
        try:
            state = transactions.said_by_local(local(message, arg))
        except BaseException:
            transaction.end(TransactionState.UNKNOWN)
            raise
        transaction.end(state)
        return transaction


class Transaction:
    """One transaction. As a context manager it commits at the end of the block, and rolls back if
    the block raises, unless the block ended it: with UNKNOWN, too, which leaves it to `check`."""

    def __init__(self, producer: TransactionProducer, target: transactions.Transaction) -> None:
        self._wait = producer._run
        self._target = target

    @property
    def message(self) -> Message:
        """The message that consumers get if it is committed."""
        return self._target.message

    @property
    def state(self) -> TransactionState:
        """The end that was asked for; UNKNOWN before."""
        return self._target.state

    @property
    def confirmed(self) -> bool:
        """Whether the broker has answered that it is ended so. If not, it will ask."""
        return self._target.confirmed

    @property
    def result(self) -> SendResult:
        """The place of the half; InvalidParameter before `begin`."""
        return self._target.result

    @property
    def transaction_id(self) -> str:
        """The id by which the broker asks for it: that of the message."""
        return self._target.transaction_id

    def begin(self) -> Transaction:
        """Store the half; `with` calls it."""
        self._wait(self._target.begin())
        return self

    def commit(self) -> None:
        """Let consumers have the message."""
        self._wait(self._target.commit())

    def rollback(self) -> None:
        """Drop the message."""
        self._wait(self._target.rollback())

    def end(self, state: TransactionState) -> None:
        """End it; with UNKNOWN the broker will ask. TransactionEnded: it has ended otherwise.
        TransactionFailed: the broker has lost the half. Other failures raise nothing, because the
        broker asks then: see `confirmed`."""
        self._wait(self._target.end(state))

    def __enter__(self) -> Transaction:
        return self.begin()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._wait(self._target.__aexit__(kind, error, trace))

    def __repr__(self) -> str:
        return repr(self._target)


__all__ = ["Transaction", "TransactionProducer"]
