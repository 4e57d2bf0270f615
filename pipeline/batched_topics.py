"""Topics with queues of batches (`queue.type=BatchCQ`), which are not read here.

A read that names one is refused. A read of all topics, or of those that match a pattern, has not
asked for one: it goes on without, and the log says so.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence

from saturnmq.client.channels import Channels, document
from saturnmq.protocol import checked
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.inner_batch import BATCHED, QUEUE_TYPE
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import BrokerData
from saturnmq.runtime.errors import ConfigError, SaturnError

log = logging.getLogger(__name__)


def refusal(topic: str) -> ConfigError:
    """The error of a read that names a topic of batches."""
    return ConfigError(
        f"topic {topic} has queues of batches, which are not read here: copy it into a topic with "
        f"{QUEUE_TYPE}=SimpleCQ"
    )


class LeftOut:
    """The topics that were left out, each told once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def without(self, topics: Sequence[str], batched: Collection[str]) -> list[str]:
        """The other topics."""
        for name in sorted(set(batched) - self._told):
            log.warning("topic %s is left out: it has queues of batches, not read here", name)
        self._told = set(batched)
        return [name for name in topics if name not in batched]


class QueueTypes:
    """The types of topics, as a cluster's brokers tell them. A topic keeps its type, so they are
    asked again only when there are others."""

    def __init__(self, channels: Channels, timeout_s: float) -> None:
        self._channels = channels
        self._timeout_s = timeout_s
        self._batched: dict[str, bool] = {}

    def batched(self, topics: Collection[str], brokers: Iterable[BrokerData]) -> set[str]:
        """Those of the topics that have queues of batches on any of the brokers."""
        self._batched = {name: kind for name, kind in self._batched.items() if name in topics}
        if len(self._batched) < len(topics):
            for broker in brokers:
                for name, kind in self._of(broker).items():
                    if name in topics:
                        self._batched[name] = kind or self._batched.get(name, False)
        return {name for name, kind in self._batched.items() if kind}

    def _of(self, broker: BrokerData) -> dict[str, bool]:
        """The topics of a broker; none if no replica answers, then its bounds say why."""
        command = Command.request(RequestCode.GET_ALL_TOPIC_CONFIG)
        for _, address in sorted(broker.addresses.items()):
            try:
                answer = self._channels.request(address, command, self._timeout_s)
                table = checked.table(document(address, answer), "topicConfigTable")
                return {str(name): _is_batched(name, value) for name, value in table.items()}
            except SaturnError as error:
                log.info("%s does not tell the types of its topics: %s", address, error)
        return {}


def _is_batched(name: object, config: object) -> bool:
    attributes = checked.table(checked.as_table(config, f"topic {name}"), "attributes")
    return bool(attributes.get(QUEUE_TYPE) == BATCHED)
