"""The settings of one topic or group at one broker (351, 352).

RocketMQ's brokers before version 5 do not know these requests, and are asked for all their topics
or groups (21, 201).
"""

from __future__ import annotations

from typing import Any

from saturnmq.client.core import ClientCore
from saturnmq.protocol import checked
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import (
    GroupNotExist,
    SystemError_,
    TopicNotExist,
    UnsupportedRequest,
)

NO_GROUP = "No group in this broker"  # RocketMQ 5.1 says it with SYSTEM_ERROR


async def topic_at(
    core: ClientCore, address: str, topic: str, timeout: float
) -> dict[str, Any] | None:
    """The settings of a topic; None if the broker does not have it."""
    command = Command.request(RequestCode.GET_TOPIC_CONFIG, {"topic": topic})
    try:
        return checked.document((await core.invoke(address, command, timeout)).body)
    except TopicNotExist:
        return None
    except UnsupportedRequest:
        code = RequestCode.GET_ALL_TOPIC_CONFIG
        return await _in_table(core, address, code, "topicConfigTable", topic, timeout)


async def group_at(
    core: ClientCore, address: str, group: str, timeout: float
) -> dict[str, Any] | None:
    """The settings of a group; None if the broker does not have it."""
    command = Command.request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": group})
    try:
        return checked.document((await core.invoke(address, command, timeout)).body)
    except GroupNotExist:
        return None
    except UnsupportedRequest:
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        return await _in_table(core, address, code, "subscriptionGroupTable", group, timeout)
    except SystemError_ as error:
        if NO_GROUP not in str(error):
            raise
        return None


async def _in_table(
    core: ClientCore, address: str, code: int, key: str, name: str, timeout: float
) -> dict[str, Any] | None:
    answer = await core.invoke(address, Command.request(code), timeout)
    table = checked.table(checked.document(answer.body), key)
    return checked.as_table(table[name], name) if name in table else None
