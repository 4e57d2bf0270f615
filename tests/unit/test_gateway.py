"""The calls of the gRPC API over a broker on a simulated machine: what each client gets back."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest
from gateway_rig import ADDRESS, Caller, Code, create_group, create_topic, served
from pop_rig import Popper
from saturnmq.gateway import v2
from world_rig import NOW, World, run

T = v2.Resource(name="T")


def test_a_message_comes_back_with_all_that_it_was_sent_with() -> None:
    async def body(world: World) -> None:
        _, caller = await served(world)
        sent = caller.message(b"hello", tag="A", keys=["k1", "k2"], user={"colour": "red"})
        answer = await caller.send(sent)
        (entry,) = answer.entries
        assert answer.status.code == entry.status.code == Code.OK
        message_id = sent.system_properties.message_id
        assert (entry.message_id, entry.transaction_id) == (message_id, message_id)
        assert entry.recall_handle == ""
        got = await caller.receive()
        assert got.code == Code.OK
        assert [part.WhichOneof("content") for part in got.parts] == [
            "status", "message", "delivery_timestamp",
        ]  # fmt: skip
        (message,) = got.messages
        assert message.body == b"hello"
        assert message.topic == T
        assert dict(message.user_properties) == {"colour": "red"}
        system = message.system_properties
        assert (system.tag, list(system.keys)) == ("A", ["k1", "k2"])
        assert system.message_id == message_id
        assert system.body_encoding == v2.Encoding.IDENTITY
        assert system.body_digest.type == v2.DigestType.MD5
        assert system.body_digest.checksum == hashlib.md5(b"hello").hexdigest().upper()
        assert system.born_timestamp.ToMilliseconds() == 1_700_000_000_123
        assert system.born_host == "sender"
        assert system.store_timestamp.ToMilliseconds() >= NOW
        assert system.delivery_attempt == 1
        assert system.queue_offset == entry.offset
        assert system.message_type == v2.MessageType.NORMAL
        assert system.receipt_handle

    run(body)


def test_a_namespace_is_no_part_of_a_name_as_at_rocketmqs_proxy() -> None:
    async def body(world: World) -> None:
        _, caller = await served(world)
        sent = caller.message(b"hello")
        sent.topic.resource_namespace = "space"
        assert (await caller.send(sent)).status.code == Code.OK
        route = await caller.ask("QueryRoute", topic=sent.topic)
        assert {queue.topic.resource_namespace for queue in route.message_queues} == {"space"}
        got = await caller.receive()
        assert (got.bodies, got.messages[0].topic) == ([b"hello"], T)

    run(body)


def test_the_same_message_is_read_over_remoting_and_the_other_way_round() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        await caller.send(caller.message(b"one", tag="A", keys=["k"], user={"n": "1"}))
        popper = Popper(await world.connect(broker.address))
        (got,) = await popper.pop()
        properties = got.message.properties
        wanted = {"TAGS": "A", "KEYS": "k", "n": "1", "UNIQ_KEY": f"01{1:032X}"}
        assert wanted.items() <= properties.items()
        assert got.message.born_timestamp == 1_700_000_000_123
        await popper.ack(got)
        names = {"TAGS": "B", "KEYS": "x y", "UNIQ_KEY": "ID", "n": "2", "PGROUP": "P"}
        assert (await popper.remote.send(b"two", **names)).code == 0
        (message,) = (await caller.receive()).messages
        system = message.system_properties
        assert (message.body, system.tag, list(system.keys)) == (b"two", "B", ["x", "y"])
        assert system.message_id == "ID"
        assert dict(message.user_properties) == {"n": "2"}  # PGROUP is the system's

    run(body)


def test_an_acknowledged_message_is_gone_and_its_handle_dead() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        await caller.send(caller.message(b"a"))
        (message,) = (await caller.receive(invisible_ms=10_000)).messages
        answer = await caller.ack(message)
        assert answer.status.code == answer.entries[0].status.code == Code.OK
        again = await caller.ack(message)
        assert again.status.code == again.entries[0].status.code == Code.INVALID_RECEIPT_HANDLE
        assert again.entries[0].receipt_handle == message.system_properties.receipt_handle
        await asyncio.sleep(12)
        assert (await caller.receive()).code == Code.MESSAGE_NOT_FOUND
        broker.validate()

    run(body)


def test_acknowledgements_of_one_call_are_told_one_by_one() -> None:
    async def body(world: World) -> None:
        _, caller = await served(world)
        await caller.send(caller.message(b"a"), caller.message(b"b"))
        good = (await caller.receive()).messages
        assert len(good) == 2
        bad = v2.Message()
        bad.system_properties.receipt_handle = "no handle"
        answer = await caller.ack(good[0], bad, good[1])
        assert answer.status.code == Code.MULTIPLE_RESULTS
        found = [entry.status.code for entry in answer.entries]
        assert found == [Code.OK, Code.INVALID_RECEIPT_HANDLE, Code.OK]

    run(body)


def test_an_unacknowledged_message_comes_again_with_one_attempt_more() -> None:
    async def body(world: World) -> None:
        _, caller = await served(world)
        await caller.send(caller.message(b"a"))
        first = (await caller.receive(invisible_ms=10_000)).messages[0].system_properties
        again = (await caller.receive(poll_ms=20_000)).messages[0].system_properties
        assert (first.delivery_attempt, again.delivery_attempt) == (1, 2)
        assert again.receipt_handle != first.receipt_handle
        assert again.message_id == first.message_id

    run(body)


def test_a_change_of_the_invisible_time_gives_a_new_handle_and_ends_the_old_one() -> None:
    async def body(world: World) -> None:
        _, caller = await served(world)
        await caller.send(caller.message(b"a"))
        (message,) = (await caller.receive(invisible_ms=10_000)).messages
        old = message.system_properties.receipt_handle
        changed = await caller.change(old, 30_000)
        assert changed.status.code == Code.OK
        assert changed.receipt_handle not in ("", old)
        dead = await caller.change(old, 30_000)
        assert dead.status.code == Code.INVALID_RECEIPT_HANDLE
        assert dead.receipt_handle == old  # Java's simple consumer keeps what it gets
        await asyncio.sleep(15)
        assert (await caller.receive()).code == Code.MESSAGE_NOT_FOUND
        message.system_properties.receipt_handle = changed.receipt_handle
        assert (await caller.ack(message)).status.code == Code.OK

    run(body)


def test_a_message_that_is_given_back_at_once_comes_at_once() -> None:
    async def body(world: World) -> None:
        _, caller = await served(world)
        await caller.send(caller.message(b"a"))
        (message,) = (await caller.receive()).messages
        handle = message.system_properties.receipt_handle
        assert (await caller.change(handle, 0)).status.code == Code.OK
        begun = world.loop.time()
        (again,) = (await caller.receive(poll_ms=10_000)).messages
        assert again.system_properties.delivery_attempt == 2
        assert world.loop.time() - begun < 1

    run(body)


def test_an_empty_receive_waits_for_all_of_its_time_and_ends_before_the_deadline() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        await create_topic(world, broker, "EMPTY", "NORMAL")
        for poll_ms, seconds, waited in (
            (7000, 10.0, 7.0),
            (20_000, 10.0, 9.5),
            (60_000, 90.0, 20.0),
        ):
            begun = world.loop.time()
            got = await caller.receive("EMPTY", poll_ms=poll_ms, seconds=seconds)
            assert got.code == Code.MESSAGE_NOT_FOUND
            assert [part.WhichOneof("content") for part in got.parts] == [
                "status",
                "delivery_timestamp",
            ]
            assert waited - 0.1 <= world.loop.time() - begun < waited + 0.2

    run(body)


def test_a_receive_without_a_time_to_wait_takes_it_from_its_deadline() -> None:
    async def body(world: World) -> None:
        _, caller = await served(world)
        begun = world.loop.time()
        got = await caller.receive(poll_ms=None, seconds=8.0)
        assert got.code == Code.MESSAGE_NOT_FOUND
        assert 6.4 < world.loop.time() - begun < 6.7  # all but half of the usual 3 s

    run(body)


def test_one_of_several_waiting_consumers_gets_a_message_that_arrives() -> None:
    async def body(world: World) -> None:
        _, caller = await served(world)
        others = [Caller(world, caller.gateway, f"client-{n}") for n in range(3)]
        waiting = [asyncio.ensure_future(each.receive(poll_ms=10_000)) for each in others]
        await asyncio.sleep(1)
        await caller.send(caller.message(b"a"))
        got = [await each for each in waiting]
        assert sorted(each.code for each in got) == [Code.OK, *[Code.MESSAGE_NOT_FOUND] * 2]

    run(body)


def test_a_receive_that_is_cancelled_waits_no_more() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        waiting = asyncio.ensure_future(caller.receive(poll_ms=20_000))
        held = broker.messaging.pops.held
        await world.until(lambda: len(held) == 1)
        waiting.cancel()
        await world.until(lambda: len(held) == 0, 1.0)
        await caller.send(caller.message(b"a"))
        got = await caller.receive(poll_ms=3000)
        assert got.bodies == [b"a"]  # nobody took it

    run(body)


def test_messages_that_cannot_be_written_are_given_back() -> None:
    async def body(world: World) -> None:
        _, caller = await served(world)
        await caller.send(*(caller.message(b"%d" % n) for n in range(3)))
        request = v2.ReceiveMessageRequest(
            group=v2.Resource(name="G"), message_queue=v2.MessageQueue(topic=T), batch_size=3
        )
        request.invisible_duration.FromSeconds(60)
        written = []

        async def write(part: Any) -> None:
            written.append(part)
            if len(written) == 3:  # the status and one message were written
                raise asyncio.CancelledError

        with pytest.raises(asyncio.CancelledError):
            await caller.gateway.streams["ReceiveMessage"](caller.call(), request, write)
        got = await caller.receive(poll_ms=5_000)
        rest = got.messages or (await caller.receive(poll_ms=5_000)).messages
        assert len(rest) == 2
        assert written[1].message.body not in [message.body for message in rest]

    run(body)


@pytest.mark.parametrize(
    ("kind", "text", "wanted"),
    [
        (v2.FilterType.TAG, "*", [b"A", b"B", b"-"]),
        (v2.FilterType.TAG, "A || B", [b"A", b"B"]),
        (v2.FilterType.TAG, "B", [b"B"]),
        (v2.FilterType.SQL, "n > 1", [b"B"]),
    ],
)
def test_a_receive_gets_what_its_expression_selects(kind, text, wanted) -> None:
    async def body(world: World) -> None:
        _, caller = await served(world, enable_property_filter=True)
        await caller.send(caller.message(b"A", tag="A", user={"n": "1"}))
        await caller.send(caller.message(b"B", tag="B", user={"n": "2"}))
        await caller.send(caller.message(b"-"))
        got = await caller.receive(
            expression=v2.FilterExpression(type=kind, expression=text), poll_ms=500
        )
        assert sorted(got.bodies) == sorted(wanted)

    run(body)


def test_messages_with_tags_of_the_same_hash_are_passed_over() -> None:
    async def body(world: World) -> None:
        _, caller = await served(world)
        await caller.send(caller.message(b"no", tag="BB"))  # "Aa" and "BB" have one hash in Java
        expression = v2.FilterExpression(type=v2.FilterType.TAG, expression="Aa")
        got = await caller.receive(expression=expression)
        assert (got.code, got.messages) == (Code.MESSAGE_NOT_FOUND, [])
        await asyncio.sleep(15)
        assert (await caller.receive()).code == Code.MESSAGE_NOT_FOUND  # it was acknowledged

    run(body)


def test_messages_of_a_group_stay_in_one_queue_and_in_order() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        await create_topic(world, broker, "F", "FIFO")
        await create_group(world, broker, "G", consumeMessageOrderly=True)
        for n in range(6):
            group = f"group-{n % 2}"
            sent = caller.message(
                b"%d" % n, "F", message_type=v2.MessageType.FIFO, message_group=group
            )
            assert (await caller.send(sent)).status.code == Code.OK
        got = await caller.receive("F", attempt_id="1")
        by_group: dict[str, list[bytes]] = {}
        for message in got.messages:
            by_group.setdefault(message.system_properties.message_group, []).append(message.body)
        assert by_group == {"group-0": [b"0", b"2", b"4"], "group-1": [b"1", b"3", b"5"]}
        assert dict(got.messages[0].user_properties)["__SHARDINGKEY"] in by_group
        # Others wait until all are acknowledged; the same attempt gets the same again.
        assert (await caller.receive("F", attempt_id="2")).code == Code.MESSAGE_NOT_FOUND
        again = await caller.receive("F", attempt_id="1")
        assert sorted(again.bodies) == sorted(got.bodies)

    run(body)


def test_a_delayed_message_comes_at_its_time_and_a_recalled_one_never() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        await create_topic(world, broker, "D", "DELAY")
        begun = world.loop.time()
        due_ms = broker._runtime.now_ms() + 5000
        kind = v2.MessageType.DELAY
        kept = caller.message(b"kept", "D", message_type=kind, delivery_timestamp=due_ms)
        gone = caller.message(b"gone", "D", message_type=kind, delivery_timestamp=due_ms)
        assert (await caller.send(kept)).entries[0].recall_handle
        handle = (await caller.send(gone)).entries[0].recall_handle
        recalled = await caller.ask(
            "RecallMessage", topic=v2.Resource(name="D"), recall_handle=handle
        )
        assert recalled.status.code == Code.OK
        assert recalled.message_id == gone.system_properties.message_id
        got = await caller.receive("D", poll_ms=15_000)
        assert got.bodies == [b"kept"]
        assert 4.9 < world.loop.time() - begun < 6.5
        system = got.messages[0].system_properties
        assert system.delivery_timestamp.ToMilliseconds() == due_ms
        assert system.message_type == v2.MessageType.DELAY
        assert (await caller.receive("D", poll_ms=5_000)).messages == []
        bad = await caller.ask("RecallMessage", topic=v2.Resource(name="D"), recall_handle="x")
        assert bad.status.code == Code.BAD_REQUEST

    run(body)


def test_a_transaction_is_seen_when_it_is_committed_and_not_when_it_is_rolled_back() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        await create_topic(world, broker, "X", "TRANSACTION")
        kind = v2.MessageType.TRANSACTION
        topic = v2.Resource(name="X")
        ids = {}
        for text in (b"committed", b"rolled back"):
            message = caller.message(text, "X", message_type=kind)
            entry = (await caller.send(message)).entries[0]
            ids[text] = entry
            assert entry.transaction_id.startswith(message.system_properties.message_id)
        assert (await caller.receive("X")).code == Code.MESSAGE_NOT_FOUND
        for text, resolution in ((b"committed", 1), (b"rolled back", 2), (b"committed", 1)):
            answer = await caller.ask(
                "EndTransaction",
                topic=topic,
                message_id=ids[text].message_id,
                transaction_id=ids[text].transaction_id,
                resolution=resolution,
            )
            assert answer.status.code == Code.OK
        (message,) = (await caller.receive("X")).messages
        assert message.body == b"committed"
        assert "__transactionId__" in message.user_properties
        assert message.system_properties.message_type == kind
        for wrong in ("", "x", ids[b"committed"].transaction_id + "x"):
            answer = await caller.ask(
                "EndTransaction",
                topic=topic,
                message_id=ids[b"committed"].message_id,
                transaction_id=wrong,
                resolution=1,
            )
            assert answer.status.code != Code.OK

    run(body)


def test_a_producer_is_asked_how_its_transaction_ended() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world, transaction_check_ms=1000, transaction_timeout_ms=500)
        await create_topic(world, broker, "X", "TRANSACTION")
        asked = v2.Settings(client_type=v2.ClientType.PRODUCER)
        asked.publishing.topics.add(name="X")
        stream = caller.open_telemetry()
        caller.says.put_nowait(v2.TelemetryCommand(settings=asked))
        message = caller.message(b"open", "X", message_type=v2.MessageType.TRANSACTION)
        await caller.send(message)

        def questions():
            kind = "recover_orphaned_transaction_command"
            return [each for each in caller.told if each.WhichOneof("command") == kind]

        await world.until(questions)
        question = questions()[0].recover_orphaned_transaction_command
        assert question.message.body == b"open"
        assert question.message.topic.name == "X"
        assert question.message.system_properties.body_digest.checksum
        answer = await caller.ask(
            "EndTransaction",
            topic=v2.Resource(name="X"),
            message_id=question.message.system_properties.message_id,
            transaction_id=question.transaction_id,
            resolution=v2.TransactionResolution.COMMIT,
            source=v2.TransactionSource.SOURCE_SERVER_CHECK,
        )
        assert answer.status.code == Code.OK
        assert (await caller.receive("X", poll_ms=5000)).bodies == [b"open"]
        caller.says.put_nowait(None)
        await stream

    run(body)


def test_a_dead_letter_is_stored_for_its_group_and_not_delivered_again() -> None:
    async def body(world: World) -> None:
        _, caller = await served(world)
        await caller.send(caller.message(b"a", user={"n": "1"}))
        (message,) = (await caller.receive(invisible_ms=10_000)).messages
        answer = await caller.ask(
            "ForwardMessageToDeadLetterQueue",
            group=v2.Resource(name="G"),
            topic=T,
            receipt_handle=message.system_properties.receipt_handle,
            message_id=message.system_properties.message_id,
            delivery_attempt=1,
            max_delivery_attempts=17,
        )
        assert answer.status.code == Code.OK
        await asyncio.sleep(12)
        assert (await caller.receive()).code == Code.MESSAGE_NOT_FOUND
        (dead,) = (await caller.receive("%DLQ%G", "OTHER", poll_ms=2000)).messages
        assert (dead.body, dict(dead.user_properties)) == (b"a", {"n": "1"})
        assert dead.system_properties.message_id == message.system_properties.message_id

    run(body)


def test_a_message_that_is_never_acknowledged_ends_in_the_dead_letters() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        await create_group(world, broker, "G", retryMaxTimes=2)
        await caller.send(caller.message(b"a"))
        attempts = []
        for _ in range(5):
            for message in (await caller.receive(poll_ms=5_000)).messages:
                attempts.append(message.system_properties.delivery_attempt)
                await caller.change(message.system_properties.receipt_handle, 0)
        assert attempts == [1, 2, 3]
        assert (await caller.receive("%DLQ%G", "OTHER", poll_ms=2000)).bodies == [b"a"]

    run(body)


def test_the_members_of_a_group_are_those_that_call_and_leave_when_they_say_so() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        group = v2.Resource(name="G")
        kind = v2.ClientType.SIMPLE_CONSUMER
        answer = await caller.ask("Heartbeat", group=group, client_type=kind)
        assert answer.status.code == Code.OK  # without settings and a stream
        clients = broker.ground.context.clients
        assert clients.consumer_group("G").client_ids() == [caller.client_id]
        assert (await caller.ask("NotifyClientTermination", group=group)).status.code == Code.OK
        assert clients.consumer_group("G") is None
        broker.validate()

    run(body)


def test_a_silent_client_is_forgotten_and_comes_back_with_its_next_call() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        group, kind = v2.Resource(name="G"), v2.ClientType.PUSH_CONSUMER
        await caller.ask("Heartbeat", group=group, client_type=kind)
        clients = broker.ground.context.clients
        await world.until(lambda: clients.consumer_group("G") is None, 200, 1.0)
        await world.until(lambda: len(caller.gateway._clients) == 0, 20, 1.0)
        await caller.ask("Heartbeat", group=group, client_type=kind)
        assert clients.consumer_group("G").client_ids() == [caller.client_id]

    run(body)


def test_a_call_without_a_client_id_is_answered_and_not_dropped() -> None:
    async def body(world: World) -> None:
        _, caller = await served(world)
        caller.client_id = ""  # as Go's heartbeat after it lost its stream
        for name in caller.gateway.unary:
            answer = await caller.ask(name)
            not_served = answer.status.code == Code.NOT_IMPLEMENTED
            assert not_served or answer.status.code == Code.CLIENT_ID_REQUIRED, name
        assert (await caller.receive()).code == Code.CLIENT_ID_REQUIRED

    run(body)


def test_routes_name_every_queue_of_the_master_at_the_gateway() -> None:
    async def body(world: World) -> None:
        _, caller = await served(world)
        answer = await caller.ask("QueryRoute", topic=T)
        assert answer.status.code == Code.OK
        queues = answer.message_queues
        assert [queue.id for queue in queues] == [0, 1, 2, 3]
        for queue in queues:
            assert queue.permission == v2.Permission.READ_WRITE
            assert (queue.broker.name, queue.broker.id) == ("broker-a", 0)
            assert list(queue.accept_message_types) == [v2.MessageType.NORMAL]
            (address,) = queue.broker.endpoints.addresses
            assert queue.broker.endpoints.scheme == v2.AddressScheme.IPv4
            assert f"{address.host}:{address.port}" == ADDRESS
        assert answer == await caller.ask("QueryRoute", topic=T)
        missing = await caller.ask("QueryRoute", topic=v2.Resource(name="MISSING"))
        assert missing.status.code == Code.TOPIC_NOT_FOUND
        assert "CODE: 17" in missing.status.message
        assert "No topic route info in name server for the topic" in missing.status.message
        illegal = await caller.ask("QueryRoute", topic=v2.Resource(name="a b"))
        assert illegal.status.code == Code.ILLEGAL_TOPIC

    run(body)


def test_a_group_is_assigned_brokers_and_one_that_keeps_the_order_queues() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        await create_group(world, broker, "ORDERLY", consumeMessageOrderly=True)
        ids = {}
        for group in ("G", "ORDERLY"):
            answer = await caller.ask("QueryAssignment", topic=T, group=v2.Resource(name=group))
            assert answer.status.code == Code.OK
            ids[group] = [each.message_queue.id for each in answer.assignments]
        (any_queue,) = ids["G"]
        assert any_queue < 0
        assert ids["ORDERLY"] == [0, 1, 2, 3]

    run(body)


def test_a_broker_that_is_shut_down_answers_calls_with_an_error() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        await caller.send(caller.message(b"a"))
        await broker.close()
        answer = await caller.send(caller.message(b"b"))
        assert answer.status.code not in (Code.OK, Code.CODE_UNSPECIFIED)

    run(body)


def test_lite_topics_are_not_served() -> None:
    async def body(world: World) -> None:
        _, caller = await served(world)
        answer = await caller.ask("SyncLiteSubscription", topic=T, lite_topic_set=["L"])
        assert answer.status.code == Code.NOT_IMPLEMENTED
        assert "lite topics" in answer.status.message

    run(body)


def test_memory_that_is_short_refuses_a_send_and_gives_messages_back() -> None:
    async def body(world: World) -> None:
        _, caller = await served(world, memory_budget_bytes=64 << 20)
        other = Caller(world, caller.gateway, "other")
        await caller.send(caller.message(bytes(100_000)))
        client = caller.gateway._clients.of(caller.call())
        budget = client.link.budget
        used = budget.used
        rest = budget.limit - used - 50_000
        budget.hold(rest)
        answer = await caller.send(caller.message(bytes(100_000)))
        assert answer.status.code == Code.TOO_MANY_REQUESTS
        got = await caller.receive(poll_ms=2000)
        assert (got.code, got.messages) == (Code.TOO_MANY_REQUESTS, [])
        (message,) = (await other.receive(poll_ms=2000)).messages
        assert len(message.body) == 100_000
        budget.give_back(rest)
        assert budget.used == used
        assert (await caller.send(caller.message(b"x"))).status.code == Code.OK

    run(body)
