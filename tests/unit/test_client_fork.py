"""Clients and os.fork(): a child can do nothing with its parent's, and no harm; its own work."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from saturnmq import Admin
from served_rig import served

BEGIN = """
import faulthandler, json, multiprocessing, os, signal, sys, threading, time, warnings
from saturnmq import Admin, Message, MessageQueue, Producer, PullConsumer, PushConsumer
from saturnmq.runtime.errors import ClientForked
warnings.simplefilter("ignore", DeprecationWarning)  # of fork in a process with threads
nameserver = sys.argv[1]
faulthandler.enable()  # SIGABRT tells where a process hangs

def in_child(work):
    '''What `work` returns in a child; its error; or "hangs".'''
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        faulthandler.register(signal.SIGALRM, chain=True)  # tells where it hangs, and dies
        signal.alarm(20)
        try:
            answer = work()
        except BaseException as error:
            answer = repr(error)
        os.write(writing, json.dumps(answer).encode())
        os.close(writing)
        sys.exit(0)  # with all that a program does at its end
    os.close(writing)
    with os.fdopen(reading) as file:
        answer = file.read()
    _, status = os.waitpid(child, 0)
    return json.loads(answer) if answer and status == 0 else f"hangs or dies: {status} {answer}"

def outcome(call):
    began = time.monotonic()
    try:
        call()
    except ClientForked:
        kind = "ClientForked"
    except BaseException as error:
        kind = repr(error)
    else:
        kind = "went well"
    return kind if time.monotonic() - began < 1 else kind + " but late"
"""


@pytest.fixture(scope="module")
def nameserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("fork")) as address:
        with Admin(address) as admin:
            admin.create_topic("T", 4)
        yield address


def told(script: str, nameserver: str) -> Any:
    """What the last line of the script printed, as JSON."""
    command = [sys.executable, "-c", BEGIN + script, nameserver]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            out, errors = process.communicate(timeout=180)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
            out, errors = process.communicate()
    assert (process.returncode, errors) == (0, ""), (out, errors)
    return json.loads(out.splitlines()[-1])


def test_every_use_of_an_inherited_client_is_refused_at_once(nameserver: str) -> None:
    uses = told(
        """
producer = Producer("p", nameserver).start()
producer.send(Message("T", b"x"))
queue = producer.queues("T")[0]
waiting = producer.send_async(Message("T", b"x"), queue=MessageQueue("T", "nobody", 0))
consumer = PushConsumer("g", nameserver, listener=lambda messages: None)
consumer.subscribe("T")
consumer.start()
for _ in range(3):
    producer.send(Message("T", b"x"), queue=queue)
puller = PullConsumer("h", nameserver, consume_from="first")
puller.assign([queue])
puller.start()
assert len(puller.poll(30.0, 1)) == 1  # the next ones are at hand
admin = Admin(nameserver).start()

def work():
    message = Message("T", b"y")
    uses = {
        "send": lambda: producer.send(message),
        "send in time": lambda: producer.send(message, timeout=0.5),
        "send to a queue": lambda: producer.send(message, queue=queue),
        "send with a key": lambda: producer.send(message, sharding_key="k"),
        "send_async": lambda: producer.send_async(message),
        "send_batch": lambda: producer.send_batch([message]),
        "send_batch_async": lambda: producer.send_batch_async([message]),
        "a callback": lambda: waiting.add_done_callback(print),
        "send_oneway": lambda: producer.send_oneway(message),
        "flush": producer.flush,
        "queues": lambda: producer.queues("T"),
        "a handle": waiting.result,
        "subscribe": lambda: consumer.subscribe("U"),
        "poll": puller.poll,
        "poll for one": lambda: puller.poll(5.0, 1),
        "commit": puller.commit,
        "seek": lambda: puller.seek(queue, 0),
        "topics": admin.list_topics,
        "close the producer": producer.close,
        "close the consumer": consumer.close,
        "close the puller": puller.close,
        "close the admin": admin.close,
    }
    return {name: outcome(use) for name, use in uses.items()}

print(json.dumps(in_child(work)))
producer.send(Message("T", b"still"))
admin.list_topics()
consumer.close(), puller.close(), admin.close()
producer.close(0.0)
""",
        nameserver,
    )
    assert {name for name, kind in uses.items() if kind == "ClientForked"} == {
        name for name in uses if not name.startswith("close")
    }, uses
    assert {kind for name, kind in uses.items() if name.startswith("close")} == {"went well"}


def test_an_inherited_client_of_a_loop_is_refused_too(nameserver: str) -> None:
    uses = told(
        """
import asyncio
from saturnmq import aio

