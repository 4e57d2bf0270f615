"""The examples of kinds of messages and consumers, as a user runs them."""

from __future__ import annotations

from pathlib import Path

import pytest
from example_rig import printed_by
from served_rig import served

OUTPUTS = {
    "fifo": [
        "anne: opened, paid in 100, withdrew 30, closed",
        "bert: opened, paid in 100, withdrew 30, closed",
        "carl: opened, paid in 100, withdrew 30, closed",
    ],
    "filters": [
        "by tags: order 1, order 2, order 3",
        "by a condition: order 3",
    ],
    "dead_letters": [
        "a dead letter: invoice-2, of topic invoices",
        "invoice-1: paid 250 euros",
        "invoice-2: no rate for 40 thalers, given up",
        "invoice-2: paid 40 thalers",
    ],
    "compressed_batches": [
        "1000 records, the last at offset 999",
        "read again from 500 to 999",
    ],
    "one_way": [
        "20.5 degrees",
        "20.7 degrees",
        "21.0 degrees",
        "21.2 degrees",
        "4 readings",
    ],
    "broadcasting": [
        "north: apple 3, pear 5, plum 2",
        "south: apple 3, pear 5, plum 2",
    ],
    "ordered_pop": [
        "drill: clean, mount, drill",
        "mill: clean, mill",
        "given up: mill, melt",
    ],
    "own_offsets": [
        "died at 40, with 25 in the ledger",
        "80 in the ledger",
        "80 by the audit",
    ],
    "typed_topics": [
        "invoices: 'number 1' is taken",
        "moves: 'e2 e4' is taken",
        "reminders: 'pay' is taken",
        "moves: 'e7 e5' is of another type",
        "invoices: no attributes, so NORMAL",
        "moves: message.type=FIFO",
        "reminders: message.type=DELAY",
    ],
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_example_prints_what_it_promises(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # of the offsets of a broadcasting consumer
    more = [str(tmp_path / "ledger.db")] if name == "own_offsets" else []
    with served(tmp_path, check_message_types=name == "typed_topics") as nameserver:
        lines = printed_by(name, nameserver, *more)
    if name == "dead_letters":  # the two invoices lie in queues of their own
        lines.sort()
    assert lines == OUTPUTS[name]
