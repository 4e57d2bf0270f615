"""Rounds of rebalance: when they come, who is asked for the members, and what they decide."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from saturnmq.client.consumer.membership import Membership
from saturnmq.client.consumer.starting import Baseline
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import ConnectionLost, TopicNotExist, UnsupportedRequest

T0, T1, T2, T3 = (MessageQueue("T", "ab"[n // 2], n % 2) for n in range(4))
U0 = MessageQueue("U", "b", 0)
MEMBERS, ASSIGNMENT = 38, 400


class Group:
    """A member, what it holds and was told, and what Membership uses of ClientCore."""

    client_id = "me"

    def __init__(self, *topics: str) -> None:
        self.core: Any = self
        self.runtime: Any = self
        self.routes: Any = self
        self.subscriptions: Any = dict.fromkeys(topics or ("T",))
        self.broadcasting = False
        self.baseline = Baseline()
        self.held: list[MessageQueue] = []
        self.locked_by_others: set[MessageQueue] = set()
        self.queues = {"T": [T0, T1, T2, T3], "U": [U0]}
        self.replicas = {"a": {1: "a1", 0: "a0"}, "b": {0: "b0"}}
        self.answers: dict[str, Any] = {"a0": ["me"], "a1": ["me"], "b0": ["me"]}
        self.asked: list[str] = []
        self.heartbeats = 0
        self.pauses: list[float] = []
        self.rounds = 0
        self.made = Membership(self.core, "G", "AVG", 20.0, self)  # type: ignore[arg-type]

    def held_queues(self) -> list[MessageQueue]:
        return list(self.held)

    async def take_queues(self, queues: Sequence[MessageQueue]) -> bool:
        self.rounds += 1
        self.held += [q for q in queues if q not in self.held and q not in self.locked_by_others]
        return set(queues) <= set(self.held)

    async def give_up_queues(self, queues: Sequence[MessageQueue]) -> None:
        assert queues, "nobody is told to give up nothing"
        self.held = [queue for queue in self.held if queue not in queues]

    async def route(self, topic: str) -> None:
        if topic not in self.queues:
            raise TopicNotExist(f"no topic {topic}")

    def subscribe_queues(self, topic: str) -> list[MessageQueue]:
        return self.queues.get(topic, [])

    def brokers(self) -> dict[str, dict[int, str]]:
        return self.replicas

    async def invoke(self, address: str, cmd: Command) -> Command:
        assert (cmd.code, cmd.ext) == (MEMBERS, {"consumerGroup": "G"})
        self.asked.append(address)
        answer = self.answers[address]
        if isinstance(answer, Exception):
            raise answer
        return cmd.reply(body=json.dumps({"consumerIdList": answer}).encode())

    async def heartbeat_now(self) -> None:
        self.heartbeats += 1

    def call_later(self, delay: float, wake: Any) -> Any:
        self.pauses.append(delay)
        return self

    def cancel(self) -> None:
        self.pauses.append(0.0)

    def round(self) -> bool:
        self.asked.clear()
        return asyncio.run(self.made.rebalance())


@pytest.mark.parametrize(
    ("members", "mine"),
    [(["me"], [T0, T1, T2, T3]), (["a", "me"], [T2, T3]), (["me", "you"], [T0, T1])],
)
def test_a_member_takes_its_share_and_gives_up_the_rest(
    members: list[str], mine: list[MessageQueue]
) -> None:
    group = Group()
    group.held = [T1, T2, U0]  # U is not subscribed to any more
    group.answers["a0"] = members
    assert group.round()
    assert (sorted(group.held), group.asked, group.heartbeats) == (mine, ["a0"], 0)


@pytest.mark.parametrize(
    "bad", [ConnectionLost("away"), ["you"], [], "nonsense", [7], None], ids=repr
)
def test_who_the_members_are_is_asked_of_one_broker_after_another(bad: Any) -> None:
    group = Group()
    group.answers = {"a0": bad, "a1": bad, "b0": ["me", "you"]}
    assert group.round()
    assert (group.asked, group.held, group.heartbeats) == (["a0", "a1", "b0"], [T0, T1], 0)


def test_a_share_stays_while_no_broker_can_tell_and_other_topics_are_looked_after() -> None:
    group = Group("missing", "T", "U")
    group.held = [T3]
    group.replicas.pop("a")
    group.answers["b0"] = ["you"]
    assert not group.round()
    assert (group.held, group.heartbeats) == ([T3], 2), "so that the broker lists us"
    group.answers["b0"] = ["me"]
    assert not group.round(), "one topic is missing"
    assert sorted(group.held) == [T0, T1, T2, T3, U0]
    group.subscriptions.pop("missing")
    assert group.round()
    group.held.remove(T2)
    group.locked_by_others = {T2}
    assert not group.round()


def test_of_many_topics_a_broker_is_asked_once_a_round() -> None:
    topics = [f"T{number}" for number in range(20)]
    group = Group(*topics, "U")
    group.queues |= {topic: [MessageQueue(topic, name, 0) for name in "ab"] for topic in topics}
    assert group.round()
    assert group.asked == ["a0", "b0"], "U is at b only"
    assert len(group.held) == 41


def test_who_broadcasts_takes_everything_and_asks_nobody() -> None:
    group = Group()
    group.broadcasting = True
    assert group.round()
    assert (group.held, group.asked) == ([T0, T1, T2, T3], [])


def test_rounds_come_by_the_interval_and_every_second_while_something_is_missing() -> None:
    group = Group()

    async def main() -> None:
        running = asyncio.ensure_future(group.made.run())

        async def pause(rounds: int) -> list[float]:
            while group.rounds < rounds or not group.pauses[2 * rounds - 2 :]:
                await asyncio.sleep(0)
            return group.pauses[2 * rounds - 2 :]

        assert await pause(1) == [20.0]
        group.locked_by_others = {T0}
        group.held.clear()
        group.made.trigger()
        assert await pause(2) == [1.0]
        group.locked_by_others.clear()
        group.made.trigger()
        assert await pause(3) == [20.0]
        for _ in range(10):
            await asyncio.sleep(0)
        assert group.rounds == 3, "only when the time is over, or it is told"
        running.cancel()

    asyncio.run(asyncio.wait_for(main(), 10))


ANY_A, ANY_B = MessageQueue("T", "a", -1), MessageQueue("T", "b", -1)


class PoppingGroup(Group):
    """A group that can pop: its brokers say which topics it pops, or, as RocketMQ's, do not."""

    def __init__(self, *topics: str, pops: list[str] | None = None) -> None:
        super().__init__(*topics)
        self.pops = pops
        self.popped: dict[str, list[MessageQueue]] = {}
        self.assignment: Any = []
        self.questions: list[str] = []
        self.made = Membership(self.core, "G", "AVG", 20.0, self, self)  # type: ignore[arg-type]

    # its part that pops

    def topics(self) -> list[str]:
        return [topic for topic, queues in self.popped.items() if queues]

    def pop(self, topic: str, queues: Sequence[MessageQueue]) -> None:
        self.popped[topic] = list(queues)

    # its brokers

    async def invoke(self, address: str, cmd: Command) -> Command:
        if cmd.code == MEMBERS:
            assert cmd.ext == {"consumerGroup": "G", "saturnPops": "true"}
            told = {} if self.pops is None else {"saturnPops": self.pops}
            return cmd.reply(body=json.dumps({"consumerIdList": ["me"], **told}).encode())
        assert cmd.code == ASSIGNMENT
        asked = json.loads(bytes(cmd.body))
        self.questions.append(asked["topic"])
        assert (asked["consumerGroup"], asked["clientId"]) == ("G", "me")
        if isinstance(self.assignment, Exception):
            raise self.assignment
        return cmd.reply(body=json.dumps({"messageQueueAssignments": self.assignment}).encode())

    def assigns(self, mode: str, *queues: MessageQueue) -> None:
        self.assignment = [
            {
                "mode": mode,
                "messageQueue": {
                    "topic": queue.topic,
                    "brokerName": queue.broker_name,
                    "queueId": queue.queue_id,
                },
            }
            for queue in queues
        ]


