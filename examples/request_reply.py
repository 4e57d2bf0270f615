"""A request and its reply: one program asks, another one works and answers.

python examples/request_reply.py 127.0.0.1:9876

Both sides are in this file: the consumer replies to each question with the sum of its numbers.
"""

import json
import sys

from saturnmq import Message, Producer, PushConsumer, ReceivedMessage


def main(nameserver: str) -> None:
    with Producer("adders", nameserver) as replier:

        def add(message: ReceivedMessage) -> None:
            numbers = json.loads(message.body)
            replier.reply(message, str(sum(numbers)).encode())

        consumer = PushConsumer("adders", nameserver, listener_one=add, from_beginning=True)
        consumer.subscribe("sums")
        with consumer, Producer("askers", nameserver) as producer:
            for numbers in ([1, 2, 3], [20, 22]):
                question = Message("sums", json.dumps(numbers).encode())
                reply = producer.request(question, timeout=20.0)
                print(numbers, "->", reply.body.decode())


if __name__ == "__main__":
    main(sys.argv[1])
