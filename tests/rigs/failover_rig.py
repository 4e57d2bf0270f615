"""A nameserver, a master and a slave in one process, on addresses that outlive a restart."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from broker_rig import ask, config, connected, pull, send, started, until
from saturnmq.broker.broker import Broker
from saturnmq.broker.config import BrokerConfig
from saturnmq.cli.free_ports import free_block
from saturnmq.nameserver.server import NameServer
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.kernels import decode_frames
from saturnmq.runtime.native import NativeRuntime


def _asks(broker: Broker) -> bool:
    role: str = broker.replica_state()["role"]
    return role == "unsure"


class Group:
    """A nameserver, a master and a slave whose addresses stay."""

    def __init__(self, runtime: NativeRuntime, root: Path, **settings: Any) -> None:
        self.runtime = runtime
        self.root = root
        self.settings = settings
        self.nameserver = NameServer(runtime, "127.0.0.1", 0)
        self.configs: dict[str, BrokerConfig] = {}

    async def __aenter__(self) -> Group:
        await self.nameserver.start()
        self.master = await self.start("m", **{"role": "SYNC_MASTER", **self.settings})
        self.slave = await self.start("s", **{**self.settings, "role": "SLAVE", "broker_id": 1})
        await until(lambda: self.master.context.copies_in_sync() == 2)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.slave.close()
        await self.master.close()
        await self.nameserver.close()

    async def start(self, name: str, **changes: Any) -> Broker:
        """A node, on the ports it had before."""
        if name not in self.configs:
            # While a node is down no outgoing connection may be given its port.
            port = free_block("127.0.0.1", 2)
            self.configs[name] = config(
                self.root / name,
                **{
                    "nameservers": (self.nameserver.address,),
                    "register_ms": 200,
                    "port": port,
                    "ha_port": port + 1,
                    **self.settings,
                    **changes,
                },
            )
        return await started(self.runtime, self.configs[name])

    async def send_all(self, broker: Broker, *bodies: bytes) -> list[int]:
        """The codes of the answers. A broker that this machine let stand still for a second asks
        whether it still is the master: then the message is sent again."""
        client = await connected(self.runtime, broker)
        codes = []
        for body in bodies:
            reply = await send(client, body)
            if reply.code == ResponseCode.SYSTEM_BUSY and _asks(broker):
                with contextlib.suppress(TimeoutError):
                    await until(lambda: not _asks(broker), 3.0)
                reply = await send(client, body)
            codes.append(reply.code)
        client.close()
        return codes

    async def role(self, broker: Broker, code: int, **ext: Any) -> tuple[int, dict[str, Any] | str]:
        client = await connected(self.runtime, broker)
        reply = await ask(client, code, ext)
        client.close()
        return reply.code, json.loads(reply.body) if not reply.code else str(reply.remark)

    async def bodies(self, broker: Broker) -> list[bytes]:
        client = await connected(self.runtime, broker)
        found: list[bytes] = []
        while (got := await pull(client, len(found), maxMsgNums=32)).code == 0:
            found += [bytes(message.body) for message in decode_frames(got.body, True)]
        client.close()
        return found
