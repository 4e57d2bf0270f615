"""Records of one kind, compressed a batch at a time: a topic of batches.

python examples/compressed_batches.py 127.0.0.1:9876

The producer compresses each of its batches as a whole, the broker stores each as one frame, and
nothing is unpacked before it is consumed. Consumers get single messages, each with an offset of its
own.
"""

import json
import sys

from saturnmq import Admin, Message, Producer, PullConsumer

COUNT = 1000


def record(number: int) -> bytes:
    return json.dumps(
        {"number": number, "level": "info", "text": "a request was answered"}
    ).encode()


def main(nameserver: str) -> None:
    with Admin(nameserver) as admin:
        admin.create_topic("requests", queues=1, attributes={"queue.type": "BatchCQ"})
    with Producer("loggers", nameserver, compression="zstd") as producer:
        handles = [producer.send_async(Message("requests", record(n))) for n in range(COUNT)]
        last = handles[-1].result()
    print(f"{len(handles)} records, the last at offset {last.queue_offset}")

    with PullConsumer("readers", nameserver, auto_commit=False) as consumer:
        consumer.assign([last.queue])
        consumer.seek(last.queue, COUNT // 2)  # within a batch
        found: list[int] = []
        while len(found) < COUNT // 2:
            found += [json.loads(message.body)["number"] for message in consumer.poll()]
    print(f"read again from {found[0]} to {found[-1]}")


if __name__ == "__main__":
    main(sys.argv[1])
