"""Atomic batches of sinks that are half appended."""

from __future__ import annotations

import asyncio

from broker_rig import ask
from saturnmq.broker.broker import Broker
from saturnmq.protocol.batch import encode_batch
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command

TOPIC = {"topic": "orders", "perm": 6, "readQueueNums": 4, "writeQueueNums": 4}
CHUNKS = 500
KEY = {"sink": "s", "epoch": 0, "partition": 0, "attempt": "a"}


async def publishing(client: Endpoint, broker: Broker) -> asyncio.Future[Command]:
    """Stage many chunks; return the answer to their PUBLISH when their batch is half appended."""
    chunk = bytes(encode_batch((b"row", b"UNIQ_KEY\x01U\x02", 0) for _ in range(3)))
    for number in range(CHUNKS):
        ext = {**KEY, "seq": number, "topic": "orders", "queueId": 0}
        assert (await ask(client, RequestCode.STAGE, ext, chunk)).code == 0
    told = {"chunks": CHUNKS, "rows": 3 * CHUNKS, "bytes": CHUNKS * len(chunk)}
    publish = asyncio.ensure_future(ask(client, RequestCode.PUBLISH, {**KEY, **told}))
    while not broker.store.in_group:  # it takes a few turns of the loop only
        await asyncio.sleep(0)
    return publish
