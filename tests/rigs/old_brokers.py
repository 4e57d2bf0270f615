"""A RocketMQ broker older than 5.3 for Admin, in virtual time: it answers as 4.9.7 and 5.1.4 do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from core_world import World
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import BrokerData, QueueData, TopicRoute

V4_9_7, V5_1_4 = 407, 441
TOPIC, GROUP = "T", "G"
QUEUES = 2
END = 10
MOMENT_MS, AT_MOMENT = 5_000, 4
"""A time, and the offset of the first message since then in every queue."""


def queue(number: int) -> MessageQueue:
    return MessageQueue(TOPIC, "a", number)


class OldBroker:
    """Has a topic of two queues with ten messages each, and groups with offsets and members."""

    def __init__(self, world: World, version: int, *, server_side: bool = False) -> None:
        """`server_side`: with `useServerSideResetOffset`."""
        self.version = version
        self.server_side = self.heeds_queues = server_side
        self.groups: dict[str, dict[str, Any]] = {GROUP: {"groupName": GROUP, "retryMaxTimes": 16}}
        self.topics: dict[str, dict[str, Any]] = {
            TOPIC: {"topicName": TOPIC, "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
        }
        self.offsets = {queue(number): END for number in range(QUEUES)}  # of GROUP
        self.members: list[dict[str, str]] = []
        self.told: list[dict[MessageQueue, int]] = []
        self.deleted: list[dict[str, str]] = []
        self.denies: set[int] = set()
        server = world.servers[2]
        server.does = self.serve
        self.address = server.address
        world.topics[TOPIC] = TopicRoute(
            [QueueData("a", QUEUES, QUEUES, 6)], [BrokerData("C", "a", {0: server.address})]
        )

    def serve(self, endpoint: Endpoint, command: Command) -> None:
        known: dict[int, Callable[[Command], Command]] = {
            RequestCode.GET_ALL_TOPIC_CONFIG: self.all_topics,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all_groups,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.set_group,
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.set_topic,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete_group,
            RequestCode.GET_BROKER_CONFIG: self.settings,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.connections,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset,
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.commit,
            RequestCode.GET_MIN_OFFSET: self.first,
            RequestCode.GET_MAX_OFFSET: self.end,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search,
        }
        if self.version >= V5_1_4:
            known[RequestCode.GET_TOPIC_CONFIG] = self.topic_config
            known[RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG] = self.group_config
        answer = known.get(command.code, self.unknown)(command)
        if command.code in self.denies:
            answer = command.reply(ResponseCode.NO_PERMISSION, "User:ann has no permission")
        answer.version, answer.language = self.version, "JAVA"
        endpoint.send(answer, command)

    def unknown(self, command: Command) -> Command:
        return command.reply(3, f" request type {command.code} not supported")

    # -- settings of topics and groups -----------------------------------------------------------

    def topic_config(self, command: Command) -> Command:
        found = self.topics.get(command.ext["topic"])
        if found is None:
            return command.reply(17, f"No topic in this broker. topic: {command.ext['topic']}")
        return command.reply(body=fastjson.dumps(found))

    def group_config(self, command: Command) -> Command:
        found = self.groups.get(command.ext["group"])
        if found is None:
            return command.reply(1, "No group in this broker")
        return command.reply(body=fastjson.dumps(found))

    def all_topics(self, command: Command) -> Command:
        return command.reply(body=fastjson.dumps({"topicConfigTable": self.topics}))

    def all_groups(self, command: Command) -> Command:
        return command.reply(body=fastjson.dumps({"subscriptionGroupTable": self.groups}))

    def set_group(self, command: Command) -> Command:
        group = fastjson.loads(command.body)
        self.groups[group["groupName"]] = group
        return command.reply()

    def set_topic(self, command: Command) -> Command:
        ext = command.ext
        numbers = {key: int(ext[key]) for key in ("readQueueNums", "writeQueueNums", "perm")}
        self.topics[ext["topic"]] = {"topicName": ext["topic"], **numbers}
        return command.reply()

    def delete_group(self, command: Command) -> Command:
        del self.groups[command.ext["groupName"]]
        name = "removeOffset" if self.version < V5_1_4 else "cleanOffset"
        if command.ext.get(name) == "true":
            self.offsets.clear()
        return command.reply()

    def settings(self, command: Command) -> Command:
        text = "brokerName=a\n"
        if self.version >= V5_1_4:
            text += f"useServerSideResetOffset={str(self.server_side).lower()}\n"
        return command.reply(body=text.encode())

    # -- offsets ---------------------------------------------------------------------------------

    def connections(self, command: Command) -> Command:
        if not self.members:
            group = command.ext["consumerGroup"]
            return command.reply(206, f"the consumer group[{group}] not online")
        return command.reply(body=fastjson.dumps({"connectionSet": self.members}))

    def reset(self, command: Command) -> Command:
        """Tells the members, of all queues, and heeds the time only."""
        ext = command.ext
        at = self.goal(int(ext["timestamp"]))
        goals = {queue(number): at for number in range(QUEUES)}
        if self.server_side:
            if self.heeds_queues and int(ext["queueId"]) >= 0:
                at = int(ext["offset"]) if int(ext["offset"]) >= 0 else at
                goals = {queue(int(ext["queueId"])): at}
        elif set(self.offsets) != set(goals):
            return command.reply(1, f"THe consumer group <{ext['group']}> not exist")
        elif not self.members:
            return command.reply(206, "Consumer not online, so can not reset offset")
        self.told.append(goals)
        self.offsets.update(goals)
        table = b'{"offsetTable":' + fastjson.dumps_mq_map(goals) + b"}"
        return command.reply(body=table)

    def query(self, command: Command) -> Command:
        """Without a word of the group it is 0 as long as the first message is there."""
        return command.reply(ext={"offset": str(self.offsets.get(self.of(command), 0))})

    def commit(self, command: Command) -> Command:
        self.offsets[self.of(command)] = int(command.ext["commitOffset"])
        return command.reply()

    def first(self, command: Command) -> Command:
        return command.reply(ext={"offset": "0"})

    def end(self, command: Command) -> Command:
        return command.reply(ext={"offset": str(END)})

    def search(self, command: Command) -> Command:
        return command.reply(ext={"offset": str(self.goal(int(command.ext["timestamp"])))})

    def of(self, command: Command) -> MessageQueue:
        return queue(int(command.ext["queueId"]))

    @staticmethod
    def goal(timestamp_ms: int) -> int:
        return {-1: END, 0: 0, MOMENT_MS: AT_MOMENT}[timestamp_ms]
