"""What a drill finds in the stores of a stopped cluster: values, differences, damage."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from saturnmq.drills.failover.backend import BROKER, NAMESERVER, DrillNode
from saturnmq.drills.failover.stores import look
from saturnmq.drills.sim.history import Place, make_body
from saturnmq.store.disk import NativeDisk
from saturnmq.store.log.epochs import Epochs
from store_rig import CONFIG, dispatch, flush, message, open_store

TOPIC = "drill"
STORE = replace(CONFIG, index_items=200)  # four to a slot: then a file's length tells both
NODES = [
    DrillNode("nameserver-0", NAMESERVER, ""),
    DrillNode("master-0", BROKER, "", "broker-0", 0),
    DrillNode("slave-0", BROKER, "", "broker-0", 1),
]


def pair(tmp_path: Path, count: int = 30) -> dict[str, Path]:
    """Two equal stores of a stopped group."""
    stores = {name: tmp_path / name for name in ("master-0", "slave-0")}
    store = open_store(NativeDisk(), config=replace(STORE, root=str(stores["master-0"])))
    for number in range(count):
        body = make_body(f"free-0-{number}", 100)
        store.put(message(body, TOPIC, number % 2, key=f"free-0-{number}"))
    dispatch(store)
    flush(store)
    store.close()
    shutil.copytree(stores["master-0"], stores["slave-0"])
    return stores


def newest_segment(store: Path) -> Path:
    return max(path for path in (store / "commitlog").iterdir() if path.name.isdigit())


def test_equal_stores_have_no_problems_and_tell_their_values(tmp_path):
    found = look(NODES, pair(tmp_path), TOPIC)
    assert found.problems == []
    assert found.stored[Place("broker-0", 1, 3)] == "free-0-7"
    assert len(found.stored) == 30
    assert found.saved == frozenset()


def test_a_byte_that_differs_is_a_divergence_and_damage(tmp_path):
    stores = pair(tmp_path)
    segment = newest_segment(stores["slave-0"])
    data = bytearray(segment.read_bytes())
    at = data.index(b"free-0-") + 1
    data[at] ^= 1
    segment.write_bytes(data)
    problems = look(NODES, stores, TOPIC).problems
    place = int(segment.name) + at
    assert f"I7 divergence: the logs of slave-0 and master-0 differ at {place}" in problems
    assert any(text.startswith("I8 slave-0: log:") for text in problems)


def test_a_slave_that_lacks_the_end_has_not_caught_up(tmp_path):
    stores = pair(tmp_path)
    segment = newest_segment(stores["slave-0"])
    data = segment.read_bytes()
    last = data.rindex(b"\xda\xa3\x20\xa7") - 4  # the magic of the last frame
    segment.write_bytes(data[:last].ljust(len(data), b"\0"))
    problems = look(NODES, stores, TOPIC).problems
    assert any(text.startswith("I12 slave-0 is ") for text in problems)


def test_a_queue_that_lacks_an_entry_is_not_what_a_rebuild_gives(tmp_path):
    stores = pair(tmp_path)
    queue = stores["master-0"] / "consumequeue" / TOPIC / "0" / "00000000000000000000"
    data = bytearray(queue.read_bytes())
    data[40:60] = bytes(20)
    queue.write_bytes(data)
    problems = look(NODES, stores, TOPIC).problems
    assert problems
    assert all(text.startswith("I8 master-0: queue") for text in problems)


def test_values_that_a_truncation_saved_are_found(tmp_path):
    stores = pair(tmp_path)
    root = str(stores["slave-0"])
    store = open_store(NativeDisk(), config=replace(STORE, root=root))
    entry = store.queues()[TOPIC, 0].entry(14)
    store.truncate(entry[0], epoch=2, reason="test")
    store.close()
    found = look(NODES, stores, TOPIC)
    assert found.saved == {"free-0-28", "free-0-29"}
    assert found.stored[Place("broker-0", 1, 14)] == "free-0-29"


def test_the_epochs_of_a_group_are_told(tmp_path):
    stores = pair(tmp_path)
    for store in stores.values():
        Epochs(NativeDisk(), str(store)).open(3, 0)
    assert look(NODES, stores, TOPIC).epochs == {"broker-0": [(3, 0)]}
