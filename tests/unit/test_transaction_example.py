"""The example of transactions, as a user runs it."""

from __future__ import annotations

from pathlib import Path

from example_rig import printed_by
from served_rig import served


def test_every_payment_has_its_message_and_no_other_has_one(tmp_path: Path) -> None:
    with served(
        tmp_path / "store", transaction_timeout_ms=100, transaction_check_ms=200
    ) as nameserver:
        lines = printed_by("transactions", nameserver, str(tmp_path / "payments.db"))
    assert sorted(lines) == [
        "not sent: payment b is over the limit",
        "payment a: 250 cents",
        "payment c: 700 cents",
        "payment d: 900 cents",
    ]
