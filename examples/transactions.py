"""Payments in a database, each with one message: no message without its payment, and none missing.

python examples/transactions.py 127.0.0.1:9876 payments.db

Accounts are in SQLite. A payment and its message are one transaction: the message counts only when
the database has committed. One payment is refused. After another one the program "forgets" to tell
the broker; the broker asks, and the database has the answer.
"""

import sqlite3
import sys

from saturnmq import (
    Message,
    PullConsumer,
    ReceivedMessage,
    TransactionProducer,
    TransactionState,
)

TOPIC = "payments"


def database(path: str) -> sqlite3.Connection:
    """A connection; each thread has its own."""
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("CREATE TABLE IF NOT EXISTS payments (id TEXT PRIMARY KEY, cents INT)")
    return connection


def pay(connection: sqlite3.Connection, number: str, cents: int) -> None:
    """The local transaction."""
    with connection:
        if cents > 1000:
            raise ValueError(f"payment {number} is over the limit")
        connection.execute("INSERT INTO payments VALUES (?, ?)", (number, cents))


def main(nameserver: str, path: str) -> set[str]:
    """Return the payments that a consumer was told of."""
    connection = database(path)

    def check(message: ReceivedMessage) -> TransactionState:
        """The broker asks: was this payment made? It runs in a thread of the client's."""
        own = database(path)
        row = own.execute("SELECT 1 FROM payments WHERE id = ?", (message.keys[0],)).fetchone()
        own.close()
        return TransactionState.COMMIT if row else TransactionState.ROLLBACK

    with TransactionProducer("cashiers", nameserver, check=check) as producer:
        for number, cents in (("a", 250), ("b", 5000), ("c", 700)):
            message = Message(TOPIC, str(cents).encode(), keys=number)
            try:
                with producer.transaction(message):
                    pay(connection, number, cents)
            except ValueError as refused:
                print(f"not sent: {refused}")

        forgotten = producer.transaction(Message(TOPIC, b"900", keys="d")).begin()
        pay(connection, "d", 900)
        forgotten.end(TransactionState.UNKNOWN)  # as if the program had died here

        told: set[str] = set()
        consumer = PullConsumer("bookkeepers", nameserver, consume_from="first")
        consumer.subscribe(TOPIC)
        with consumer:
            while "d" not in told:
                for received in consumer.poll(1.0):
                    told.add(received.keys[0])
                    print(f"payment {received.keys[0]}: {received.body.decode()} cents")
    connection.close()
    return told


if __name__ == "__main__":
    main(*sys.argv[1:3])
