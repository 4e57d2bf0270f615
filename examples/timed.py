"""Messages for later: after a delay, at a moment, and one that is called off.

python examples/timed.py 127.0.0.1:9876

A reminder is sent for each order; the one of an order that is paid meanwhile is recalled.
"""

import datetime as dt
import sys
import time

from saturnmq import Message, Producer, PullConsumer, deliver_after, deliver_at


def main(nameserver: str, seconds: float = 3.0) -> None:
    with Producer("shop", nameserver) as producer:
        begun = time.time()
        paid = producer.send(deliver_after(Message("reminders", b"order 1"), seconds))
        producer.send(deliver_after(Message("reminders", b"order 2"), seconds))
        moment = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=2 * seconds)
        producer.send(deliver_at(Message("reminders", b"order 3"), moment))
        producer.recall(paid)

        consumer = PullConsumer("clerks", nameserver, from_beginning=True)
        consumer.subscribe("reminders")
        with consumer:
            left = 2
            while left:
                for message in consumer.poll(1.0):
                    late = time.time() - begun
                    print(f"{message.body.decode()} after {late:.0f} s")
                    left -= 1


if __name__ == "__main__":
    main(sys.argv[1])
