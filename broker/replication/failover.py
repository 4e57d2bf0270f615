"""Requests of operators and other nodes about this node's role: its state, FENCE, PROMOTE.

The rules are those of `replication/machine.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from saturnmq.broker.context import Context, answer
from saturnmq.broker.registration import Registrar
from saturnmq.broker.replication import events as e
from saturnmq.broker.replication.executor import Executor
from saturnmq.broker.replication.ha_master import HaMaster
from saturnmq.broker.replication.ha_slave import HaSlave
from saturnmq.broker.replication.introductions import introduce
from saturnmq.protocol import fastjson, headers
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import InvalidParameter


class FailoverService:
    def __init__(
        self,
        context: Context,
        master: HaMaster,
        slave: HaSlave,
        registration: Registrar,
        executor: Executor,
        no_failover: Callable[[], str] | None,
    ) -> None:
        """`no_failover` tells why no node can be elected now; None: there are no elections."""
        self._c = context
        self._role = context.role
        self._master = master
        self._slave = slave
        self._registration = registration
        self._executor = executor
        self._no_failover = no_failover
        self._numbers = count(1)
        self._asked: dict[int, tuple[Endpoint, Command]] = {}

    def on_state(self, endpoint: Endpoint, request: Command, _: headers.NoFieldsHeader) -> None:
        self._tell_state(endpoint, request)

    def _tell_state(self, endpoint: Endpoint, request: Command) -> None:
        reply = request.reply(0, body=fastjson.dumps(self.state()))
        answer(endpoint, request, self._c.config.signing.sign_answer(request, reply))

    def on_fence(self, endpoint: Endpoint, request: Command, header: headers.FenceHeader) -> None:
        self._check(header.epoch)
        self._executor.tell(e.Fence(self._later(endpoint, request), header.epoch, header.term))

    def on_promote(
        self, endpoint: Endpoint, request: Command, header: headers.PromoteHeader
    ) -> None:
        self._check(header.epoch)
        number, force, insist = self._later(endpoint, request), header.force, header.insist
        asked = e.Promote(number, header.epoch, header.end, force=force, insist=insist)
        self._executor.tell(asked)

    def _check(self, epoch: int) -> None:
        if epoch > self._role.ceiling:
            raise InvalidParameter(
                f"header field 'epoch' is {epoch}: this node believes none above "
                f"{self._role.ceiling}"
            )

    def _later(self, endpoint: Endpoint, request: Command) -> int:
        """The number of a request that `answer` answers."""
        request.body = b""
        number = next(self._numbers)
        assert number not in self._asked, f"two requests have the number {number}"
        self._asked[number] = endpoint, request
        return number

    def answer(self, outcome: e.Answer | e.Decline) -> None:
        """Answer with this node's state, or with the reason of a refusal."""
        assert outcome.request in self._asked, f"{outcome} answers a request that nobody made"
        endpoint, request = self._asked.pop(outcome.request)
        if isinstance(outcome, e.Answer):
            self._tell_state(endpoint, request)
        elif outcome.disk:
            remark = (
                f"{self._c.address} cannot write its role to its disk: {outcome.why}. Free space "
                "there; or stop this broker, and go on without it"
            )
            answer(endpoint, request, request.reply(ResponseCode.SYSTEM_ERROR, remark=remark))
        else:
            reply = request.reply(ResponseCode.NO_PERMISSION, remark=outcome.why)
            answer(endpoint, request, reply)

    def state(self) -> dict[str, Any]:
        """The body of REPLICA_STATE."""
        c = self._c
        role, marks, now = c.role, c.store.watermarks, c.runtime.monotonic()
        replicas = [x for x in self._master.connections if x.is_replica]
        return {
            **introduce(c),
            "flushed": marks.flushed,
            "confirmed": marks.confirmed,
            "required": role.required,
            "total": c.config.total_replicas,
            "caughtUp": role.caught_up,
            "freeId": self._executor.machine.slaves.free_id(),
            "inSyncChanges": self._master.in_sync_changes,
            "inSync": [x.broker_id for x in replicas if x.lag.in_sync],
            "lagBytes": {str(x.broker_id): x.lag.size(marks.appended) for x in replicas},
            "lagMs": {
                str(x.broker_id): round(1000 * x.lag.seconds(marks.appended, now)) for x in replicas
            },
            "bytesPerS": {str(x.broker_id): x.sent_per_s for x in replicas},
            "grpcAddress": c.grpc_address,
            "master": c.address if not role.is_slave else self._slave.master_address,
            "truncated": [{"file": cut.file, **cut.to_json()} for cut in c.store.truncated()],
            "refuses": c.store.failed or c.store.refuses or role.refuses(now) or c.unelected(),
            "full": c.store.refuses,
            "noFailover": None if self._no_failover is None else self._no_failover(),
            **({"letIn": c.let_in.lines()} if c.config.signing else {}),
            "trouble": (self._slave.trouble if role.is_slave else "")
            or "; ".join(sorted(set(self._registration.foreign.values()))),
        }
