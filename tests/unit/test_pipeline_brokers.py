"""Reading from a cluster: what is not read, and what still is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster_rig import until
from saturnmq import Admin, Message, Producer
from saturnmq.broker.handlers.queries import QueryService
from saturnmq.broker.handlers.ranges import RangeService
from saturnmq.pipeline import fetching
from saturnmq.pipeline.access import Access, DataLoss, Decoding, Where
from saturnmq.pipeline.fetching import BrokersUnreachable
from saturnmq.pipeline.jobs.archive import archive
from saturnmq.pipeline.jobs.audit import audit
from saturnmq.pipeline.places import open_access
from saturnmq.pipeline.plan import Range
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.runtime.errors import ConfigError, SystemBusy, UnsupportedRequest
from served_rig import served


def no_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker is as one of RocketMQ's."""

    def unsupported(*_: object) -> None:
        raise UnsupportedRequest("a RocketMQ broker does not know ranges")

    for name in ("on_bounds", "on_cut", "on_read"):
        monkeypatch.setattr(RangeService, name, unsupported)


@pytest.mark.parametrize("fail", [True, False])
def test_a_batch_of_a_rocketmq_broker_is_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail: bool
) -> None:
    no_ranges(monkeypatch)
    with served(tmp_path) as nameserver:
        with Admin(nameserver) as admin:
            admin.create_topic("logs", queues=1, attributes={"queue.type": "BatchCQ"})
        with Producer(nameservers=nameserver) as producer:
            producer.send(Message("logs", b"one"))
        with open_access(Where.brokers(nameserver)) as access:
            [(queue, (low, high))] = access.bounds(["logs"]).items()
            pieces = access.cuts([Range(*queue, low, high)], 1 << 20, 1000)
            assert sum(piece.rows for piece in pieces) == 1
            with pytest.raises(ConfigError, match="topic logs has queues of batches"):
                list(access.batches(pieces, Decoding(fail_on_data_loss=fail)))


QUEUES = 4
ROWS = 10
TAKEN = MessageQueue("orders", "broker-a", 3)
TAKEN_AWAY = Range(*TAKEN, 0, ROWS)


@contextmanager
def with_fewer_queues(
    root: Path, before: Callable[[Where], object] = lambda _: None
) -> Iterator[Access]:
    """A reader of a topic of four queues with ten messages each, of which it has two now. `before`
    is called when it still has all."""
    with (
        served(root) as nameserver,
        Admin(nameserver) as admin,
        open_access(Where.brokers(nameserver)) as access,
    ):
        admin.create_topic("orders", queues=QUEUES)
        with Producer(nameservers=nameserver) as producer:
            for number in range(QUEUES * ROWS):
                queue = MessageQueue("orders", "broker-a", number % QUEUES)
                producer.send_async(Message("orders", b"%d" % number), queue=queue)
        until(lambda: access.bounds(["orders"]).get(TAKEN) == (0, ROWS), "all can be read")
        before(Where.brokers(nameserver))
        admin.alter_topic("orders", read_queues=2, write_queues=2)
        until(lambda: len(access.queues("orders")) == 2, "the route has fewer queues")
        yield access


def test_a_queue_that_was_taken_away_is_read_by_whom_has_begun_it(tmp_path: Path) -> None:
    with with_fewer_queues(tmp_path) as access:
        assert [queue.queue_id for queue in access.bounds(["orders"])] == [0, 1]
        never = TAKEN._replace(queue_id=9)
        known = access.bounds(["orders"], [TAKEN, never])
        assert (known[TAKEN], known[never], len(known)) == ((0, ROWS), (0, 0), 4)
        [piece] = access.cuts([TAKEN_AWAY], 1 << 20, 1000)
        assert piece.rows == ROWS
        assert sum(batch.num_rows for batch in access.batches([piece], Decoding())) == ROWS


def test_an_archive_goes_on_when_its_topic_has_fewer_queues(tmp_path: Path) -> None:
    again = []

    def archived(where: Where) -> int:
        again.append(where)
        return archive(None, where, ["orders"], str(tmp_path / "archive")).messages

    with with_fewer_queues(tmp_path / "store", archived):
        assert archived(again[0]) == 0
        audited = audit(None, again[0], str(tmp_path / "archive"))
        assert (audited.damage, audited.messages) == ([], QUEUES * ROWS)


def test_a_rocketmq_broker_gives_nothing_of_a_queue_that_was_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    no_ranges(monkeypatch)
    with with_fewer_queues(tmp_path) as access:
        # Its statistics name the queues that are written to as well.
        assert [queue.queue_id for queue in access.bounds(["orders"])] == [0, 1]
        never = TAKEN._replace(queue_id=9)
        known = access.bounds(["orders"], [TAKEN, never])
        assert (known[TAKEN], known[never], len(known)) == ((0, ROWS), (0, 0), 4)
        pieces = access.cuts([TAKEN_AWAY, TAKEN_AWAY._replace(queue_id=1)], 1 << 20, 1000)
        with pytest.raises(DataLoss, match=r"0 to 10 of orders broker-a/3.*raise its readQueueN"):
            list(access.batches(pieces, Decoding()))
        careless = Decoding(fail_on_data_loss=False)
        assert sum(batch.num_rows for batch in access.batches(pieces, careless)) == ROWS
        assert "data loss: messages 0 to 10 of orders broker-a/3" in caplog.text


def rows_of_five(root: Path, planned: Range, decoding: Decoding) -> int:
    """How many messages of a range are read from a queue that has five."""
    with served(root) as nameserver, open_access(Where.brokers(nameserver)) as access:
        with Admin(nameserver) as admin:
            admin.create_topic("orders", queues=1)
        with Producer(nameservers=nameserver) as producer:
            for _ in range(5):
                producer.send(Message("orders", b"x"), queue=planned.queue)
        until(lambda: access.bounds(["orders"]).get(planned.queue) == (0, 5), "all can be read")
        return sum(batch.num_rows for batch in access.batches([planned], decoding))


CUT_OFF = Range("orders", "broker-a", 0, 3, 9)


@pytest.mark.parametrize("rocketmq", [False, True])
def test_messages_behind_the_end_of_a_queue_are_lost(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    rocketmq: bool,
) -> None:
    monkeypatch.setattr(fetching, "LAGS_S", 0.3)
    if rocketmq:
        no_ranges(monkeypatch)
    with pytest.raises(DataLoss, match=r"messages 5 to 9 of .*: the queue ends at 5 now"):
        rows_of_five(tmp_path / "one", CUT_OFF, Decoding())
    assert rows_of_five(tmp_path / "two", CUT_OFF, Decoding(fail_on_data_loss=False)) == 2
    assert "data loss: messages 5 to 9 of orders broker-a/0" in caplog.text


def test_messages_that_another_node_may_have_are_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asks_whether_it_leads(*_: object) -> None:
        raise SystemBusy("another node may have more")

    monkeypatch.setattr(fetching, "LAGS_S", 0.3)
    monkeypatch.setattr(QueryService, "on_max_offset", asks_whether_it_leads)
    with pytest.raises(BrokersUnreachable, match="3 to 9 could not be read"):
        rows_of_five(tmp_path, CUT_OFF, Decoding(fail_on_data_loss=False))
