"""Questions to a connected member of a group, which a broker passes on: its state (307), and its
verdict on a message that it gets now (309).

A member is asked over a broker that it is connected to. The broker waits 10 s for its answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from saturnmq.client.core import ClientCore
from saturnmq.protocol import checked
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import ConsumerNotOnline, QueryNotFound, SaturnError

ANSWER_S = 12.0  # a broker has given up by then


class DirectConsumption(NamedTuple):
    """The answer of a consumer that was given one message."""

    result: str
    """RocketMQ's word: CR_SUCCESS, CR_LATER, CR_THROW_EXCEPTION, CR_RETURN_NULL, CR_COMMIT or
    CR_ROLLBACK."""
    ordered: bool
    """Whether its listener consumes in order."""
    milliseconds: int
    """The time that the listener took."""
    remark: str
    """The consumer's words about a failure; often empty."""

    @property
    def success(self) -> bool:
        """Whether the listener has consumed the message."""
        return self.result in ("CR_SUCCESS", "CR_COMMIT")


async def running_info(
    core: ClientCore,
    brokers: Mapping[str, str],
    group: str,
    client_id: str,
    timeout: float,
    *,
    stacks: bool = False,
) -> dict[str, Any]:
    """The ConsumerRunningInfo of a member, asked through the first of these brokers that it is
    connected to."""
    ext = {"consumerGroup": group, "clientId": client_id, "jstackEnable": str(stacks).lower()}
    problem: SaturnError = ConsumerNotOnline(f"no broker knows a consumer {client_id!r}")
    for address in brokers.values():
        command = Command.request(RequestCode.GET_CONSUMER_RUNNING_INFO, dict(ext))
        try:
            answer = await core.invoke(address, command, timeout)
        except SaturnError as error:
            problem = error
            continue
        return checked.document(answer.body)
    raise problem


async def stacks_of(
    core: ClientCore, brokers: Mapping[str, str], group: str, client_id: str
) -> str:
    """The stacks of the threads of a member, as it prints them. QueryNotFound: it tells none."""
    info = await running_info(core, brokers, group, client_id, ANSWER_S, stacks=True)
    text = checked.text(info, "jstack", "")
    if not text:
        raise QueryNotFound(f"{client_id} of group {group} answers, but tells no stacks")
    return text


async def consume_directly(
    core: ClientCore, message: ReceivedMessage, topic: str, group: str, client_id: str
) -> DirectConsumption:
    """Have a member consume `message` now, asked through the broker that has the message."""
    ext = {
        "consumerGroup": group,
        "clientId": client_id,
        "msgId": message.offset_message_id,
        "topic": topic,
        "brokerName": message.broker_name or "",
    }
    address = core.broker_address(message.broker_name or "") or message.store_host
    command = Command.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext)
    answer = checked.document((await core.invoke(address, command, ANSWER_S)).body)
    return DirectConsumption(
        checked.text(answer, "consumeResult", ""),
        answer.get("order") is True,
        checked.integer(answer, "spentTimeMills", 0),
        checked.text(answer, "remark", ""),
    )
