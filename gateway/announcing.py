"""Producers whose only Telemetry stream is at this node (Rust's, and at first C++'s; after a
hand-over all that have not asked for a route since), made known to the brokers that may have to ask
them how a transaction ended.

The gateway is a producer at the other masters of their topics, by heartbeats over the connection
that it has to each. A broker asks its producers in turn, and the gateway passes a question on to a
client that produces for the topic. The client answers by EndTransaction, which any node sends on to
the broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from itertools import count, islice

from saturnmq.gateway.clients import Client, Clients
from saturnmq.gateway.commands import Commands, recovery
from saturnmq.gateway.messages import Type
from saturnmq.gateway.node import GatewayNode
from saturnmq.gateway.peers import Peers
from saturnmq.gateway.topics import Directory
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import SaturnError, UnsupportedRequest

log = logging.getLogger(__name__)

BEAT_S = 10.0  # brokers forget a producer that is silent for 120 s
ASK_S = 2.0
TOPICS_MAX = 1000  # that are announced
Question = tuple[tuple[str, ...], str, str]
"""May this caller publish to a topic, at a master?"""


class Announcing:
    def __init__(
        self,
        runtime: Runtime,
        node: GatewayNode,
        address: str,
        clients: Clients,
        commands: Commands,
        directory: Directory,
        peers: Peers,
    ) -> None:
        """`address`: the gateway's own."""
        self._runtime = runtime
        self._node = node
        self._client_id = f"gateway@{address}"
        self._clients = clients
        self._commands = commands
        self._directory = directory
        self._peers = peers
        self._turns = count()
        self._known: dict[str, set[str]] = {}  # the topics that a broker has heard of, by address

    async def run(self) -> None:
        """Announce until cancelled."""
        while True:
            await self._runtime.sleep(BEAT_S)
            wanted = await self._wanted()
            told = (
                self._tell(address, wanted.get(address, set()))
                for address in wanted.keys() | self._known.keys()
            )
            await asyncio.gather(*told)

    async def _wanted(self) -> dict[str, set[str]]:
        """The topics with transactions that clients here produce for, by the addresses of other
        masters. A slave's master has its name, but asks clients of its own only."""
        producers: dict[str, list[Client]] = {}
        for client in self._clients:
            for topic in client.topics:
                producers.setdefault(topic, []).append(client)
        reached = [
            topic for topic in producers if any(each.has_stream for each in producers[topic])
        ]
        answers: dict[Question, bool] = {}
        wanted: dict[str, set[str]] = {}
        for topic in islice(sorted(reached), TOPICS_MAX):
            try:
                facts = await self._directory.topic(topic)
                has_transactions = Type.TRANSACTION in facts.types
            except SaturnError:
                continue  # a topic that is gone, or nobody knows now
            if not has_transactions:
                continue
            own = self._node.address
            masters = dict.fromkeys(
                each.master for each in facts.route.brokers if each.master and each.master != own
            )
            for master in await self._allow(topic, producers[topic], masters.keys(), answers):
                wanted.setdefault(master, set()).add(topic)
        return wanted

    async def _allow(
        self,
        topic: str,
        producers: Iterable[Client],
        masters: Collection[str],
        answers: dict[Question, bool],
    ) -> Collection[str]:
        """The masters at which a producer here may publish to a topic: this node tells them of it,
        they believe it, and ask with whole messages. So a client is asked if it may publish at all
        of them."""
        is_found = False
        for client in producers:
            allowed = [await self._may(client, topic, each, answers) for each in masters]
            others = client.allowed - {topic}
            client.allowed = others | {topic} if all(allowed) else others
            is_found |= all(allowed) and client.has_stream
        return masters if is_found else ()

    async def _may(
        self, client: Client, topic: str, master: str, answers: dict[Question, bool]
    ) -> bool:
        question = tuple(client.caller.values()), topic, master
        if question not in answers:
            try:
                answers[question] = await self._directory.may_publish(client.caller, topic, master)
            except SaturnError:  # it does not know now
                answers[question] = topic in client.allowed
        return answers[question]

    async def _tell(self, address: str, topics: set[str]) -> None:
        """Tell a broker for which topics clients here produce."""
        requests = []
        if topics:
            document = {
                "clientID": self._client_id,
                "producerDataSet": [{"groupName": topic} for topic in sorted(topics)],
                "consumerDataSet": [],
            }
            requests.append(Command.request(RequestCode.HEART_BEAT, None, fastjson.dumps(document)))
        for topic in self._known.get(address, set()) - topics:
            ext = {"clientID": self._client_id, "producerGroup": topic}
            requests.append(Command.request(RequestCode.UNREGISTER_CLIENT, ext))
        self._known[address] = topics
        try:
            for request in requests:
                await self._peers.ask(address, request, ASK_S)
        except SaturnError as error:
            log.info("broker %s does not hear of producers here: %s", address, error)
        if not topics:
            del self._known[address]

    def asked(self, command: Command) -> None:
        """A broker asks over the gateway's connection to it. SaturnError: nobody answers."""
        if command.code != RequestCode.CHECK_TRANSACTION_STATE:
            raise UnsupportedRequest(f"a gateway answers no request {command.code}")
        question = recovery(command)
        topic = question.recover_orphaned_transaction_command.message.topic.name
        producers = [each for each in self._clients if each.has_stream and topic in each.allowed]
        if producers:
            self._commands.tell(producers[next(self._turns) % len(producers)], question)
