"""An etcd beside the nodes of a local cluster: its members' command lines, and how they are."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from pathlib import Path

from saturnmq.runtime.door import join_address

PROGRAM = "etcd"  # found in PATH
PORTS = 2  # for clients, and the next one for other members


def command(name: str, members: Mapping[str, tuple[str, int]], data: Path) -> list[str]:
    """Member `name` of the etcd that these are, each with its host and first port."""
    peers = {each: _url(host, port + 1) for each, (host, port) in members.items()}
    client = _url(*members[name])
    options = {
        "name": name,
        "data-dir": str(data),
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peers[name],
        "initial-advertise-peer-urls": peers[name],
        "initial-cluster": ",".join(f"{each}={url}" for each, url in peers.items()),
        "auto-compaction-retention": "1",  # hours of changes are kept: records change all day
    }
    return [PROGRAM, *(f"--{option}={value}" for option, value in options.items())]


def _url(host: str, port: int) -> str:
    return f"http://{join_address(host, port)}"


def is_healthy(host: str, port: int) -> bool:
    """Whether it has a leader, and writes."""
    return b"true" in _answer(host, port, "GET", "/health")


def leads(host: str, port: int) -> bool:
    """Whether this member is the leader."""
    told = _answer(host, port, "POST", "/v3/maintenance/status", "{}")
    status = json.loads(told) if told else {}
    return "leader" in status and status["leader"] == status["header"]["member_id"]


def _answer(host: str, port: int, method: str, path: str, body: str | None = None) -> bytes:
    """Nothing if it does not answer, or refuses."""
    link = http.client.HTTPConnection(host, port, timeout=1.0)
    try:
        link.request(method, path, body)
        answer = link.getresponse()
        return answer.read(1 << 16) if answer.status == 200 else b""
    except (OSError, http.client.HTTPException):
        return b""
    finally:
        link.close()
