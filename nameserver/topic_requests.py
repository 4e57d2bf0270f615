"""Requests about topics: lists of them, their permissions, and single topics that come and go.

Codes 205 206 216 217 224 304 311 312 313 327.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from saturnmq.protocol import fastjson
from saturnmq.protocol import nameserver_headers as ns
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.headers import NoFieldsHeader, TopicHeader
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import MASTER_ID, QueueData, TopicRoute, topic_name
from saturnmq.runtime.errors import InvalidParameter, MalformedFrame, NoPermission

from .answers import EncodedAnswers
from .living import LiveBroker
from .routes import RouteTable

# Bits of a topic's system flag: RocketMQ's cells ("units") have topics and subscriptions of their
# own.
UNIT, UNIT_SUB = 1, 2

Handler = Callable[[Endpoint, Command, Any], Command]


class TopicRequests:
    def __init__(
        self,
        routes: RouteTable,
        answers: EncodedAnswers,
        speaks_for: Callable[[Endpoint, LiveBroker], bool],
        make_room: Callable[[int, str], None],
    ) -> None:
        """`speaks_for`: whether messages over a connection come from that broker; `make_room` takes
        memory for so many more entries."""
        self._routes = routes
        self._answers = answers
        self._speaks_for = speaks_for
        self._make_room = make_room

    def handlers(self) -> dict[int, Handler]:
        code, units = RequestCode, self._unit_topics
        return {
            code.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write_perm,
            code.ADD_WRITE_PERM_OF_BROKER: self._add_write_perm,
            code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topics,
            code.GET_TOPICS_BY_CLUSTER: self._topics_by_cluster,
            code.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            code.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            code.REGISTER_TOPIC_IN_NAMESRV: self._register_topic,
            code.GET_UNIT_TOPIC_LIST: partial(units, UNIT, 0),
            code.GET_HAS_UNIT_SUB_TOPIC_LIST: partial(units, UNIT_SUB, 0),
            code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: partial(units, UNIT_SUB, UNIT),
        }

    def _topics(self, endpoint: Endpoint, command: Command, _: NoFieldsHeader) -> Command:
        listed = self._answers.view(command.code, lambda: {"topicList": self._routes.topics()})
        return command.reply(body=listed)

    def _unit_topics(
        self, flags: int, without: int, endpoint: Endpoint, command: Command, _: NoFieldsHeader
    ) -> Command:
        def view() -> dict[str, list[str]]:
            return {"topicList": self._routes.flagged_topics(flags, without)}

        return command.reply(body=self._answers.view(command.code, view))

    def _topics_by_cluster(
        self, endpoint: Endpoint, command: Command, header: ns.ClusterHeader
    ) -> Command:
        topics = self._routes.topics_by_cluster(header.cluster)
        return command.reply(body=fastjson.dumps({"topicList": topics}))

    def _system_topics(self, endpoint: Endpoint, command: Command, _: NoFieldsHeader) -> Command:
        return command.reply(body=fastjson.dumps(self._routes.system_topics()))

    def _delete_topic(
        self, endpoint: Endpoint, command: Command, header: ns.DeleteRoutesHeader
    ) -> Command:
        self._routes.delete_topic(header.topic, header.cluster)
        return command.reply()

    def _register_topic(self, endpoint: Endpoint, command: Command, header: TopicHeader) -> Command:
        """217: a broker of RocketMQ's tells one topic of its own (`enableSingleTopicRegister`)."""
        try:
            name = topic_name(header.topic)
            told = TopicRoute.from_json(fastjson.loads_request(command.body)).queues
        except MalformedFrame as error:
            raise InvalidParameter(f"the route of topic {header.topic}: {error}") from None
        for data in told:
            self._check_owner(endpoint, data)
        new = sum(self._routes.unknown(data.broker_name, [name]) for data in told)
        self._make_room(new, f"topic {name}")
        for data in told:
            self._routes.put_topic(name, data)
        return command.reply()

    def _check_owner(self, endpoint: Endpoint, data: QueueData) -> None:
        """InvalidParameter: no master of this name is registered; NoPermission: another broker
        speaks for it."""
        broker = data.broker_name
        address = self._routes.addresses(broker).get(MASTER_ID, "")
        live = self._routes.live(broker, address)
        if live is None:
            raise InvalidParameter(
                f"no master of broker {broker} is registered here: it has to register (103) first"
            )
        if not self._speaks_for(endpoint, live):
            raise NoPermission(
                f"{endpoint.peer_address} tells a topic of {broker} at {address}: only that broker "
                "itself may do so"
            )

    def _wipe_write_perm(
        self, endpoint: Endpoint, command: Command, header: ns.BrokerNameHeader
    ) -> Command:
        count = self._routes.wipe_write_perm(header.broker_name)
        return command.reply(ext={"wipeTopicCount": str(count)})

    def _add_write_perm(
        self, endpoint: Endpoint, command: Command, header: ns.BrokerNameHeader
    ) -> Command:
        count = self._routes.add_write_perm(header.broker_name)
        return command.reply(ext={"addTopicCount": str(count)})
