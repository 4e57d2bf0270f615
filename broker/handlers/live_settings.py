"""The settings of a running broker: codes 25 (change some) and 26 (show all).

Anybody who reaches the broker may send 25, so only the settings that are marked `live` in
`broker/config.py` can be changed: numbers and switches, which are read anew at each use. None of
them is a path, a command, a class or an address. RocketMQ let every key be changed, which was used
to run commands (CVE-2023-33246). A change holds until the broker stops; nothing is written to a
file.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

from saturnmq.broker.config import LIVE, BrokerConfig, values_of
from saturnmq.broker.context import Context, answer
from saturnmq.broker.tables.topics import INHERIT, READ, WRITE
from saturnmq.protocol import fastjson, headers
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.java_properties import changes_in
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.topics import AUTO_CREATE_TOPIC
from saturnmq.runtime.errors import ConfigError, InvalidParameter

log = logging.getLogger(__name__)

HIDDEN = "******"  # instead of a secret


class SettingsService:
    def __init__(self, context: Context) -> None:
        self._c = context

    def on_show(self, endpoint: Endpoint, request: Command, _: headers.NoFieldsHeader) -> None:
        lines = []
        for field in dataclasses.fields(self._c.config):
            key = field.metadata.get("key")
            if key:
                value = getattr(self._c.config, field.name)
                secret = value and not field.repr
                lines.append(f"{key}={HIDDEN if secret else _property(value)}")
        ext = {"version": fastjson.dumps(self._c.topics.data_version).decode()}
        body = "\n".join(sorted(lines)).encode() + b"\n"
        answer(endpoint, request, request.reply(0, ext=ext, body=body))

    def on_change(self, endpoint: Endpoint, request: Command, _: headers.NoFieldsHeader) -> None:
        """25: change settings, all or none. NoPermission: one is not `live`."""
        changes = changes_in(bytes(request.body), "broker", LIVE)
        before = self._c.config
        try:
            values = values_of(changes.items())
            after = dataclasses.replace(before, **values)
        except ConfigError as error:
            raise InvalidParameter(str(error)) from None
        self._c.config = after
        for name, value in values.items():
            log.warning(
                "%s changed %s from %s to %s, until this broker stops",
                endpoint.peer_address,
                name,
                getattr(before, name),
                value,
            )
        self._apply(before, after)
        answer(endpoint, request, request.reply(0))

    def _apply(self, before: BrokerConfig, after: BrokerConfig) -> None:
        """Do what a setting asks for that is not read at each use."""
        c = self._c
        c.groups.auto_create = after.auto_create_groups
        if c.role.is_slave:
            return  # its tables are its master's
        if after.auto_create_topics and AUTO_CREATE_TOPIC not in c.topics:
            c.topics.ensure(AUTO_CREATE_TOPIC, after.default_topic_queues, INHERIT | READ | WRITE)
        if after.permission != before.permission:
            c.topics.permissions_changed()


def _property(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ";".join(value)
    return str(value)
