"""Failures: what comes again, when, and what is given up.

python examples/retries.py 127.0.0.1:9876

A payment that fails for now comes again after a second, one that can never succeed is a dead letter
at once.
"""

import sys
import threading

from saturnmq import Admin, Message, Producer, PushConsumer, ReceivedMessage, Retry

LATER = Retry(delay_level=1)  # a second; Retry() waits longer with each attempt
NEVER = Retry(delay_level=-1)


def main(nameserver: str) -> None:
    done = threading.Event()

    def pay(message: ReceivedMessage) -> Retry | None:
        payment, attempt = bytes(message.body).decode(), message.reconsume_times + 1
        if payment == "to nobody":
            print(f"{payment}: given up")
            return NEVER
        if payment == "to a busy bank" and attempt == 1:
            print(f"{payment}: later")
            return LATER
        print(f"{payment}: paid, attempt {attempt}")
        if attempt > 1:
            done.set()
        return None

    with Admin(nameserver) as admin:
        admin.create_topic("transfers", queues=1)
        with Producer("shop", nameserver) as producer:
            for payment in ("to a friend", "to nobody", "to a busy bank"):
                producer.send(Message("transfers", payment.encode()))
        consumer = PushConsumer(
            "payers", nameserver, listener_one=pay, from_beginning=True, consume_threads=1
        )  # one thread prints a line at a time
        consumer.subscribe("transfers")
        with consumer:
            done.wait(60)
        letters = [bytes(letter.body).decode() for letter in admin.dead_letters("payers")]
        print("dead letters:", ", ".join(letters))


if __name__ == "__main__":
    main(sys.argv[1])
