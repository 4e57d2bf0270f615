"""Messages that cannot be consumed now: dead letters, a look at them, and another chance.

python examples/dead_letters.py 127.0.0.1:9876

An invoice in a currency without a rate cannot be paid, so its listener gives it up at once. (A
listener that fails otherwise gets its message again after 10 s, and later each time; after the last
attempt of its group the message is a dead letter, too.) When the listener has got the rate, an
operator sends the dead letters to the group again.
"""

import sys
import threading
import time

from saturnmq import Admin, ConsumeResult, Message, Producer, PushConsumer, ReceivedMessage, Retry

TOPIC, GROUP = "invoices", "payers"


def main(nameserver: str) -> None:
    has_rate = threading.Event()
    paid, given_up = threading.Semaphore(0), threading.Semaphore(0)

    def pay(message: ReceivedMessage) -> ConsumeResult | Retry:
        amount = message.body.decode()
        if amount.endswith("thalers") and not has_rate.is_set():
            print(f"{message.keys[0]}: no rate for {amount}, given up")
            given_up.release()
            return Retry(delay_level=-1)
        print(f"{message.keys[0]}: paid {amount}")
        paid.release()
        return ConsumeResult.SUCCESS

    with Producer("billing", nameserver) as producer:
        for key, amount in (("invoice-1", "250 euros"), ("invoice-2", "40 thalers")):
            producer.send(Message(TOPIC, amount.encode(), keys=key))
    consumer = PushConsumer(
        GROUP, nameserver, listener_one=pay, from_beginning=True, consume_threads=1
    )  # one thread prints a line at a time
    consumer.subscribe(TOPIC)
    with consumer, Admin(nameserver) as admin:
        paid.acquire()
        given_up.acquire()
        while not (letters := admin.dead_letters(GROUP)):
            time.sleep(0.1)  # the listener has answered, the broker is about to store the letter
        for letter in letters:
            print(f"a dead letter: {letter.keys[0]}, of topic {letter.properties['RETRY_TOPIC']}")
        has_rate.set()
        admin.resend_dead_letters(GROUP)
        paid.acquire()


if __name__ == "__main__":
    main(sys.argv[1])
