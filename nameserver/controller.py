"""Requests of scripts to RocketMQ's controller; a nameserver answers them with reports of the
brokers.

There is no controller here: a group itself knows its master. `mqadmin getControllerMetaData`,
`getSyncStateSet` and `electMaster` take the address of a nameserver, which is the leader that it
names. It asks the master of each group (REPLICA_STATE).

| code | answer |
|---|---|
| 1002 | the named broker is made the master by a hand-over, which forces nothing (`HandOver`) |
| 1005 | this nameserver, as controller and leader |
| 1006 | for each broker name in the body: master, its epoch, replicas in sync, other replicas |

A group whose master does not report is left out of 1006, as RocketMQ leaves out one that it does
not know. `syncStateSetEpoch` counts how often the set has changed since its master leads. An answer
to 1002 has the members of the group in its body twice: in RocketMQ's place, and in the place that
mqadmin reads. Without a named broker (`designateElect` false) a group keeps its master. A group
without a master gets none: that takes an operator's `admin promote`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from saturnmq.protocol import checked, fastjson, headers, nameserver_headers
from saturnmq.protocol.asking import ask_once
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.header_fields import NAME_MAX
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import (
    MalformedFrame,
    NoPermission,
    SaturnError,
    SystemBusy,
    UnsupportedRequest,
)

log = logging.getLogger(__name__)

ASK_S = 2.0  # time for all masters together
NAMES_MAX = 1_000  # groups in one request
BODY_MAX = NAMES_MAX * (NAME_MAX + 3)  # bytes that they take
AT_ONCE = 16  # masters asked at the same time, for all requests together
WAITING_MAX = 64  # requests
GROUP = "saturnmq"  # of controllers, which RocketMQ's configuration names
NOBODY = -1  # RocketMQ's broker id of a request that names no broker

# Makes the broker of this id the master of a group, which has members at these addresses. Returns
# its address; a SaturnError says why it is not the master.
HandOver = Callable[[str, list[str], int], Awaitable[str]]


class Controller:
    def __init__(
        self,
        runtime: Runtime,
        addresses: Callable[[str], dict[int, str]],
        hand_over: HandOver | None,
    ) -> None:
        """`addresses`: the addresses of the brokers that are registered under a name, by id."""
        self._runtime = runtime
        self._addresses = addresses
        self._hand_over = hand_over
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

    async def sync_state(self, command: Command, _: headers.NoFieldsHeader) -> Command:
        """1006. MalformedFrame: the body is no list of names. SystemBusy: too many requests
        wait."""
        return await self._one_of_some(self._sync_state(command))

    async def elect(
        self, command: Command, header: nameserver_headers.ElectMasterHeader
    ) -> Command:
        """1002. SystemBusy: too many requests wait."""
        return await self._one_of_some(self._elect(command, header))

    async def _one_of_some(self, answer: Coroutine[Any, Any, Command]) -> Command:
        if self._waiting >= WAITING_MAX:
            answer.close()
            raise SystemBusy(f"{WAITING_MAX} others wait for reports of brokers; ask again")
        self._waiting += 1
        try:
            return await answer
        finally:
            self._waiting -= 1

    async def _sync_state(self, command: Command) -> Command:
        names = fastjson.loads_strict(command.body, BODY_MAX) if len(command.body) else []
        if not isinstance(names, list) or len(names) > NAMES_MAX:
            raise MalformedFrame(f"the body is no list of at most {NAMES_MAX} broker names")
        wanted = list(dict.fromkeys(checked.as_text(name, "a broker name") for name in names))
        told = await asyncio.gather(*(self._group(name) for name in wanted))
        table = {name: state for name, state in zip(wanted, told, strict=True) if state}
        return command.reply(body=fastjson.dumps({"replicasInfoTable": table}))

    async def _elect(
        self, command: Command, header: nameserver_headers.ElectMasterHeader
    ) -> Command:
        name, wanted = header.broker_name, header.broker_id
        if not self._addresses(name):
            code = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
            return command.reply(code, f"no broker called {name!r} is registered here")
        led = await self._group(name)
        if led is None:
            return command.reply(
                ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE,
                f"{name} has no master that could hand over: "
                f"`saturnmq admin promote {name} NODE` makes one",
            )
        if not header.designated or wanted in (NOBODY, led["masterBrokerId"]):
            why = f"{led['masterAddress']} leads {name} already"
            return _elected(command, header, led, ResponseCode.CONTROLLER_MASTER_STILL_EXIST, why)
        try:
            if self._hand_over is None:
                raise UnsupportedRequest("this nameserver does not order hand-overs")
            master = await self._hand_over(name, [*self._addresses(name).values()], wanted)
            leads = await self._ask(name, master)
            if leads is None:
                raise NoPermission(f"{master} does not lead {name} any more")
        except SaturnError as error:
            log.warning("broker %d of %s is not made its master: %s", wanted, name, error)
            return command.reply(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, str(error))
        return _elected(command, header, leads)

    async def _group(self, name: str) -> dict[str, Any] | None:
        """ReplicasInfo of one group; None if its master does not report."""
        master = self._addresses(name).get(0)
        return None if master is None else await self._ask(name, master)

    async def _ask(self, name: str, master: str) -> dict[str, Any] | None:
        try:
            async with asyncio.timeout(ASK_S), self._slots:
                request = Command.request(RequestCode.REPLICA_STATE)
                reply = await ask_once(self._runtime, master, request, ASK_S)
            alive = {*self._addresses(name).values(), master}
            return _replicas_info(name, checked.document(reply.body), alive)
        except (SaturnError, OSError, TimeoutError, ValueError) as error:
            log.warning("%s at %s does not report its replicas: %s", name, master, error)
            return None


def _elected(
    command: Command,
    header: nameserver_headers.ElectMasterHeader,
    led: dict[str, Any],
    code: int = 0,
    remark: str | None = None,
) -> Command:
    """RocketMQ's ElectMasterResponseHeader and ElectMasterResponseBody."""
    names = ("masterBrokerId", "masterAddress", "masterEpoch", "syncStateSetEpoch")
    in_sync = led["inSyncReplicas"]
    everybody = [*in_sync, *led["notInSyncReplicas"]]
    group = {
        "cluster": header.cluster,
        "brokerName": header.broker_name,
        "brokerAddrs": {str(each["brokerId"]): each["brokerAddress"] for each in everybody},
    }
    body = {"brokerMemberGroup": group, "syncStateSet": [each["brokerId"] for each in in_sync]}
    return command.reply(
        code,
        remark,
        ext={name: str(led[name]) for name in names},
        body=fastjson.dumps({**group, **body}),
    )


def _replicas_info(name: str, state: dict[str, Any], alive: set[str]) -> dict[str, Any] | None:
    """RocketMQ's ReplicasInfo from the report of a group's master; None if it does not lead."""
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
