"""The events of each account in their order: a sharding key, and consumers that keep the order.

python examples/fifo.py 127.0.0.1:9876

All events of an account lie in one queue. Two members share the queues; a queue is consumed by one
of them at a time, one message after the other. A withdrawal is refused at first, because its
account is locked for a moment: its queue waits, and nothing overtakes it.
"""

import collections
import sys
import threading

from saturnmq import ConsumeResult, Message, Producer, PushConsumer, ReceivedMessage

TOPIC = "accounts"
EVENTS = ("opened", "paid in 100", "withdrew 30", "closed")
ACCOUNTS = ("anne", "bert", "carl")


def main(nameserver: str) -> None:
    with Producer("counter", nameserver) as producer:
        for event in EVENTS:
            for account in ACCOUNTS:
                message = Message(TOPIC, event.encode(), keys=account)
                producer.send(message, sharding_key=account)

    books: dict[str, list[str]] = collections.defaultdict(list)
    locked = {"bert"}
    left = threading.Semaphore(0)

    def enter(message: ReceivedMessage) -> ConsumeResult:
        account, event = message.keys[0], message.body.decode()
        if event.startswith("withdrew") and account in locked:
            locked.discard(account)
            return ConsumeResult.SUSPEND  # the same message again, soon
        books[account].append(event)
        left.release()
        return ConsumeResult.SUCCESS

    members = [
        PushConsumer(
            "bookkeepers", nameserver, listener_one=enter, ordered=True, from_beginning=True
        )
        for _ in range(2)
    ]
    for member in members:
        member.subscribe(TOPIC)
    with members[0], members[1]:
        for _ in range(len(EVENTS) * len(ACCOUNTS)):
            left.acquire()
    for account, events in sorted(books.items()):
        print(f"{account}: {', '.join(events)}")


if __name__ == "__main__":
    main(sys.argv[1])
