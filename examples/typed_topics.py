"""Topics that say which messages they are for: types and attributes.

python examples/typed_topics.py 127.0.0.1:9876

A broker that compares types (`enableTopicMessageTypeCheck=true`) refuses a message of another type;
one that does not, as RocketMQ's brokers by default, takes it. Clients of the gRPC API look at the
type as well, before they send.
"""

import sys

from saturnmq import Admin, Message, Producer, deliver_after, errors


def main(nameserver: str) -> None:
    with Admin(nameserver) as admin:
        admin.create_topic("invoices", queues=2)  # NORMAL unless it says otherwise
        admin.create_topic("moves", queues=2, message_type="FIFO")
        admin.create_topic(
            "reminders", queues=2, message_type="DELAY", attributes={"reserve.time": "3600000"}
        )
        with Producer("office", nameserver) as producer:
            for message in (
                Message("invoices", b"number 1"),
                Message("moves", b"e2 e4", sharding_key="game-1"),
                deliver_after(Message("reminders", b"pay"), 1),
                Message("moves", b"e7 e5"),  # without a key no order is kept
            ):
                try:
                    producer.send(message)
                    print(f"{message.topic}: {message.body.decode()!r} is taken")
                except errors.MessageIllegal:
                    print(f"{message.topic}: {message.body.decode()!r} is of another type")

        admin.alter_topic("reminders", attributes={"reserve.time": None})  # remove it
        for topic in ("invoices", "moves", "reminders"):
            (settings, *_) = admin.topic_settings(topic).values()
            shown = ", ".join(f"{name}={value}" for name, value in settings.attributes.items())
            print(f"{topic}: {shown or 'no attributes, so NORMAL'}")


if __name__ == "__main__":
    main(sys.argv[1])
