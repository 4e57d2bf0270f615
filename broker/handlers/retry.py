"""Messages a consumer gives back: CONSUMER_SEND_MSG_BACK 36.

The copy goes to %RETRY%<group> with reconsumeTimes + 1 after a delay (level from the request, or
3 + reconsumeTimes), and after the last retry (`Group.retry_limit`), or at a negative level, to
%DLQ%<group>.
Properties of the copy: RETRY_TOPIC is the topic it first came from, ORIGIN_MESSAGE_ID its first id
by offset. The answer waits as the ack mode demands, like that to a send, so the copy is not lost.

The consumer names the message by its place in the log, and by its id (RocketMQ's brokers ignore the
id). A promotion may have cut off the message since, so that another one is at that place. The
broker does not give that one back: it refuses, and the client sends its own copy of the message to
the retry topic.

A request with the handle of a popped message is one about that (`pop_acks.py`).
"""

from __future__ import annotations

from saturnmq.broker.access import needs
from saturnmq.broker.commit.acknowledgement import Acknowledgement
from saturnmq.broker.commit.copies import CopyWriter, returned_properties
from saturnmq.broker.context import (
    REJECTED,
    Context,
    answer,
    check_master,
    check_permission,
    require,
)
from saturnmq.broker.handlers.pop_acks import PopAcknowledgements
from saturnmq.broker.tables.topics import WRITE
from saturnmq.protocol import headers
from saturnmq.protocol import properties as names
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.inner_batch import unwrapped
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.topics import dlq_topic, retry_topic
from saturnmq.runtime.errors import GroupNotExist, SystemError_

FIRST_RETRY_LEVEL = 3  # 10 s


class RetryService:
    def __init__(
        self,
        context: Context,
        copies: CopyWriter,
        acknowledgement: Acknowledgement,
        popped: PopAcknowledgements,
    ) -> None:
        self._c = context
        self._copies = copies
        self._acknowledgement = acknowledgement
        self._popped = popped

    def on_send_back(
        self, endpoint: Endpoint, request: Command, header: headers.SendBackHeader
    ) -> None:
        if header.handle:
            self._popped.on_dead_letter(endpoint, request, header)
            return
        c = self._c
        check_master(c, REJECTED)
        group_name = header.group
        group = c.groups.get_or_create(group_name)
        if group is None:
            raise GroupNotExist(f"subscription group [{group_name}] does not exist")
        check_permission(c, WRITE, "sending")
        if group.retry_queues <= 0:
            answer(endpoint, request, request.reply(0))
            return
        offset = header.offset
        frame = c.store.message_at(offset)
        if frame is None:
            raise SystemError_(f"look message by offset failed, {offset}")
        told = header.origin_message_id
        found = decode_frames(unwrapped(frame, 0), True)
        message = next((each for each in found if each.message_id == told), found[0])
        if told and told not in (message.message_id, message.offset_message_id):
            raise SystemError_(
                f"look message by offset failed, {offset}: message {message.message_id} is there, "
                f"and not {told}, which was cut off"
            )
        require(c, endpoint, request, *needs.both(message.topic, group_name, needs.SUB))
        properties = returned_properties(message)
        properties[names.WAIT] = "false"
        level = header.delay_level
        limit = group.retry_limit(header.max_reconsume_times)
        if message.reconsume_times >= limit or level < 0:
            topic = c.topics.ensure(dlq_topic(group_name), 1)
            queue_id = 0
            properties[names.DELAY] = "0"
        else:
            topic = c.topics.ensure_retry(retry_topic(group_name), group.retry_queues)
            queue_id = c.runtime.random.randrange(group.retry_queues)
            properties[names.DELAY] = str(level or FIRST_RETRY_LEVEL + message.reconsume_times)
        put = self._copies.store(
            topic.name,
            queue_id,
            message,
            properties,
            reconsume_times=message.reconsume_times + 1,
        )
        if not request.is_oneway:
            self._acknowledgement.answer_at(endpoint, request.reply(0), put.end_offset)