async def main():
    producer = await aio.Producer("p", nameserver).start()
    await producer.send(Message("T", b"x"))
    nowhere = MessageQueue("T", "nobody", 0)
    waiting = await producer.send_async(Message("T", b"x"), queue=nowhere)
    queue = MessageQueue("T", "broker-a", 0)
    for _ in range(3):
        await producer.send(Message("T", b"x"), queue=queue)
    puller = aio.PullConsumer("h", nameserver, consume_from="first")
    puller.assign([queue])
    await puller.start()
    assert len(await puller.poll(30.0, 1)) == 1  # the next ones are at hand
    admin = await aio.Admin(nameserver).start()

    def work():
        asyncio.events._set_running_loop(None)  # as multiprocessing does for its children

        async def wait():
            return await waiting

        uses = {
            "send": lambda: producer.send(Message("T", b"y")),
            "send_async": lambda: producer.send_async(Message("T", b"y")),
            "send_oneway": lambda: producer.send_oneway(Message("T", b"y")),
            "flush": producer.flush,
            "a handle": wait,
            "poll": puller.poll,
            "poll for one": lambda: puller.poll(5.0, 1),
            "commit": lambda: puller.commit({MessageQueue("T", "broker-a", 0): 1}),
            "topics": admin.list_topics,
        }
        def run(use):
            loop = asyncio.new_event_loop()
            try:
                return loop.run_until_complete(use())
            finally:
                loop.close()

        return {name: outcome(lambda: run(use)) for name, use in uses.items()}

    print(json.dumps(in_child(work)))
    await producer.send(Message("T", b"still"))
    await admin.list_topics()
    await puller.close()
    await admin.close()
    await producer.close(0.0)

asyncio.run(main())
""",
        nameserver,
    )
    assert set(uses.values()) == {"ClientForked"}, uses


def test_acknowledgements_belong_to_their_messages_while_children_are_forked(
    nameserver: str,
) -> None:
    found = told(
        """
parent, ids, going = {}, [], True
with Producer("p", nameserver) as producer:
    def send(name, wait):
        number = 0
        while going:
            number += 1
            bodies = [b"%s %d %d" % (name, number, n) for n in range(1 if wait else 50)]
            if wait:
                results = [producer.send(Message("T", body)) for body in bodies]
            else:
                handles = [producer.send_async(Message("T", body)) for body in bodies]
                results = [handle.result(30) for handle in handles]
            for body, result in zip(bodies, results):
                parent[result.queue, result.queue_offset] = body
                ids.append(result.message_id)

    threads = [threading.Thread(target=send, args=(b"parent", wait)) for wait in (True, False)]
    for thread in threads:
        thread.start()

    def work():
        refused = [outcome(lambda: producer.send(Message("T", b"foreign"))) for _ in range(3)]
        results = []
        with Producer("p", nameserver) as own:
            results += [own.send(Message("T", b"child")) for _ in range(5)]
            results += [h.result(20) for h in [own.send_async(Message("T", b"child"))] * 20]
        return refused, [(*r.queue, r.queue_offset, r.message_id) for r in results]

    children = [in_child(work) for _ in range(8)]
    going = False
    for thread in threads:
        thread.join()

stored = {}
with PullConsumer("all", nameserver, consume_from="first") as reader:
    with Admin(nameserver) as admin:
        ends = {row.queue: row.max_offset for row in admin.describe_topic("T")}
    reader.assign(ends)
    for queue in ends:
        reader.seek(queue, 0)
    while len(stored) < sum(ends.values()):
        for message in reader.poll(5):
            queue = MessageQueue("T", message.broker_name, message.queue_id)
            stored[queue, message.queue_offset] = bytes(message.body)
wrong = [at for at, body in parent.items() if stored[at] != body]
theirs = []
assert all(isinstance(child, list) for child in children), children
for refused, results in children:
    assert refused == ["ClientForked"] * 3, refused
    wrong += [r for r in results if stored[MessageQueue(*r[:3]), r[3]] != b"child"]
    theirs += {r[4] for r in results}
print(json.dumps({
    "sent": len(parent), "acknowledged": len(ids), "wrong": len(wrong),
    "foreign": sum(body == b"foreign" for body in stored.values()),
    "ids": len(ids), "different": len(set(ids)), "theirs": len(theirs),
    "all": len({*ids, *theirs}),
}))
""",
        nameserver,
    )
    assert found["sent"] == found["acknowledged"] > 100
    assert (found["wrong"], found["foreign"]) == (0, 0)
    assert found["ids"] == found["different"]
    assert found["all"] == found["ids"] + found["theirs"]


def test_processes_of_multiprocessing_that_are_forked_send_with_clients_of_their_own(
    nameserver: str,
) -> None:
    assert (
        told(
            """
def send(number):
    with Producer("p", nameserver) as own:
        return own.send(Message("T", b"%d" % number)).status.name

with Producer("p", nameserver) as producer:
    producer.send(Message("T", b"first"))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        answers = pool.map(send, range(6))
    producer.send(Message("T", b"last"))
print(json.dumps(answers))
""",
            nameserver,
        )
        == ["OK"] * 6
    )


def test_a_child_uses_no_connection_of_its_parents_pool_and_takes_none_from_it(
    nameserver: str,
) -> None:
    found = told(
        """
from saturnmq.client.channels import Channels
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.remoting import Command

channels = Channels()

def ask():
    command = Command.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    return channels.request(nameserver, command, 5.0).code

def address():
    with channels.use(nameserver) as channel:
        return channel._socket.getsockname()[1]

ask()
before = address()
theirs = in_child(lambda: (ask(), address()))
print(json.dumps([before, theirs, ask(), address()]))
""",
        nameserver,
    )
    before, (code, theirs), after, mine = found
    assert (code, after) == (0, 0)
    assert mine == before != theirs
