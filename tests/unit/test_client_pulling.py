"""One pull: which replica is asked, for how much, and what becomes of its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from consumer_world import Q0, World
from saturnmq import PullConsumer
from saturnmq.client.consumer.pulling import Pulled, Puller
from saturnmq.client.terms import note_term
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.subscription import Subscription
from saturnmq.runtime.errors import (
    ConfigError,
    ConnectionLost,
    MalformedFrame,
    RouteNotFound,
    SubscriptionNotExist,
)

FOUND, NOT_FOUND, AT_ONCE, MOVED = 0, 19, 20, 21
MASTER, SLAVE, THIRD = "master", "slave", "third"
Answer = Command | Exception
TERM_FIELDS = ("saturnTerm", "saturnEpochs")


class Replicas:
    """What Puller uses of ClientCore; `answer` is asked for each answer."""

    client_id = "me"

    def __init__(self, *replicas: str) -> None:
        self.runtime: Any = self
        self.routes: Any = self
        self.now = 1000.0
        self.replicas = dict(enumerate(replicas or (MASTER, SLAVE)))
        self.terms: dict[Any, dict[str, str]] = {}
        self.refreshed: list[str] = []
        self.asked: list[str] = []
        self.ext: dict[str, str] = {}
        self.timeout = 0.0
        self.answer: Callable[[str, Command], Answer] = lambda _, cmd: reply(cmd)
        self.puller = Puller(self, "G", {"T": Subscription.parse("T", "*", 8)})  # type: ignore[arg-type]

    def monotonic(self) -> float:
        return self.now

    def brokers(self) -> dict[str, dict[int, str]]:
        return {"a": self.replicas} if self.replicas else {}

    def broker_address(self, name: str) -> str | None:
        return self.replicas.get(0)

    def refresh_soon(self, topic: str) -> None:
        self.refreshed.append(topic)

    async def invoke(self, address: str, cmd: Command, timeout: float, *, ok: Any) -> Command:
        self.asked.append(address)
        self.ext, self.timeout = cmd.ext, timeout
        answer = self.answer(address, cmd)
        if isinstance(answer, Exception):
            raise answer
        assert answer.code in ok
        return answer

    def pull(self, offset: int = 0, **how: Any) -> Pulled:
        """As a consumer does that goes on from there."""
        self.asked.clear()
        pulled = asyncio.run(self.puller.pull(Q0, offset, **how))
        note_term(self.terms, "G", Q0, pulled.term)  # type: ignore[arg-type]
        return pulled


def frames(count: int) -> list[bytes]:
    world = World(queues=1)
    world.loop.close()
    for n in range(count):
        world.send(0, b"%d" % n)
    return world.frames[Q0]


def reply(
    cmd: Command, code: int = NOT_FOUND, body: bytes = b"", language: str = "JAVA", **ext: int | str
) -> Command:
    answer = cmd.reply(code, ext={name: str(value) for name, value in ext.items()}, body=body)
    answer.language = language
    return answer


def test_a_topic_that_was_left_is_not_pulled_any_more() -> None:
    world, subscribed = Replicas(), {"T": Subscription.parse("T", "*", 8)}
    world.puller = Puller(world, "G", subscribed)  # type: ignore[arg-type]

    def leave(_: str, cmd: Command) -> Command:
        subscribed.clear()
        return reply(cmd, FOUND, b"".join(frames(1)), nextBeginOffset=1, minOffset=0, maxOffset=1)

    world.answer = leave
    for asked in ([MASTER], []):
        with pytest.raises(SubscriptionNotExist, match="topic T is not subscribed any more"):
            world.pull()
        assert world.asked == asked


def test_a_foreign_broker_is_asked_for_what_rocketmqs_clients_ask_for_and_ours_for_more() -> None:
    world = Replicas()
    world.puller = Puller(world, "G", {"T": Subscription.parse("T", "x || y", 8)})  # type: ignore[arg-type]
    languages = iter(["PYTHON", "JAVA", "JAVA"])
    world.answer = lambda _, cmd: reply(cmd, language=next(languages), maxOffset=7)
    first = {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": "0",
        "queueOffset": "7",
        "maxMsgNums": "32",
        "sysFlag": "6",
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subscription": "x || y",
        "subVersion": "8",
        "expressionType": "TAG",
        "maxMsgBytes": str(256 * 1024),
        "bname": "a",
    }
    ours = {"maxMsgNums": "2048", "maxMsgBytes": str(2048 * 1024), "saturnLimits": "true"}
    for expected in (first, first | ours, first):  # the third: it is another one by now
        world.pull(7)
        assert world.ext == expected
        assert world.timeout == 25.0, "a broker looks for those whose time is over every 5 s"


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"suspend_s": 0.0}, {"sysFlag": "4", "suspendTimeoutMillis": "0"}),
        ({"suspend_s": 0.5}, {"sysFlag": "6", "suspendTimeoutMillis": "500"}),
        ({"commit_offset": 0}, {"sysFlag": "7", "commitOffset": "0"}),
        ({"commit_offset": 5}, {"sysFlag": "7", "commitOffset": "5"}),
        ({"max_count": 31}, {"maxMsgNums": "31"}),
        ({"max_count": 33}, {"maxMsgNums": "32"}),
    ],
)
def test_what_a_pull_asks_for_is_in_its_request(how: Any, expected: dict[str, str]) -> None:
    world = Replicas()
    world.pull(**how)
    assert {name: world.ext[name] for name in expected} == expected


def test_limits_of_a_puller_count_where_they_are_smaller() -> None:
    world = Replicas()
    options = {"hold_s": 60.0, "max_count": 3, "max_bytes": 1000}
    world.puller = Puller(world, "G", {"T": Subscription.parse("T", "*")}, **options)  # type: ignore[arg-type]
    world.pull()
    assert (world.ext["maxMsgNums"], world.ext["maxMsgBytes"]) == ("3", "1000")
    assert world.ext["suspendTimeoutMillis"] == "60000"


@pytest.mark.parametrize(("hold_s", "good"), [(0.1, True), (60, True), (0.09, False), (61, False)])
def test_how_long_a_broker_may_hold_a_pull_is_bounded(hold_s: float, good: bool) -> None:
    if good:
        PullConsumer("G", "127.0.0.1:1", hold_s=hold_s).close()
        return
    with pytest.raises(ConfigError, match=r"0\.1 to 60 seconds"):
        PullConsumer("G", "127.0.0.1:1", hold_s=hold_s)


@pytest.mark.parametrize(("queues", "seconds"), [(1, 15), (1500, 15), (2000, 20), (9000, 60)])
def test_a_consumer_of_many_queues_waits_longer_at_each(queues: int, seconds: float) -> None:
    async def body() -> None:
        answers = asyncio.get_running_loop().create_future()
        asked: list[str] = []

        async def invoke(_: str, cmd: Command, timeout: float, *, ok: Any) -> Command:
            asked.append(cmd.ext["suspendTimeoutMillis"])
            await answers
            return reply(cmd)

        world = Replicas()
        world.invoke = invoke  # type: ignore[method-assign]
        pulls = [world.puller.pull(MessageQueue("T", "a", number), 0) for number in range(queues)]
        tasks = [asyncio.ensure_future(pull) for pull in pulls]
        await asyncio.sleep(0)
        answers.set_result(None)
        await asyncio.gather(*tasks)
        await world.puller.pull(Q0, 0)
        assert abs(int(asked[queues - 1]) / 1000 - seconds) <= 0.05
        assert asked[-1] == "15000"

    asyncio.run(body())


def test_the_suggested_replica_is_asked_and_without_a_suggestion_the_master() -> None:
    world = Replicas(MASTER, SLAVE, THIRD)
    for suggested, expected in [(2, MASTER), (1, THIRD), (5, SLAVE), (None, MASTER), (0, MASTER)]:
        ext = {} if suggested is None else {"suggestWhichBrokerId": suggested}
        world.answer = lambda _, cmd, ext=ext: reply(cmd, **ext)  # type: ignore[misc]
        world.pull()
        assert world.asked == [expected]
        assert world.ext["sysFlag"] == "6"
    world.answer = lambda _, cmd: reply(cmd, suggestWhichBrokerId=1)
    world.pull()
    world.pull(commit_offset=5)
    assert (world.asked, world.ext["sysFlag"]) == ([SLAVE], "6"), "a slave takes no commits"


def test_a_replica_that_fails_is_passed_over_for_three_seconds() -> None:
    world = Replicas(MASTER, SLAVE, THIRD)
    down = {MASTER, SLAVE}

    def answer(address: str, cmd: Command) -> Answer:
        return ConnectionLost(address) if address in down else reply(cmd)

    world.answer = answer
    world.pull()
    assert world.asked == [MASTER, SLAVE, THIRD]
    assert world.refreshed == ["T", "T"]
    down.clear()
    for now, expected in [(1002.9, THIRD), (1003.0, MASTER)]:
        world.now = now
        world.pull()
        assert world.asked == [expected]
    down |= {MASTER, SLAVE, THIRD}
    with pytest.raises(ConnectionLost, match=THIRD):
        world.pull()
    assert world.asked == [MASTER, SLAVE, THIRD]
    with pytest.raises(ConnectionLost, match=MASTER):
        world.pull(commit_offset=5)
    assert world.asked == [MASTER], "of those that all failed the first"
    assert world.ext["sysFlag"] == "7", "which takes commits"


def test_nonsense_of_a_replica_is_logged_and_a_lost_connection_is_not_called_so(
    caplog: Any,
) -> None:
    for first, logged in [(ConnectionLost("away"), False), (None, True)]:
        world = Replicas()
        answers = iter([first, first])

        def answer(_: str, cmd: Command, answers: Any = answers) -> Answer:
            return next(answers) or reply(cmd, FOUND, nextBeginOffset=-1)

        world.answer = answer
        with pytest.raises((ConnectionLost, MalformedFrame)):
            world.pull()
        assert world.asked == [MASTER, SLAVE]
        assert ("answers a pull of" in caplog.text) == logged


def test_a_suggestion_ends_with_a_failure() -> None:
    world = Replicas(MASTER, SLAVE, THIRD)
    world.answer = lambda _, cmd: reply(cmd, suggestWhichBrokerId=2)
    world.pull()
    world.answer = lambda address, cmd: ConnectionLost(address) if address == THIRD else reply(cmd)
    world.pull()
    assert world.asked == [THIRD, MASTER]


def test_a_topic_whose_brokers_nobody_knows_is_asked_for_anew() -> None:
    world = Replicas()
    world.replicas = {}
    with pytest.raises(RouteNotFound, match="no broker a in the route of T"):
        world.pull()
    assert world.refreshed == ["T"]


def test_a_pull_is_misplaced_while_it_waits_for_a_broker_of_another_role() -> None:
    world = Replicas()
    found = [world.puller.misplaced(Q0)]

    def answer(_: str, cmd: Command) -> Answer:
        found.append(world.puller.misplaced(Q0))
        world.replicas = {0: SLAVE, 1: MASTER}
        found.append(world.puller.misplaced(Q0))
        world.replicas = {}
        found.append(world.puller.misplaced(Q0))
        return reply(cmd)

    world.answer = answer
    world.pull()
    assert [*found, world.puller.misplaced(Q0)] == [False, False, True, True, False]


@pytest.mark.parametrize("address", [MASTER, SLAVE])
@pytest.mark.parametrize(
    ("code", "ext", "expected"),
    [
        (NOT_FOUND, {}, (10, False, False)),
        (NOT_FOUND, {"nextBeginOffset": 12}, (12, False, False)),
        (AT_ONCE, {}, (10, False, True)),
        (AT_ONCE, {"nextBeginOffset": 12}, (12, False, False)),
        (MOVED, {"nextBeginOffset": 12}, (12, True, False)),
    ],
)
def test_answers_without_messages(
    address: str, code: int, ext: Any, expected: tuple[int, bool, bool]
) -> None:
    world = Replicas(*((MASTER,) if address == MASTER else (MASTER, SLAVE)))
    if address == SLAVE:
        del world.replicas[0]
    world.answer = lambda _, cmd: reply(cmd, code, maxOffset=10, **ext)
    pulled = world.pull(10)
    assert (pulled.next_offset, pulled.moved, pulled.stalled) == expected
    assert (world.asked, pulled.messages) == ([address], [])


# Each: does the master live, the slave's nextBeginOffset, minOffset and maxOffset, and then the
# offset that is pulled next: None if the slave is not believed.
SLAVES_SAY = [
    (True, 10, 0, 10, 10),
    (True, 10, 10, 10, 10),
    (True, 9, 0, 10, None),  # backwards
    (True, 10, 0, 9, None),  # it lags
    (True, 15, 11, 20, None),  # it began late: the master has what it lacks
    (False, 15, 11, 20, 15),
    (False, 15, 17, 20, 17),
    (False, 9, 11, 20, None),
]


@pytest.mark.parametrize(("led", "following", "low", "high", "expected"), SLAVES_SAY)
def test_a_slave_moves_no_reader_backwards_nor_past_what_the_master_has(
    led: bool, following: int, low: int, high: int, expected: int | None
) -> None:
    world = Replicas()
    world.answer = lambda _, cmd: reply(cmd, maxOffset=10, suggestWhichBrokerId=1)
    world.pull(10)
    if not led:
        del world.replicas[0]
    ext = {"nextBeginOffset": following, "minOffset": low, "maxOffset": high, "saturnTerm": 3}
    world.answer = lambda _, cmd: reply(cmd, suggestWhichBrokerId=1, **ext)
    pulled = world.pull(10)
    assert world.asked == [SLAVE]
    believed = expected is not None
    assert (pulled.next_offset, pulled.stalled) == (expected if believed else 10, not believed)
    assert world.terms == ({("G", Q0): {"saturnTerm": "3"}} if believed else {})
    world.replicas[0] = MASTER
    world.pull(10)
    assert world.asked == [SLAVE if believed else MASTER]


def test_a_master_is_believed_whatever_it_says() -> None:
    world = Replicas()
    world.answer = lambda _, cmd: reply(cmd, MOVED, nextBeginOffset=2, minOffset=20, maxOffset=3)
    pulled = world.pull(10)
    assert (pulled.next_offset, pulled.moved) == (2, True)


def test_the_epoch_that_a_broker_says_is_told_to_the_next_that_is_asked() -> None:
    world = Replicas()
    world.answer = lambda _, cmd: reply(cmd, saturnTerm=7)
    world.pull()
    assert "saturnTerm" not in world.ext
    world.answer = lambda _, cmd: reply(cmd)
    for _ in range(2):
        world.pull()
        assert world.ext["saturnTerm"] == "7"


def test_the_epochs_of_a_log_are_told_once_and_repeated_until_another_log_is_read() -> None:
    world = Replicas()

    def says(code: int = NOT_FOUND, **said: Any) -> dict[str, str]:
        world.answer = lambda _, cmd: reply(cmd, code, **said)
        world.pull()
        return {name: text for name, text in world.ext.items() if name in TERM_FIELDS}

    assert says(saturnTerm=7, saturnEpochs="3-0,7-50") == {}
    for said in ({"saturnTerm": 7}, {}, {"saturnTerm": 9, "saturnEpochs": "3-0,9-40"}):
        assert says(**said) == {"saturnTerm": "7", "saturnEpochs": "3-0,7-50"}
    assert says(saturnTerm=11) == {"saturnTerm": "9", "saturnEpochs": "3-0,9-40"}
    assert says() == {"saturnTerm": "11"}, "a broker that does not say which"


def test_a_broker_that_cannot_say_where_to_go_on_says_nothing_of_the_log() -> None:
    world = Replicas(MASTER)
    world.answer = lambda _, cmd: reply(cmd, AT_ONCE, saturnTerm=7, nextBeginOffset=10)
    assert (world.pull(10).stalled, world.terms) == (True, {})
    world.answer = lambda _, cmd: reply(cmd, AT_ONCE, saturnTerm=7, nextBeginOffset=11)
    assert (world.pull(10).stalled, world.terms) == (False, {("G", Q0): {"saturnTerm": "7"}})


@pytest.mark.parametrize("said", ["7", "7-", "7-0;", "7-0,", "-7-0", "7-0," * 16 + "7-0", "x-0"])
def test_epochs_that_are_none_are_an_error_of_the_broker(said: str) -> None:
    world = Replicas(MASTER)
    world.answer = lambda _, cmd: reply(cmd, saturnTerm=7, saturnEpochs=said)
    with pytest.raises(MalformedFrame, match="saturnEpochs"):
        world.pull()


@pytest.mark.parametrize("following", [2, 1, None])
def test_an_answer_that_goes_on_before_its_own_end_is_refused(following: int | None) -> None:
    world = Replicas()
    ext = {} if following is None else {"nextBeginOffset": following}
    world.answer = lambda _, cmd: reply(cmd, FOUND, b"".join(frames(3)), **ext)
    wrong = "nextBeginOffset" if following is None else "2 of"
    both_at_once = following is None  # the header is read before another replica is asked
    for address in (SLAVE,) if both_at_once else (MASTER, SLAVE):
        with pytest.raises(MalformedFrame, match=wrong):
            world.pull()
        assert world.asked[-1] == address
    world.answer = lambda _, cmd: reply(cmd, FOUND, b"".join(frames(3)), nextBeginOffset=3)
    pulled = world.pull()
    assert [message.queue_offset for message in pulled.messages] == [0, 1, 2]
    assert (pulled.next_offset, pulled.size) == (3, sum(map(len, frames(3))))


# -- damage ----------------------------------------------------------------------------------------


class Damaged(Replicas):
    """Replicas with the same ten messages, of which each has some damaged."""

    def __init__(self, **damaged: set[int]) -> None:
        super().__init__(*damaged)
        self.log = frames(10)
        self.counts: list[int] = []

        def answer(address: str, cmd: Command) -> Answer:
            offset, count = int(cmd.ext["queueOffset"]), int(cmd.ext["maxMsgNums"])
            self.counts.append(count)
            taken = [
                frame[:88] + b"?" + frame[89:] if n in damaged[address] else frame
                for n, frame in enumerate(self.log)
            ][offset : offset + count]
            following = {"nextBeginOffset": offset + len(taken), "maxOffset": len(self.log)}
            return reply(cmd, FOUND if taken else NOT_FOUND, b"".join(taken), **following)

        self.answer = answer

    def read(self, **options: Any) -> list[int]:
        """Offsets of what can be read, by as many pulls as it takes."""
        subscriptions = {"T": Subscription.parse("T", "*")}
        self.puller = Puller(self, "G", subscriptions, **options)  # type: ignore[arg-type]
        found, offset = [], 0
        while offset < len(self.log):
            pulled = self.pull(offset)
            assert pulled.next_offset == offset + len(pulled.messages) or not pulled.messages
            found += [message.queue_offset for message in pulled.messages]
            assert pulled.stalled == (pulled.next_offset == offset)
            offset = pulled.next_offset
        return found


def test_a_message_that_one_replica_has_damaged_is_read_from_another(caplog: Any) -> None:
    world = Damaged(master={4}, slave=set())
    assert world.read() == list(range(10))
    assert world.asked[-1] == SLAVE
    assert "is damaged on every broker" not in caplog.text


def test_a_message_that_all_have_damaged_is_told_and_passed_over(caplog: Any) -> None:
    world = Damaged(master={4}, slave={4})
    assert world.read() == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert caplog.text.count("the message at 4 of") == 1


def test_behind_the_damage_many_are_read_at_once_again() -> None:
    world = Damaged(master={4})
    assert world.read() == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    # As many as it may, then one by one: four whole ones, the damaged one, and one that is whole.
    assert world.counts == [32, 1, 1, 1, 1, 1, 1, 32]


def test_messages_are_read_one_by_one_for_as_many_as_an_answer_may_have() -> None:
    world = Damaged(master={2}, slave=set())
    assert world.read(max_count=3) == list(range(10))
    assert world.counts == [3, 1, 1, 1, 3, 3, 3]


def test_damage_is_not_passed_over_while_no_broker_of_the_queue_is_known() -> None:
    world = Damaged(master={0})
    whole = world.answer
    world.pull()

    def leaving(address: str, cmd: Command) -> Answer:
        world.replicas = {}
        return whole(address, cmd)

    world.answer = leaving
    pulled = world.pull()
    assert (pulled.next_offset, pulled.stalled) == (0, True)


def test_behind_a_damaged_message_it_goes_on_even_if_the_broker_says_no_next_offset() -> None:
    world = Damaged(master={0})
    damaged = world.answer

    def answer(address: str, cmd: Command) -> Answer:
        found: Any = damaged(address, cmd)
        found.ext["nextBeginOffset"] = cmd.ext["queueOffset"]
        return found  # type: ignore[no-any-return]

    world.answer = answer
    assert [world.pull().next_offset for _ in range(2)] == [0, 1]


def test_crcs_are_checked_unless_that_is_not_wanted() -> None:
    assert Damaged(master={4}).read(verify_crc=False) == list(range(10))


@pytest.mark.parametrize(("topic", "shown"), [("%RETRY%G", "first"), ("T", "T")])
def test_a_retried_message_shows_the_topic_that_it_was_sent_to(topic: str, shown: str) -> None:
    world = Replicas()
    sent = World(queues=1, topic=topic)
    sent.loop.close()
    sent.send(0, b"x", RETRY_TOPIC="first")
    sent.send(0, b"y")
    queue = MessageQueue(topic, "a", 0)
    world.puller = Puller(world, "G", {topic: Subscription.parse(topic, "*")})  # type: ignore[arg-type]
    body = b"".join(sent.frames[queue])
    world.answer = lambda _, cmd: reply(cmd, FOUND, body, nextBeginOffset=2)
    pulled = asyncio.run(world.puller.pull(queue, 0))
    assert [message.topic for message in pulled.messages] == [shown, topic]
