"""Workers that share a topic without a rebalance: each message is received for a time, and
acknowledged when it is done.

    python examples/simple_consumer.py --nameserver 127.0.0.1:9876 --topic jobs --group workers

The program receives until no message came for a while, and prints how many it has done. A job that
takes long gets more time while it runs; one that fails is given back at once, for another attempt.
"""

from __future__ import annotations

import argparse

from saturnmq import ReceivedMessage, SimpleConsumer, errors

INVISIBLE_S = 30.0


def work(message: ReceivedMessage) -> None:
    """The job of one message: an exception means that it failed."""
    if message.body.startswith(b"hard") and message.reconsume_times == 0:
        raise ValueError(f"{message.body!r} fails at its first attempt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nameserver", default="127.0.0.1:9876")
    parser.add_argument("--topic", default="jobs")
    parser.add_argument("--group", default="workers")
    parser.add_argument("--idle", type=float, default=5.0, help="seconds without a message")
    options = parser.parse_args()
    done = failed = 0
    consumer = SimpleConsumer(options.group, options.nameserver, from_beginning=True)
    consumer.subscribe(options.topic)
    with consumer:
        while messages := consumer.receive(16, invisible_s=INVISIBLE_S, wait_s=options.idle):
            for message in messages:
                try:
                    work(message)
                except ValueError:
                    failed += 1
                    consumer.change_invisible_duration(message, 0.5)  # soon again
                    continue
                try:
                    consumer.ack(message)
                    done += 1
                except errors.NoMessage as late:
                    print(f"too late, another worker may have it: {late}")
    print(f"{done} done, {failed} attempts failed")


if __name__ == "__main__":
    main()
