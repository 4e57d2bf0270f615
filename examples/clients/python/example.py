"""Three messages through RocketMQ's own Python client.

    pip install rocketmq-python-client
    python example.py 127.0.0.1:8081 greetings

The endpoint is the gRPC address of any node. This client speaks plain text; with `tls_enable=True`
it checks the certificate of the node.
"""

import sys

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)

COUNT = 3
INVISIBLE_S = 30  # the time in which a message is acknowledged, or it comes again


def main(endpoint: str, topic: str) -> None:
    configuration = ClientConfiguration(endpoint, Credentials())
    producer = Producer(configuration, (topic,))
    consumer = SimpleConsumer(configuration, "python-readers", {topic: FilterExpression("*")})
    producer.startup()
    consumer.startup()
    for number in range(COUNT):
        message = Message()
        message.topic, message.tag, message.body = topic, "polite", b"hello %d" % number
        print("sent", producer.send(message).message_id)
    received = 0
    while received < COUNT:
        for message in consumer.receive(COUNT, INVISIBLE_S):
            print("received", message.body.decode())
            consumer.ack(message)
            received += 1
    consumer.shutdown()
    producer.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
