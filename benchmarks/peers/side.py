"""The peer's side of `saturnmq bench --against`: a program that starts a peer and does its work, as
lines of JSON tell it.

    → {"work": "send", "call": "keyed", "size": 1024, "count": 500000}
    ← {"rate": 377000.0, "cpu_s": 1.43}           or {"failed": "why"}

Before the first line it says {"ready": "Kafka 4.2.0, ..."}. It ends, and ends its peer, when its
input ends. The works and their figures: `cli/versus.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from saturnmq.cli.workloads import processor_s

Figures = dict[str, float]


class Meter:
    """The processor time that the peer's brokers take from now on."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids, self._begin = pids, processor_s(pids)

    def rate(self, count: int, seconds: float) -> Figures:
        """The figures of `count` messages."""
        used = processor_s(self._pids) - self._begin
        return {"rate": count / seconds, "cpu_s": 1e6 * used / count}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("home", type=Path, help="an empty directory for its files")
    parser.add_argument("--sync-flush", action="store_true")
    parser.add_argument("--sync-slave", action="store_true")
    return parser.parse_args()


def serve(ready: str, works: dict[str, Callable[[dict[str, Any]], Figures]]) -> None:
    """Do what the lines ask for."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # no library's words among the answers
    print(json.dumps({"ready": ready}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer: dict[str, Any] = works[request["work"]](request)
        except (Exception, SystemExit) as error:
            answer = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


def end_in_order() -> None:
    """Have SIGTERM end the peer's processes, too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
