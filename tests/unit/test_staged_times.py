"""The time at which staged rows were born is what their request says."""

from __future__ import annotations

from pathlib import Path

from broker_rig import ask, config, connected, run, started, until
from saturnmq.protocol.batch import encode_batch
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.kernels import decode_frames
from saturnmq.runtime.native import NativeRuntime
from staging_rig import KEY, TOPIC


def test_rows_have_the_time_that_their_chunk_says(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        assert (await ask(client, 17, TOPIC)).code == 0
        chunk = bytes(encode_batch([(b"row", b"UNIQ_KEY\x01U\x02", 0)]))
        for seq, born in enumerate(({"bornTimestamp": 0}, {"bornTimestamp": -7}, {})):
            place = {**KEY, "seq": seq, "topic": "orders", "queueId": 0}
            assert (await ask(client, RequestCode.STAGE, place | born, chunk)).code == 0
        sums = {"chunks": 3, "rows": 3, "bytes": 3 * len(chunk)}
        published = await ask(client, RequestCode.PUBLISH, {**KEY, **sums})
        assert published.code == 0, published.remark
        await until(lambda: broker.store.max_offset("orders", 0) == 3)
        frames = decode_frames(broker.store.get_message("orders", 0, 0, 10).data, True)
        first, second, third = (frame.born_timestamp for frame in frames)
        assert (first, second) == (0, -7)
        assert third > 1_700_000_000_000, "no time is now"
        await broker.close()

    run(body)
