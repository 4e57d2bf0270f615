"""The example of transactions, as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from served_rig import served

EXAMPLE = Path(__file__).parents[2] / "examples" / "transactions.py"


def test_every_payment_has_its_message_and_no_other_has_one(tmp_path: Path) -> None:
    with served(
        tmp_path / "store", transaction_timeout_ms=100, transaction_check_ms=200
    ) as nameserver:
        done = subprocess.run(
            [sys.executable, str(EXAMPLE), nameserver, str(tmp_path / "payments.db")],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
    assert sorted(done.stdout.splitlines()) == [
        "not sent: payment b is over the limit",
        "payment a: 250 cents",
        "payment c: 700 cents",
        "payment d: 900 cents",
    ]
