"""The synchronous consumers and admin, over a real broker."""

import asyncio
import queue
import threading
from concurrent.futures import Future

import pytest
from saturnmq import (
    Admin,
    ConsumeResult,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    aio,
)
from saturnmq.runtime.errors import (
    ClientClosed,
    ConfigError,
    InvalidParameter,
    QueryNotFound,
    TopicNotExist,
)
from served_rig import served

QUEUE = MessageQueue("orders", "broker-a", 0)


@pytest.fixture
def nameserver(tmp_path):
    """With a topic of one queue and three messages in it."""
    with served(tmp_path) as address:
        with Admin(address) as admin:
            admin.create_topic("orders", queues=1)
        with Producer(nameservers=address) as producer:
            for number in range(3):
                producer.send(Message("orders", b"%d" % number, keys=[f"k{number}"]))
        yield address


def test_the_admin_asks_and_answers(nameserver):
    with Admin(nameserver, timeout=4.0) as admin:
        assert admin.timeout == 4.0
        assert "orders" in admin.topics()
        assert [tuple(row[:3]) for row in admin.offsets("orders")] == [(QUEUE, 0, 3)]
        assert [bytes(message.body) for message in admin.find_by_key("orders", "k1")] == [b"1"]
        with pytest.raises(InvalidParameter, match="0 read queues"):
            admin.create_topic("orders", 0)
    with pytest.raises(ClientClosed):
        admin.cluster()


def test_an_id_that_no_message_has_is_told_in_words(nameserver):
    unknown = "7F0000015CA8DBB4000000000000ABCD"  # as a unique id: its digits make no port
    with Admin(nameserver) as admin:
        told = f"no message with id '{unknown}' in topic orders: .* it names no address of a broker"
        with pytest.raises(QueryNotFound, match=told):
            admin.find_message(unknown, "orders")


def test_a_producer_names_the_queues_of_topics_that_exist(nameserver):
    with Producer(nameservers=nameserver) as producer:
        assert producer.queues("orders") == [QUEUE]
        with pytest.raises(TopicNotExist):
            producer.queues("a-first-send-would-create-it")


def test_a_pull_consumer_polls_seeks_and_commits(nameserver):
    with PullConsumer("readers", nameserver, consume_from="first", auto_commit=False) as consumer:
        assert (consumer.group, consumer.consume_from, consumer.auto_commit) == (
            "readers",
            "first",
            False,
        )
        consumer.assign([QUEUE])
        assert consumer.assignment() == [QUEUE]
        assert [bytes(message.body) for message in consumer.poll(5.0, max_messages=2)] == [
            b"0",
            b"1",
        ]
        assert (consumer.position(QUEUE), consumer.lag(QUEUE)) == (2, 1)
        consumer.seek(QUEUE, 1)
        assert bytes(consumer.poll(5.0, 1)[0].body) == b"1"
        assert consumer.committed(QUEUE) is None
        consumer.commit()
        assert consumer.committed(QUEUE) == 2
        with pytest.raises(InvalidParameter, match="-1"):
            consumer.seek(QUEUE, -1)
    consumer.close()  # again is no error
    with pytest.raises(ClientClosed):
        consumer.poll()


def test_a_poll_that_is_interrupted_takes_nothing(nameserver, monkeypatch):
    class Interrupt(BaseException):
        pass

    def result(future, timeout=None):
        if threading.current_thread() is not threading.main_thread():
            return original(future, timeout)
        if waits:  # until the coroutine waits on the loop
            with pytest.raises(TimeoutError):
                original(future, 0.2)
        else:
            original(future, timeout)
        raise Interrupt

    original = Future.result
    with PullConsumer("readers", nameserver, consume_from="first") as consumer:
        consumer.assign([QUEUE])
        assert bytes(consumer.poll(30.0, 1)[0].body) == b"0"
        consumer.pause([QUEUE])
        for waits in (False, True):
            consumer.resume([QUEUE])
            if waits:  # for a message that comes when nobody polls any more
                assert [bytes(each.body) for each in consumer.poll(30.0)] == [b"1", b"2"]
            else:
                consumer.seek(QUEUE, 1)  # so that the loop is asked
            with monkeypatch.context() as patch:
                patch.setattr(Future, "result", result)
                with pytest.raises(Interrupt):
                    consumer.poll(30.0)
        with Producer(nameservers=nameserver) as producer:
            producer.send(Message("orders", b"3"))
        assert [bytes(each.body) for each in consumer.poll(30.0)] == [b"3"]


def test_a_blocking_call_in_a_callback_is_refused_before_anything_is_done(nameserver):
    seen = queue.SimpleQueue()

    def callback():  # on the loop, as those of sends are
        for call in (
            lambda: producer.send(Message("orders", b"refused")),
            lambda: producer.send_batch([Message("orders", b"refused")]),
            lambda: producer.send_async(Message("orders", b"3")).result(),
            producer.close,
        ):
            try:
                seen.put(call())
            except RuntimeError as error:
                seen.put(str(error))

    with Producer(nameservers=nameserver) as producer:
        producer.send(Message("orders", b"first"))
        producer._thread.loop.call_soon_threadsafe(callback)
        said = [seen.get(timeout=30) for _ in range(4)]
        assert all("would never return" in str(each) for each in said)
        assert producer.send(Message("orders", b"last")).ok, "it is not closed"
    with PullConsumer("readers", nameserver, consume_from="first") as consumer:
        consumer.assign([QUEUE])
        found = []
        while b"last" not in found:
            found += (bytes(message.body) for message in consumer.poll(30.0))
    assert b"refused" not in found


def test_a_client_is_not_closed_on_its_own_loop(nameserver):
    with PullConsumer("readers", nameserver) as consumer:
        with pytest.raises(RuntimeError, match="would never return"):
            consumer._thread.call(consumer.close)
        consumer.assign([QUEUE])


def test_a_commit_right_after_assign_is_kept(nameserver):
    """Before, it was passed over while the topic's route was still being asked for."""

    async def committed():
        async with aio.PullConsumer("readers", nameserver, auto_commit=False) as consumer:
            consumer.assign([QUEUE])
            consumer.seek(QUEUE, 2)
            await consumer.commit()
            return await consumer.committed(QUEUE)

    assert asyncio.run(committed()) == 2


def test_a_push_consumer_hands_messages_to_its_listener(nameserver):
    seen = queue.SimpleQueue()

    def listener(messages):
        for message in messages:
            seen.put(bytes(message.body))
        return ConsumeResult.SUCCESS

    consumer = PushConsumer("readers", nameserver, listener=listener, from_beginning=True)
    consumer.subscribe("orders")
    with consumer as entered:
        assert entered is consumer
        assert {seen.get(timeout=30) for _ in range(3)} == {b"0", b"1", b"2"}


def test_a_consumer_that_cannot_start_or_be_made_leaves_no_thread(nameserver):
    consumer = PushConsumer("readers", nameserver, listener=lambda messages: None)
    with pytest.raises(ConfigError, match="no topic"), consumer:
        pass
    with pytest.raises(ClientClosed):
        consumer.subscribe("orders")
    with pytest.raises(ConfigError, match="cannot broadcast"):
        PushConsumer("readers", nameserver, ordered=True, broadcasting=True)


def test_an_error_in_the_body_of_with_is_raised_and_the_client_closed(nameserver):
    with pytest.raises(ZeroDivisionError), Admin(nameserver) as admin:
        _ = 1 // len([])
    with pytest.raises(ClientClosed):
        admin.cluster()
