"""The client's route table: readable, writable and remembered queues, addresses, templates."""

from saturnmq.client.routes import RouteCache, from_template
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.route import BrokerData, QueueData, TopicRoute


def route(*masters, slaves=(), perm=6):
    brokers = [BrokerData("C", name, {0: f"{name}:1"}) for name in masters]
    brokers += [BrokerData("C", name, {1: f"{name}:2"}) for name in slaves]
    names = (*masters, *slaves)
    return TopicRoute(queues=[QueueData(name, 2, 1, perm) for name in names], brokers=brokers)


def test_queues_of_a_broker_without_master_can_be_read_not_written():
    table = RouteCache()
    assert table.update("T", route("a", slaves=["b"]))
    assert not table.update("T", route("a", slaves=["b"]))
    assert table.publish_queues("T") == [MessageQueue("T", "a", 0)]
    assert {queue.broker_name for queue in table.subscribe_queues("T")} == {"a", "b"}
    assert table.address("b") is None
    assert table.address("b", master=False) == "b:2"
    assert table.broker_name_of("b:2") == "b"


def test_a_template_gives_its_queues_only_where_it_may_be_inherited():
    template = route("a", perm=7)
    assert [data.write_queues for data in from_template("T", template, 4).queues] == [1]
    assert from_template("T", route("a", perm=6), 4).queues == []
    longer = route("a", perm=7)
    longer.queues[0] = QueueData("a", 8, 8, 7)
    made = from_template("T", longer, 4)
    assert made.queues == [QueueData("a", 0, 4, 7)], "nothing to read until a broker made it"
    assert made.brokers == longer.brokers


def test_only_readable_queues_are_read_and_only_writable_ones_written():
    table = RouteCache()
    table.update("R", route("a", perm=4))
    table.update("W", route("a", perm=2))
    assert (len(table.subscribe_queues("R")), table.publish_queues("R")) == (2, [])
    assert (table.subscribe_queues("W"), len(table.publish_queues("W"))) == ([], 1)


def test_an_address_is_that_of_the_broker_asked_for_else_of_the_master_else_of_any():
    table = RouteCache()
    brokers = [
        BrokerData("C", "a", {0: "a:0", 1: "a:1", 2: "a:2"}),
        BrokerData("C", "b", {2: "b:2", 1: "b:1"}),
    ]
    table.update("T", TopicRoute(queues=[], brokers=brokers))
    assert table.address("a", broker_id=2) == "a:0", "a master was asked for"
    assert table.address("a", master=False, broker_id=2) == "a:2"
    assert table.address("a", master=False, broker_id=3) == "a:0"
    assert table.address("a", master=False) == "a:0"
    assert table.address("b", master=False) == "b:1"
    assert table.address("c", master=False) is None
    assert table.broker_name_of("b:1") == "b"
    assert table.broker_name_of("b:3") is None


def test_a_broker_is_known_while_a_topic_is_on_it():
    table = RouteCache()
    table.update("T", route("a", "b"))
    table.update("U", route("b"))
    assert table.update("T", route("c"))
    assert set(table.brokers()) == {"b", "c"}
    table.update("U", route("c"))
    assert set(table.brokers()) == {"c"}
