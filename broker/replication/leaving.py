"""A slave that is stopped in order tells its master, which expects it back.

For `slaveTimeout` the master's sends wait for that slave, as they do just after a start, instead of
being answered SLAVE_NOT_AVAILABLE at once: a restart takes less time. A slave that crashes sends
nothing.
"""

from __future__ import annotations

import logging

from saturnmq.broker.context import Context, answer
from saturnmq.broker.replication.asking import answer_of
from saturnmq.broker.replication.ha_master import HaMaster
from saturnmq.broker.replication.ha_slave import HaSlave
from saturnmq.broker.replication.role import State
from saturnmq.protocol import headers
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import SaturnError

log = logging.getLogger(__name__)


class Leaving:
    def __init__(self, context: Context, master: HaMaster, slave: HaSlave) -> None:
        self._c = context
        self._master = master
        self._slave = slave

    async def say(self) -> None:
        """Tell the master, if there is one; best effort."""
        c, master = self._c, self._slave.master_address
        if c.role.state is not State.SLAVE or not master:
            return
        request = Command.request(RequestCode.SLAVE_LEAVES, {"brokerAddr": c.address})
        try:
            await answer_of(c, master, request)
        except (SaturnError, OSError, TimeoutError, ValueError) as error:
            log.info("the master does not know that this slave stops: %s", error)

    def on_leave(
        self, endpoint: Endpoint, request: Command, header: headers.SlaveLeavesHeader
    ) -> None:
        """Expect a leaving slave back; the request has no meaning for other nodes."""
        address = header.address
        if address in self._master.followers():
            log.info("slave %s is stopped, and expected back", address)
            self._master.expect_slaves()
        reply = self._c.config.signing.sign_answer(request, request.reply(0))
        answer(endpoint, request, reply)
