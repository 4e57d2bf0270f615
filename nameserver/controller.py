"""What scripts ask RocketMQ's controller, answered by a nameserver with what the brokers tell.

There is no controller here: a group knows itself who leads it. `mqadmin getControllerMetaData` and
`getSyncStateSet` take the address of a nameserver, which is the leader that it names. It asks the
master of each group (REPLICA_STATE).

| code | answer |
|---|---|
| 1005 | this nameserver, as controller and leader |
| 1006 | for each broker name in the body: master, its epoch, replicas in sync, other replicas |

A group whose master does not tell is left out, as RocketMQ leaves out one that it does not know.
`syncStateSetEpoch` counts how often the set has changed since its master leads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from saturnmq.protocol import checked, jsonx
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import ask_once
from saturnmq.protocol.errors import MalformedFrame, SaturnError, SystemBusy
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.runtime import Runtime

log = logging.getLogger(__name__)

ASK_S = 2.0  # how long all masters have together
NAMES_MAX = 1_000  # of groups in one question
AT_ONCE = 16  # masters that are asked at the same time, whoever asks for them
WAITING_MAX = 64  # questions
GROUP = "saturnmq"  # of controllers, which RocketMQ's configuration names


class Controller:
    def __init__(self, runtime: Runtime, addresses: Callable[[str], dict[int, str]]) -> None:
        """`addresses`: of the brokers that are registered under a name, by id."""
        self._runtime = runtime
        self._addresses = addresses
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0

    def metadata(self, command: Command, address: str) -> Command:
        """1005, by the nameserver at `address`."""
        return command.reply(
            ext={
                "group": GROUP,
                "controllerLeaderId": "n0",
                "controllerLeaderAddress": address,
                "isLeader": "true",
                "peers": f"n0-{address}",
            }
        )

    async def sync_state(self, command: Command) -> Command:
        """1006. MalformedFrame: the body is no list of names; SystemBusy: too many ask."""
        if self._waiting >= WAITING_MAX:
            raise SystemBusy(f"{WAITING_MAX} others ask for the replicas in sync; ask again")
        self._waiting += 1
        try:
            return await self._sync_state(command)
        finally:
            self._waiting -= 1

    async def _sync_state(self, command: Command) -> Command:
        names = jsonx.loads(command.body) if len(command.body) else []
        if not isinstance(names, list) or len(names) > NAMES_MAX:
            raise MalformedFrame(f"the body is no list of at most {NAMES_MAX} broker names")
        wanted = list(dict.fromkeys(checked.as_text(name, "a broker name") for name in names))
        told = await asyncio.gather(*(self._group(name) for name in wanted))
        table = {name: state for name, state in zip(wanted, told, strict=True) if state}
        return command.reply(body=jsonx.dumps({"replicasInfoTable": table}))

    async def _group(self, name: str) -> dict[str, Any] | None:
        """ReplicasInfo of one group; None if its master does not tell."""
        registered = self._addresses(name)
        master = registered.get(0)
        if master is None:
            return None
        try:
            async with asyncio.timeout(ASK_S), self._slots:
                request = Command.request(RequestCode.REPLICA_STATE)
                reply = await ask_once(self._runtime, master, request, ASK_S)
            alive = set(registered.values())
            return _replicas_info(name, checked.document(reply.body), alive)
        except (SaturnError, OSError, TimeoutError, ValueError) as error:
            log.warning("%s at %s does not tell its replicas: %s", name, master, error)
            return None


def _replicas_info(name: str, state: dict[str, Any], alive: set[str]) -> dict[str, Any] | None:
    """RocketMQ's ReplicasInfo of what the master of a group tells; None if it does not lead."""
    if checked.text(state, "role", "") != "master":
        return None
    in_sync = {checked.as_integer(i, "a replica in sync") for i in checked.items(state, "inSync")}
    master_id = checked.integer(state, "brokerId")
    master = checked.text(state, "address")
    replicas = {master_id: master} | {
        checked.as_integer(i, "the id of a replica"): checked.as_text(address, "its address")
        for i, address in checked.table(state, "replicas").items()
    }
    identities = {
        i: {
            "brokerName": name,
            "brokerId": i,
            "brokerAddress": address,
            "alive": address in alive,
        }
        for i, address in sorted(replicas.items())
    }
    return {
        "masterBrokerId": master_id,
        "masterAddress": master,
        "masterEpoch": checked.integer(state, "epoch"),
        "syncStateSetEpoch": checked.integer(state, "inSyncChanges", 0),
        "inSyncReplicas": [x for i, x in identities.items() if i in in_sync or i == master_id],
        "notInSyncReplicas": [
            x for i, x in identities.items() if i not in in_sync and i != master_id
        ],
    }
