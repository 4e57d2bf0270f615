"""Requests to another node of the group, above all for its state (REPLICA_STATE)."""

from __future__ import annotations

import asyncio
import logging

from saturnmq.broker.context import Context
from saturnmq.broker.replication.identity import known
from saturnmq.broker.replication.introductions import MemberState, read_member
from saturnmq.broker.replication.kinship import is_foreign
from saturnmq.protocol import checked
from saturnmq.protocol.asking import ask_once, connect
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.door import split_address
from saturnmq.runtime.errors import SaturnError

log = logging.getLogger(__name__)

ASK_S = 1.0  # another node has to answer within this time


async def member_at(c: Context, address: str) -> MemberState | None:
    """The state that another node of this group reports; None if it does not answer."""
    try:
        reply = await answer_of(c, address, Command.request(RequestCode.REPLICA_STATE, {}))
        member = read_member(checked.document(reply.body), c.role.ceiling)
    except (SaturnError, OSError, TimeoutError, ValueError) as error:
        log.debug("%s does not tell its state: %s", address, error)
        return None
    if member.name != c.config.broker_name or is_foreign(known(c), member.group):
        log.error(
            "%s is of group %s %s, this node of %s %s: it is not asked",
            address,
            member.name,
            member.identity,
            c.config.broker_name,
            c.role.identity,
        )
        return None
    return member


async def connection_to(c: Context, address: str) -> Endpoint:
    """A connection to another node, as this one. ConnectFailed: it does not answer."""
    return await connect(c.runtime, *split_address(address), credentials=c.credentials)


async def answer_of(c: Context, address: str, request: Command) -> Command:
    """The answer of another node, within ASK_S. SaturnError, OSError, TimeoutError or ValueError:
    it does not answer, or it refuses."""
    async with asyncio.timeout(ASK_S):
        return await ask_once(c.runtime, address, request, ASK_S, c.config.signing, c.credentials)
