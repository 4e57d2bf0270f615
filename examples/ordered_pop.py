"""Jobs in their order, without a rebalance: an ordered simple consumer, and a job that can never be
done.

python examples/ordered_pop.py 127.0.0.1:9876

All jobs of a machine lie in one queue. A queue is given to one worker at a time, and goes on when
all that it got is acknowledged. A job that fails for now is given back and comes first again. One
that can never be done would hold up its queue for ever: the worker gives it up, and an operator
finds it among the dead letters.
"""

import collections
import sys
import time

from saturnmq import Admin, Message, Producer, SimpleConsumer

TOPIC, GROUP = "jobs", "machinists"
JOBS = {"drill": ("clean", "mount", "drill"), "mill": ("clean", "melt", "mill")}


def main(nameserver: str) -> None:
    with Admin(nameserver) as admin:
        admin.create_topic(TOPIC, queues=2, message_type="FIFO")
    with Producer("office", nameserver) as producer:
        for machine, jobs in JOBS.items():
            for job in jobs:
                producer.send(Message(TOPIC, job.encode(), keys=machine, sharding_key=machine))

    done = collections.defaultdict(list)
    busy = {"mount"}
    left = sum(map(len, JOBS.values()))
    worker = SimpleConsumer(GROUP, nameserver, ordered=True, from_beginning=True)
    worker.subscribe(TOPIC)
    with worker:
        while left:
            for message in worker.receive(1, invisible_s=30):
                machine, job = message.keys[0], message.body.decode()
                if job in busy:
                    busy.discard(job)
                    worker.change_invisible_duration(message, 0)  # first in line again
                    continue
                if job == "melt":
                    worker.dead_letter(message)
                else:
                    done[machine].append(job)
                    worker.ack(message)
                left -= 1
    for machine, jobs in sorted(done.items()):
        print(f"{machine}: {', '.join(jobs)}")
    with Admin(nameserver) as admin:
        while not (letters := admin.dead_letters(GROUP)):
            time.sleep(0.1)  # nameservers are about to hear of the group's dead-letter topic
        for letter in letters:
            print(f"given up: {letter.keys[0]}, {letter.body.decode()}")


if __name__ == "__main__":
    main(sys.argv[1])
