"""The examples of order, filters, dead letters and one-way sends, as a user runs them."""

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
    "one_way": [
        "20.5 degrees",
        "20.7 degrees",
        "21.0 degrees",
        "21.2 degrees",
        "4 readings",
    ],
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_example_prints_what_it_promises(tmp_path: Path, name: str) -> None:
    with served(tmp_path) as nameserver:
        lines = printed_by(name, nameserver)
    if name == "dead_letters":  # the two invoices lie in queues of their own
        lines.sort()
    assert lines == OUTPUTS[name]