def test_only_a_popped_topic_is_asked_for_its_assignment_and_its_pulled_queues_are_left() -> None:
    group = PoppingGroup("T", "U", pops=["T"])
    group.held = [T0, T3]
    group.assigns("POP", ANY_A, ANY_B)
    assert group.round()
    assert (group.questions, group.held) == (["T"], [U0])
    assert group.popped == {"T": [ANY_A, ANY_B], "U": []}
    group.pops = []
    assert group.round()
    assert (group.questions, sorted(group.held)) == (["T"], [T0, T1, T2, T3, U0])
    assert group.popped["T"] == []


def test_a_mode_that_changed_since_the_members_were_asked_counts() -> None:
    group = PoppingGroup("T", pops=["T"])
    group.assigns("PULL", T0, T1, T2, T3)
    assert group.round()
    assert (sorted(group.held), group.popped) == ([T0, T1, T2, T3], {"T": []})


@pytest.mark.parametrize(
    "problem", [ConnectionLost("away"), "nonsense", [{"mode": "POP", "messageQueue": 7}]]
)
def test_a_topic_stays_as_it_is_while_its_broker_does_not_tell_how_to_read_it(
    problem: Any,
) -> None:
    group = PoppingGroup("T", pops=["T"])
    group.assignment = problem
    group.held = [T0]
    assert not group.round()
    assert (group.held, group.popped) == ([T0], {})


def test_a_broker_of_rocketmqs_is_asked_for_each_topic_and_without_an_answer_it_is_pulled() -> None:
    group = PoppingGroup("T", "U", "%RETRY%G")
    retries = group.queues["%RETRY%G"] = [MessageQueue("%RETRY%G", "a", 0)]
    group.assigns("POP", ANY_A)
    assert group.round()
    assert group.questions == ["T", "U"]
    assert (group.popped["T"], group.held) == ([ANY_A], retries)
    group.assignment = UnsupportedRequest("request type 400 not supported")
    assert not group.round(), "what is popped stays so"
    assert group.popped["T"] == [ANY_A]
    fresh = PoppingGroup("T")
    fresh.assignment = UnsupportedRequest("request type 400 not supported")
    assert fresh.round()
    assert sorted(fresh.held) == [T0, T1, T2, T3]


def test_a_topic_that_is_no_longer_subscribed_is_no_longer_popped() -> None:
    group = PoppingGroup("T", "U", pops=["T"])
    group.assigns("POP", ANY_A)
    assert group.round()
    del group.subscriptions["T"]
    assert group.round()
    assert group.popped["T"] == []
