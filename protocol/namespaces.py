"""Namespaces of clients, as RocketMQ's clients have them: names are wrapped, `NAMESPACE%NAME`, for
the brokers, and plain in what the application sees.

    topic T          space%T
    %RETRY%G         %RETRY%space%G          the prefix of a retry or dead-letter topic stays first

Names of the system are never wrapped, and a name that is wrapped already stays as it is.
"""

from __future__ import annotations

import re

from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.protocol.topics import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_GROUPS, is_system_topic
from saturnmq.runtime.errors import InvalidParameter

SEPARATOR = "%"
NAME_MOST = 100
_NAME = re.compile(r"[a-zA-Z0-9_-]+")


class Namespace:
    """One namespace."""

    def __init__(self, name: str) -> None:
        """InvalidParameter: no namespace can have this name."""
        if not _NAME.fullmatch(name) or len(name) > NAME_MOST:
            raise InvalidParameter(
                f"namespace {name[:120]!r}: give 1 to {NAME_MOST} characters of a-z A-Z 0-9 _ -"
            )
        self.name = name
        self._head = name + SEPARATOR

    def wrap(self, name: str) -> str:
        """The name of a topic or a group for the brokers."""
        prefix, rest = _parted(name)
        if is_system_topic(name) or name in SYSTEM_GROUPS or rest.startswith(self._head):
            return name
        return f"{prefix}{self._head}{rest}"

    def plain(self, name: str) -> str:
        """The name of a topic or a group for the application."""
        prefix, rest = _parted(name)
        return prefix + rest.removeprefix(self._head)

    def holds(self, name: str) -> bool:
        """Whether the brokers' name of a topic or a group is one of this namespace."""
        return _parted(name)[1].startswith(self._head)

    def wrap_queue(self, queue: MessageQueue) -> MessageQueue:
        """The queue with the name of its topic for the brokers."""
        return MessageQueue(self.wrap(queue.topic), queue.broker_name, queue.queue_id)

    def plain_queue(self, queue: MessageQueue) -> MessageQueue:
        """The queue with the name of its topic for the application."""
        return MessageQueue(self.plain(queue.topic), queue.broker_name, queue.queue_id)


def _parted(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name.removeprefix(prefix)
    return "", name


class NoNamespace(Namespace):
    """The namespace of clients without one: every name is plain."""

    def __init__(self) -> None:
        self.name = ""

    def wrap(self, name: str) -> str:
        """The same name."""
        return name

    def plain(self, name: str) -> str:
        """The same name."""
        return name

    def holds(self, name: str) -> bool:
        """Every name is one of it."""
        return True

    def wrap_queue(self, queue: MessageQueue) -> MessageQueue:
        """The same queue."""
        return queue

    def plain_queue(self, queue: MessageQueue) -> MessageQueue:
        """The same queue."""
        return queue


NO_NAMESPACE = NoNamespace()


def namespace_of(name: str) -> Namespace:
    """The namespace with this name; an empty one is none."""
    return Namespace(name) if name else NO_NAMESPACE
