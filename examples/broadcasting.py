"""Changes that every server has to hear: a broadcasting group, whose members each get all messages.

python examples/broadcasting.py 127.0.0.1:9876

Each member keeps its place in a file of its own, by its instance name: after a restart it goes on
there. The second server is away while prices change, and hears of the changes when it is back.
"""

import sys
import threading

from saturnmq import Message, Producer, PushConsumer, ReceivedMessage

TOPIC = "prices"
PRICES = ("apple 3", "pear 4", "plum 2")


class Server:
    """A server that keeps prices; every one of them has to know all."""

    def __init__(self, name: str, nameserver: str) -> None:
        self.name, self.nameserver = name, nameserver
        self.prices: dict[str, str] = {}
        self.heard = threading.Semaphore(0)

    def take(self, message: ReceivedMessage) -> None:
        fruit, price = message.body.decode().split()
        self.prices[fruit] = price
        self.heard.release()

    def started(self) -> PushConsumer:
        consumer = PushConsumer(
            "servers",
            self.nameserver,
            listener_one=self.take,
            broadcasting=True,
            instance_name=self.name,
            from_beginning=True,
        )
        consumer.subscribe(TOPIC)
        return consumer.start()


def main(nameserver: str) -> None:
    servers = [Server(name, nameserver) for name in ("north", "south")]
    with Producer("shop", nameserver) as producer:
        for price in PRICES:
            producer.send(Message(TOPIC, price.encode()))
        consumers = [server.started() for server in servers]
        for server in servers:
            for _ in PRICES:
                server.heard.acquire()
        consumers[1].close()
        producer.send(Message(TOPIC, b"pear 5"))
        servers[0].heard.acquire()
        consumers[1] = servers[1].started()  # it goes on behind the last message that it had
        servers[1].heard.acquire()
    for server, consumer in zip(servers, consumers, strict=True):
        consumer.close()
        shown = ", ".join(f"{fruit} {price}" for fruit, price in sorted(server.prices.items()))
        print(f"{server.name}: {shown}")


if __name__ == "__main__":
    main(sys.argv[1])
