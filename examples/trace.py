"""The trace of a message: who sent it, who consumed it, and how long each took.

python examples/trace.py 127.0.0.1:9876

A producer and a consumer write traces, in a namespace that keeps this program's topics apart; an
admin reads them by the message's id.
"""

import sys
import threading

from saturnmq import Admin, Message, Producer, PushConsumer, ReceivedMessage


def main(nameserver: str) -> None:
    consumed = threading.Event()

    def work(message: ReceivedMessage) -> None:
        print("consumed from", message.topic)
        consumed.set()

    consumer = PushConsumer(
        "readers", nameserver, listener_one=work, trace=True, namespace="example"
    )
    consumer.subscribe("orders")
    with Producer("senders", nameserver, trace=True, namespace="example") as producer, consumer:
        sent = producer.send(Message("orders", b"order 1", keys="order-1"))
        consumed.wait(30)
    # Both have sent their traces when they closed.
    with Admin(nameserver) as admin:
        for record in admin.message_trace(sent.message_id):
            print(record.kind.value, record.group, "ok" if record.success else "failed")


if __name__ == "__main__":
    main(sys.argv[1])
