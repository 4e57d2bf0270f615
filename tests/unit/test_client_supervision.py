"""Nothing of a client ends in silence: what no call can raise is told to the application."""

import asyncio
import logging
import threading

import client_fakes as fakes
import pytest
from saturnmq.client import blocking
from saturnmq.client.admin import Admin
from saturnmq.client.producer import Producer
from saturnmq.client.pull_consumer import PullConsumer
from saturnmq.client.push_consumer import PushConsumer
from saturnmq.protocol.errors import SaturnError, StoreDamaged
from saturnmq.protocol.native import NativeRuntime

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize("kind", [Producer, PushConsumer, PullConsumer, Admin])
def test_every_client_tells_its_application_and_its_log_what_no_call_can_raise(kind, caplog):
    async def main():
        told = []
        client = kind(nameservers=NOBODY, on_error=told.append, **_group(kind))
        problem = StoreDamaged("no call waits for this")
        client.core.tell(problem)
        assert told == [problem]

    asyncio.run(main())
    assert [r.levelno for r in caplog.records if "no call waits" in r.message] == [logging.ERROR]


def _group(kind):
    return {} if kind is Admin else {"group": "somebody"}


@pytest.mark.parametrize("failure", [ValueError("mine"), SystemExit(3), KeyboardInterrupt()])
def test_what_on_error_itself_raises_is_logged_and_stops_neither_others_nor_the_client(
    failure, caplog
):
    async def main():
        def bad(error):
            raise failure

        told = []
        admin = Admin(NOBODY, on_error=bad)
        Producer("somebody", core=admin.core, on_error=told.append)
        admin.core.tell(SaturnError("first"))
        assert [str(error) for error in told] == ["first"]

    asyncio.run(main())
    assert any("on_error failed" in record.message for record in caplog.records)


def test_a_synchronous_producer_tells_on_its_own_thread():
    ready, told = threading.Event(), []

    def on_error(error):
        told.append((str(error), threading.current_thread()))
        ready.set()

    async def serve():
        return await fakes.FakeCluster(NativeRuntime()).start()

    server = blocking.LoopThread()
    cluster = server.run(serve())
    try:
        with blocking.Producer("p", cluster.address, on_error=on_error) as producer:
            engine = producer.engine
            engine.call_on_loop(lambda: engine.core.tell(SaturnError("told")))
            assert ready.wait(5)
        ((text, thread),) = told
        assert text == "told"
        assert thread is not threading.current_thread()
    finally:
        server.call(cluster.stop)
        server.close()
