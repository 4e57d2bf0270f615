"""Programs that end without close(): what a producer accepted is stored, or stderr says how much
of it may not be.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from saturnmq import Admin
from saturnmq.client.producer.at_exit import EXIT_S
from served_rig import served

SENDS = 1000
BEGIN = """
import os, sys, time
from saturnmq import Message, Producer
nameserver = sys.argv[1]
"""
SEND = f"""
for n in range({SENDS}):
    producer.send_async(Message("T", b"%d" % n))
"""


@pytest.fixture(scope="module")
def nameserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("exit")) as address:
        with Admin(address) as admin:
            admin.create_topic("T", 4)
        yield address


def stored(nameserver: str) -> int:
    with Admin(nameserver) as admin:
        return sum(row.max_offset for row in admin.describe_topic("T"))


def ended(script: str, nameserver: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BEGIN + script, nameserver]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("ending", "status", "says"),
    [
        ("", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("raise ValueError('mine')", 1, "ValueError: mine"),
        ("producer = None", 0, ""),
    ],
    ids=["the last line", "sys.exit", "an exception", "a producer that nobody has any more"],
)
def test_what_was_accepted_is_stored_when_the_program_ends_without_close(
    nameserver: str, ending: str, status: int, says: str
) -> None:
    before = stored(nameserver)
    done = ended(f"producer = Producer('p', nameserver).start()\n{SEND}\n{ending}", nameserver)
    assert (done.returncode, says in done.stderr) == (status, True), done.stderr
    assert "saturnmq:" not in done.stderr
    assert stored(nameserver) - before == SENDS


def test_all_producers_of_a_program_are_waited_for(nameserver: str) -> None:
    script = f"""
producers = [Producer(f"p{{n}}", nameserver).start() for n in range(3)]
for producer in producers:
{SEND.replace(chr(10), chr(10) + "    ")}
"""
    before = stored(nameserver)
    done = ended(script, nameserver)
    assert (done.returncode, done.stderr) == (0, "")
    assert stored(nameserver) - before == 3 * SENDS


def test_what_cannot_be_sent_is_told_with_its_number_and_reason_after_a_bounded_time(
    nameserver: str,
) -> None:
    # The lane knows a route whose broker is nobody: as after the death of the only broker.
    script = f"""
producers = [Producer(f"p{{n}}", "127.0.0.1:1", send_timeout=60.0).start() for n in range(2)]
for producer in producers:
{SEND.replace(chr(10), chr(10) + "    ")}
print("sent", flush=True)
"""
    began = time.monotonic()
    done = ended(script, nameserver)
    assert done.stdout == "sent\n"
    assert time.monotonic() - began < EXIT_S + 15
    lines = [line for line in done.stderr.splitlines() if line.startswith("saturnmq:")]
    assert len(lines) == 2
    for line, name in zip(sorted(lines), ("'p0'", "'p1'"), strict=True):
        assert f"{SENDS} messages that producer {name} had accepted may be lost" in line
        assert "no acknowledgement in" in line


def test_a_producer_of_a_loop_that_ended_says_what_it_did_not_send(nameserver: str) -> None:
    script = """
import asyncio
from saturnmq import aio

async def main():
    global producer
    producer = await aio.Producer("p", nameserver).start()
    for _ in range(10):
        await producer.send_async(Message("T", b"x"))

asyncio.run(main())
"""
    done = ended(script, nameserver)
    assert "10 messages that producer 'p' had accepted may be lost: its event loop" in done.stderr


def test_a_closed_producer_has_nothing_to_say(nameserver: str) -> None:
    script = f"""
with Producer("p", nameserver) as producer:
    {SEND.strip().replace(chr(10), chr(10) + "    ")}
"""
    before = stored(nameserver)
    done = ended(script, nameserver)
    assert (done.returncode, done.stderr) == (0, "")
    assert stored(nameserver) - before == SENDS


def test_what_is_left_at_the_end_has_the_time_that_is_left() -> None:
    """Producers that are closed, or that nobody has any more, are not asked, nor in a child."""
    script = """
import os, sys
from saturnmq.client.producer import at_exit

class Clock:
    now = 100.0

    def monotonic(self):
        return self.now

class Producer:
    def __init__(self, name):
        self.name = name
        at_exit.remember(self.settle)

    def settle(self, seconds):
        print(self.name, seconds, flush=True)
        at_exit.forget(self.settle)
        at_exit.time.now += 7.0
        return at_exit.UnsentMessages(self.name, 3, "why") if self.name == "lost" else None

at_exit.time = Clock()
producers = [Producer(name) for name in ("lost", "one", "two", "closed")]
at_exit.forget(producers[3].settle)
Producer("gone")
child = os.fork()
if child:
    os.waitpid(child, 0)
if sys.argv[1:]:
    sys.stderr = None
"""
    for arguments, told in (([], 1), (["without stderr"], 0)):
        command = [sys.executable, "-c", script, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        names, seconds = zip(*map(str.split, done.stdout.splitlines()), strict=True)
        assert sorted(names) == ["lost", "one", "two"]
        assert sorted(map(float, seconds)) == [0.0, 3.0, 10.0]
        assert done.stderr.count("3 messages that producer 'lost' had accepted") == told
        assert done.stderr.count("\n") == told, done.stderr


def test_how_the_documents_say_it() -> None:
    page = (Path(__file__).parents[2] / "docs/clients.md").read_text()
    assert f"{EXIT_S:g} s" in page
