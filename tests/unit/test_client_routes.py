"""The client's route table: readable, writable and remembered queues, addresses, templates."""

from saturnmq.client.routes import RouteTable, from_template
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.route import BrokerData, QueueData, TopicRoute


def route(*masters, slaves=(), perm=6):
    brokers = [BrokerData("C", name, {0: f"{name}:1"}) for name in masters]
    brokers += [BrokerData("C", name, {1: f"{name}:2"}) for name in slaves]
    names = (*masters, *slaves)
    return TopicRoute(queues=[QueueData(name, 2, 1, perm) for name in names], brokers=brokers)


def test_queues_of_a_broker_without_master_can_be_read_not_written():
    table = RouteTable()
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
