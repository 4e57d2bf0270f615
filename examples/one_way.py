"""Readings of a sensor, sent one-way: no acknowledgement, no repetition, no wait.

python examples/one_way.py 127.0.0.1:9876

One-way is for messages of which some may be lost. The broker answers nothing, so a message that it
refuses, or that is under way when it dies, is gone without a word. The summary at the end is worth
a wait: it is sent with an acknowledgement.
"""

import sys

from saturnmq import Admin, Message, Producer, PullConsumer

TOPIC = "readings"
READINGS = (20.5, 20.7, 21.0, 21.2)


def main(nameserver: str) -> None:
    with Admin(nameserver) as admin:
        admin.create_topic(TOPIC, queues=1)
    with Producer("sensor", nameserver) as producer:
        for degrees in READINGS:
            producer.send_oneway(Message(TOPIC, f"{degrees} degrees".encode()))
        producer.send(Message(TOPIC, f"{len(READINGS)} readings".encode()))

    consumer = PullConsumer("display", nameserver, from_beginning=True)
    consumer.subscribe(TOPIC)
    with consumer:
        shown = 0
        while shown <= len(READINGS):
            for message in consumer.poll():
                print(message.body.decode())
                shown += 1


if __name__ == "__main__":
    main(sys.argv[1])
