"""A batch that is compressed as a whole: the request of a producer with `compression="zstd"`.

It travels as one message, an inner batch (`protocol/inner_batch.py`), which brokers of both makes
store as it is in a topic with queue.type=BatchCQ, and refuse elsewhere.
"""

from __future__ import annotations

from saturnmq.client.producer.batch import ProducerBatch
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.compression import ZSTD, compress, sys_flag_of
from saturnmq.protocol.frame import WRAPPED
from saturnmq.protocol.properties import INNER_NUM
from saturnmq.protocol.remoting import Command

LEVEL = 1  # records of 1 KiB of JSON take 2.6 % more than with 3, in half of the time


def zipped(batch: ProducerBatch, ext: dict[str, str]) -> Command:
    """The request of a batch, whose other fields are `ext`."""
    ext["f"] = str(batch.sys_flag | WRAPPED | sys_flag_of(ZSTD))
    ext["i"] += f"{INNER_NUM}\x01{batch.count}\x02"
    ext["m"] = "false"
    return Command(int(RequestCode.SEND_MESSAGE_V2), ext, compress(batch.body, ZSTD, LEVEL))
