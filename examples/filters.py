"""Consumers that want a part of a topic: by tags, and by a condition over properties.

python examples/filters.py 127.0.0.1:9876

The broker filters, so that nothing travels in vain. A tag is one word of a message; a condition is
RocketMQ's SQL92 over the properties of the message and its tag (TAGS).
"""

import sys

from saturnmq import Message, Producer, PullConsumer, Sql

TOPIC = "orders"
ORDERS = (
    ("order 1", "new", {"price": "40", "region": "eu"}),
    ("order 2", "new", {"price": "250", "region": "us"}),
    ("order 3", "changed", {"price": "900", "region": "eu"}),
    ("order 4", "cancelled", {"price": "120", "region": "eu"}),
)


def read(nameserver: str, group: str, wanted: str | Sql) -> list[str]:
    """All messages of the topic that `wanted` selects."""
    found: list[str] = []
    consumer = PullConsumer(group, nameserver, from_beginning=True)
    consumer.subscribe(TOPIC, wanted)
    with consumer:
        while messages := consumer.poll(2.0):
            found += [message.body.decode() for message in messages]
    return sorted(found)


def main(nameserver: str) -> None:
    with Producer("shop", nameserver) as producer:
        for body, tag, properties in ORDERS:
            producer.send(Message(TOPIC, body.encode(), tag=tag, properties=properties))
    print("by tags:", ", ".join(read(nameserver, "packers", "new || changed")))
    dear = Sql("price > 100 AND region = 'eu' AND TAGS <> 'cancelled'")
    print("by a condition:", ", ".join(read(nameserver, "auditors", dear)))


if __name__ == "__main__":
    main(sys.argv[1])
