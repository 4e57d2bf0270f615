"""Figures of a running node, as drills and benchmarks judge them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from saturnmq.protocol import checked
from saturnmq.protocol.asking import ask_once
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.loop_watch import LONG_S

STOP_MS_MAX = round(1000 * LONG_S)  # of processor time in one stop of a node's loop
MOST, ANONYMOUS = "VmHWM", "RssAnon"  # memory: the most in all; now, what is mapped from no file


def memory_mb(pid: int, which: str = MOST) -> int:
    """Memory of a process; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(f"{which}:")) // 1024


async def runtime_information(runtime: Runtime, address: str, timeout_s: float) -> dict[str, Any]:
    """The figures that a broker or a nameserver reports of itself. SaturnError: it does not."""
    request = Command.request(RequestCode.GET_BROKER_RUNTIME_INFO)
    reply = await ask_once(runtime, address, request, timeout_s)
    return checked.table(checked.document(reply.body), "table")
