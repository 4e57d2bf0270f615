"""An etcd beside the nodes of a local cluster: its command line, and whether it serves."""

from __future__ import annotations

import http.client
from pathlib import Path

from saturnmq.protocol.runtime import join_address

PROGRAM = "etcd"  # found in PATH
PORTS = 2  # for clients, and the next one for other members


def command(name: str, host: str, port: int, data: Path) -> list[str]:
    """An etcd that is a cluster of its own."""
    client, peer = (f"http://{join_address(host, each)}" for each in (port, port + 1))
    options = {
        "name": name,
        "data-dir": str(data),
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"{name}={peer}",
        "auto-compaction-retention": "1",  # hours of changes are kept: records change all day
    }
    return [PROGRAM, *(f"--{option}={value}" for option, value in options.items())]


def is_healthy(host: str, port: int) -> bool:
    """Whether it has a leader, and writes."""
    link = http.client.HTTPConnection(host, port, timeout=1.0)
    try:
        link.request("GET", "/health")
        answer = link.getresponse()
        return answer.status == 200 and b"true" in answer.read(1 << 10)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        link.close()
