"""Exactly once into a database: offsets that lie beside the results, assigned queues, and a seek.

python examples/own_offsets.py 127.0.0.1:9876 FILE

The results of messages and the offset behind them are written in one transaction of a database, so
neither is there without the other. A reader that dies between two messages goes on exactly there.
The brokers know no offsets of this group. In the end an audit seeks the beginning and adds
everything up once more.
"""

import sqlite3
import sys
from collections.abc import Mapping

from saturnmq import Admin, Message, MessageQueue, Producer, PullConsumer

TOPIC, GROUP = "takings", "ledger"
TAKINGS = (20, 5, 40, 15)


class Ledger:
    """The database. It is the consumer's offset store: `load` and `save` are called by it."""

    def __init__(self, file: str) -> None:
        # The client calls from a thread of its own, and waits for nobody who waits for it.
        self.database = sqlite3.connect(file, check_same_thread=False)
        with self.database:
            self.database.execute("create table if not exists takings (amount integer)")
            self.database.execute(
                "create table if not exists offsets (queue text primary key, offset integer)"
            )

    def load(self, queue: MessageQueue) -> int | None:
        query = "select offset from offsets where queue = ?"
        row = self.database.execute(query, (str(queue),)).fetchone()
        return None if row is None else row[0]

    def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        rows = [(str(queue), offset) for queue, offset in offsets.items()]
        self.database.executemany("insert or replace into offsets values (?, ?)", rows)

    def total(self) -> int:
        return self.database.execute("select coalesce(sum(amount), 0) from takings").fetchone()[0]


def read(nameserver: str, queues: list[MessageQueue], ledger: Ledger, dies_at: int | None) -> None:
    """Add messages to the ledger, until they are all there or the reader dies at one of them."""
    consumer = PullConsumer(
        GROUP, nameserver, from_beginning=True, auto_commit=False, offset_store=ledger
    )
    consumer.assign(queues)
    with consumer:
        while ledger.total() < sum(TAKINGS):
            for message in consumer.poll(max_messages=1):
                amount = int(message.body)
                with ledger.database:  # one transaction
                    ledger.database.execute("insert into takings values (?)", (amount,))
                    if amount == dies_at:
                        raise RuntimeError(f"died at {amount}")
                    consumer.commit()  # calls save


def main(nameserver: str, file: str) -> None:
    with Admin(nameserver) as admin:
        admin.create_topic(TOPIC, queues=1)
        queues = [row.queue for row in admin.describe_topic(TOPIC)]
    with Producer("till", nameserver) as producer:
        for amount in TAKINGS:
            producer.send(Message(TOPIC, str(amount).encode()))

    ledger = Ledger(file)
    try:
        read(nameserver, queues, ledger, dies_at=40)
    except RuntimeError as problem:
        print(f"{problem}, with {ledger.total()} in the ledger")
    read(nameserver, queues, ledger, dies_at=None)
    print(f"{ledger.total()} in the ledger")

    auditor = PullConsumer("audit", nameserver, auto_commit=False)
    auditor.assign(queues)
    with auditor:
        auditor.seek(queues[0], 0)
        total = count = 0
        while count < len(TAKINGS):
            for message in auditor.poll():
                total += int(message.body)
                count += 1
    print(f"{total} by the audit")


if __name__ == "__main__":
    main(*sys.argv[1:3])
