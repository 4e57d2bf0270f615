"""Answers to single sends, written without a dictionary or JSON between.

A lone sender waits for each step of its answer. The bytes are those that `remoting.encode_head`
makes of the same fields.
"""

from __future__ import annotations

import orjson
from saturnmq.protocol.remoting import FLAG_RESPONSE, VERSION, WrittenReply, framed_head


class SendAnswers:
    def __init__(self, fields: dict[str, str], id_prefix: str) -> None:
        """`fields` are in every answer; an offset id begins with `id_prefix`."""
        own = orjson.dumps(fields)[:-1].decode()
        self._start = f'{{"code":0,"extFields":{own},"msgId":"{id_prefix}'
        self._end = f',"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'

    def answer(
        self, opaque: int, physical_offset: int, queue_id: int, queue_offset: int, unique: str
    ) -> WrittenReply:
        """The answer to a message with this UNIQ_KEY, of which no character needs an escape."""
        header = (
            f'{self._start}{physical_offset:016X}","queueId":"{queue_id}",'
            f'"queueOffset":"{queue_offset}","transactionId":"{unique}"}},"flag":{FLAG_RESPONSE},'
            f'"language":"PYTHON","opaque":{opaque}{self._end}'
        )
        return WrittenReply(opaque, framed_head(header.encode()))
