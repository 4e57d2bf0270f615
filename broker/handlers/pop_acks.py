"""Acknowledgements of popped messages over Remoting: ACK_MESSAGE, BATCH_ACK_MESSAGE and
CHANGE_MESSAGE_INVISIBLETIME (docs/internals/protocol.md 2.10); and CONSUMER_SEND_MSG_BACK with a
handle, by which a popped message goes to the dead letters.

A handle that is not valid is answered 208 with the reason: the message was acknowledged, popped
again, or never popped by this group, or its time is over. 29 says that the text is no handle, or
contradicts the other fields, and 13 that the queue does not exist. A batch is answered 0 if one of
its handles was valid, because an answer to it has no place for more.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from copy import copy

from saturnmq.broker import bodies
from saturnmq.broker.commit.acknowledgement import Acknowledgement
from saturnmq.broker.commit.admission import Admission
from saturnmq.broker.context import Context
from saturnmq.broker.pop.service import PopService
from saturnmq.protocol import checked
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.headers import NoFieldsHeader, SendBackHeader
from saturnmq.protocol.pop_handle import ORDERED, RETRY_V2, PopHandle, kind_of, topic_of_kind
from saturnmq.protocol.pop_headers import AckHeader, ChangeInvisibleHeader
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import QUEUES_MAX
from saturnmq.runtime.errors import InvalidParameter, MalformedFrame, MessageIllegal, NoMessage

ACKS_MAX = 1000  # entries of one BATCH_ACK_MESSAGE
OFFSETS_MAX = 4096  # messages of one BATCH_ACK_MESSAGE
BITS_MAX = 8192  # characters of a bit set


class PopAcknowledgements:
    def __init__(
        self,
        context: Context,
        service: PopService,
        admission: Admission,
        acknowledgement: Acknowledgement,
    ) -> None:
        self._c = context
        self._service = service
        self._admission = admission
        self._acknowledgement = acknowledgement

    def on_ack(self, endpoint: Endpoint, request: Command, header: AckHeader) -> None:
        topic, handle = self._claimed(header)
        end, errors = self._service.acknowledge(header.group, topic, [handle])
        for error in errors:
            if error is not None:
                raise copy(error)  # whose traceback has no frame that names it
        self._acknowledged(endpoint, request, request.reply(0), end)

    def on_batch_ack(self, endpoint: Endpoint, request: Command, _: NoFieldsHeader) -> None:
        self._check_acks()
        claims = _claims(request)
        end, refused, first, total = 0, 0, None, 0
        for (group, topic), handles in claims.items():
            total += len(handles)
            ended, errors = self._service.acknowledge(group, topic, handles)
            end = max(end, ended)
            refused += sum(error is not None for error in errors)
            first = first or next((error for error in errors if error is not None), None)
        if first is not None and refused == total:
            raise NoMessage(f"none of {total} handles is valid; the first: {first}")
        remark = (
            f"{refused} of {total} handles are not valid; the first: {first}" if first else None
        )
        self._acknowledged(endpoint, request, request.reply(0, remark), end)

    def on_change(
        self, endpoint: Endpoint, request: Command, header: ChangeInvisibleHeader
    ) -> None:
        topic, handle = self._claimed(header)
        lease, end = self._service.change(
            header.group, topic, handle, header.invisible_ms, unseen=header.unseen
        )
        ext = {
            "popTime": str(lease.pop_ms),
            "invisibleTime": str(lease.invisible_ms),
            "reviveQid": str(ORDERED if lease.ordered else 0),
        }
        self._acknowledged(endpoint, request, request.reply(0, ext=ext), end)

    def on_dead_letter(self, endpoint: Endpoint, request: Command, header: SendBackHeader) -> None:
        """The handle ends with the first such request, so the dead letters get the message once."""
        if header.delay_level >= 0:
            raise InvalidParameter(
                f"delayLevel is {header.delay_level}: a popped message is given back by a change "
                "of its invisible time; -1 makes it a dead letter"
            )
        handle = _handle(header.handle)
        self._check_queue(header.topic, handle.queue_id)
        topic = _topic_of(handle, header.topic, header.group)
        end = self._service.bury(header.group, topic, handle)
        self._acknowledged(endpoint, request, request.reply(0), end)

    def _acknowledged(self, endpoint: Endpoint, request: Command, reply: Command, end: int) -> None:
        if not request.is_oneway:
            self._acknowledgement.answer_at(endpoint, reply, end)

    def _check_acks(self) -> None:
        self._admission.check_ready()
        self._service.check_serves()

    def _claimed(self, header: AckHeader) -> tuple[str, PopHandle]:
        """The topic and the handle that a request names."""
        self._check_queue(header.topic, header.queue_id)
        handle = _handle(header.handle, header.offset)
        if handle.queue_id != header.queue_id:
            raise InvalidParameter(
                f"the handle is of queue {handle.queue_id}, the request of {header.queue_id}"
            )
        return _topic_of(handle, header.topic, header.group), handle

    def _check_queue(self, name: str, queue_id: int) -> None:
        """A SaturnError says why nothing can be acknowledged in this queue. A topic that may not be
        read any more is no reason: consumers finish the messages that they have."""
        self._check_acks()
        topic = self._c.topics.existing(name)
        if not 0 <= queue_id < topic.read_queues:
            raise MessageIllegal(
                f"queueId[{queue_id}] is illegal, topic:[{name}] "
                f"topicConfig.readQueueNums:[{topic.read_queues}]"
            )


def _topic_of(handle: PopHandle, topic: str, group: str) -> str:
    """The topic that a message is in, for readers of `topic`."""
    return topic if kind_of(topic) else topic_of_kind(topic, group, handle.kind)


def _handle(text: str, offset: int | None = None) -> PopHandle:
    """The handle in a request about the message at this offset. InvalidParameter: it is none, or
    that of another message."""
    try:
        handle = PopHandle.decode(text, offset)
    except MalformedFrame as error:
        raise InvalidParameter(
            f"extraInfo {text[:80]!r} is no handle of a message ({error}): send the one that came "
            "with it"
        ) from None
    if offset is not None and handle.offset != offset:
        raise InvalidParameter(
            f"extraInfo {text[:80]!r} is the handle of offset {handle.offset}, not of {offset}"
        )
    return handle


def _claims(request: Command) -> dict[tuple[str, str], list[PopHandle]]:
    """The handles in the body of BATCH_ACK_MESSAGE by group and topic."""
    document = bodies.document(request)
    found: dict[tuple[str, str], list[PopHandle]] = {}
    number = 0
    try:
        broker = checked.text(document, "brokerName", "")
        for entry in checked.items(document, "acks", ACKS_MAX):
            fact = checked.as_table(entry, "an entry of acks")
            group, kind = checked.text(fact, "c"), checked.integer(fact, "r", 0, most=RETRY_V2)
            topic = topic_of_kind(checked.text(fact, "t"), group, kind)
            start = checked.integer(fact, "so")
            for bit in _bits(checked.text(fact, "b")):
                number += 1
                if number > OFFSETS_MAX:
                    raise MalformedFrame(f"it names more than {OFFSETS_MAX} messages")
                handle = PopHandle(
                    start,
                    checked.integer(fact, "pt"),
                    checked.integer(fact, "it"),
                    checked.integer(fact, "rq", 0),
                    kind,
                    broker,
                    checked.integer(fact, "q", most=QUEUES_MAX),
                    start + bit,
                )
                found.setdefault((group, topic), []).append(handle)
    except MalformedFrame as error:
        raise InvalidParameter(f"the body of BATCH_ACK_MESSAGE: {error}") from None
    if not found:
        raise NoMessage("the request names no messages")
    return found


def _bits(text: str) -> Iterable[int]:
    """The numbers in a bit set, as Java's BitSet.toByteArray in base64."""
    if len(text) > BITS_MAX:
        raise MalformedFrame(f"a bit set of {len(text)} characters, the limit is {BITS_MAX}")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise MalformedFrame(f"{text[:40]!r} is no bit set in base64") from None
    return [8 * at + bit for at, byte in enumerate(data) for bit in range(8) if byte >> bit & 1]
