"""Reading from a cluster: what is not read."""

from __future__ import annotations

from pathlib import Path

import pytest
from saturnmq import Admin, Message, Producer
from saturnmq.broker.handlers.ranges import RangeService
from saturnmq.pipeline.access import Decoding, Where
from saturnmq.pipeline.places import open_access
from saturnmq.pipeline.plan import Range
from saturnmq.runtime.errors import ConfigError, UnsupportedRequest
from served_rig import served


@pytest.mark.parametrize("fail", [True, False])
def test_a_batch_of_a_rocketmq_broker_is_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail: bool
) -> None:
    def unsupported(*_: object) -> None:
        raise UnsupportedRequest("a RocketMQ broker does not know ranges")

    for name in ("on_bounds", "on_cut", "on_read"):
        monkeypatch.setattr(RangeService, name, unsupported)
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
