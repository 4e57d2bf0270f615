"""Brokers that check their users, and clients of these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from broker_rig import ask, config
from saturnmq.broker.broker import Broker
from saturnmq.broker.config import BrokerConfig
from saturnmq.protocol import fastjson
from saturnmq.protocol.asking import connect
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.credentials import Credentials
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.door import split_address
from saturnmq.runtime.native import NativeRuntime

ROOT = Credentials("root", "root's password")
ALICE = Credentials("alice", "alice's password")
NODES = Credentials("nodes", "the nodes' password")
CHECKING: dict[str, Any] = {
    "authentication": True,
    "authorization": True,
    "init_user": '{"username":"root","password":"root\'s password"}',
    "inner_credentials": '{"accessKey":"nodes","secretKey":"the nodes\' password"}',
}


def checking(root: Path, **changes: Any) -> BrokerConfig:
    """The configuration of a broker that checks users and rules."""
    return config(root, **(CHECKING | changes))


async def signing(
    runtime: NativeRuntime, broker: Broker, credentials: Credentials | None
) -> Endpoint:
    """A connection whose requests are signed; without credentials they are not."""
    return await connect(runtime, *split_address(broker.address), credentials=credentials)


async def create_user(root: Endpoint, user: Credentials, **info: Any) -> Command:
    body = {"password": user.secret_key, **info}
    ext = {"username": user.access_key}
    return await ask(root, RequestCode.AUTH_CREATE_USER, ext, fastjson.dumps(body))


async def allow(
    root: Endpoint, user: Credentials, *resources: str, decision: str = "Allow", **more: Any
) -> Command:
    """Allow a user to do everything with some resources."""
    entries = [
        {"resource": each, "actions": ["All"], "decision": decision} | more for each in resources
    ]
    body = fastjson.dumps({"policies": [{"entries": entries}]})
    ext = {"subject": f"User:{user.access_key}"}
    return await ask(root, RequestCode.AUTH_CREATE_ACL, ext, body)
