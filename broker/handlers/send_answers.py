"""Answers to single sends and batches, written without a dictionary or JSON between.

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
        self,
        opaque: int,
        physical_offset: int,
        queue_id: int,
        queue_offset: int,
        unique: str,
        body: bytes = b"",
    ) -> WrittenReply:
        """The answer to a message, or to the first one of a batch, with this UNIQ_KEY, of which no
        character needs an escape; without one if it is empty."""
        transaction = f',"transactionId":"{unique}"' if unique else ""
        header = (
            f'{self._start}{physical_offset:016X}","queueId":"{queue_id}",'
            f'"queueOffset":"{queue_offset}"{transaction}}},"flag":{FLAG_RESPONSE},'
            f'"language":"PYTHON","opaque":{opaque}{self._end}'
        )
        return WrittenReply(opaque, framed_head(header.encode(), len(body)), body)
