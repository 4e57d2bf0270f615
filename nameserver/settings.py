"""The settings of a running nameserver: codes 318 and 1009 (change some), 319 and 1010 (show all).

Anybody who reaches the nameserver may send them, so only the settings in `LIVE` can be changed.
None of them is a path, a command, a class or an address, and nothing is written to a file: RocketMQ
let the path of its file be changed, and wrote any content to any place (CVE-2023-37582). A change
holds until the nameserver stops.
"""

from __future__ import annotations

import logging

from saturnmq.protocol.java_properties import changes_in
from saturnmq.runtime.errors import InvalidParameter

log = logging.getLogger(__name__)

SCAN = "scanNotActiveBrokerInterval"
SCAN_INTERVAL_MS = 5_000
LIVE = {SCAN: (1_000, 60_000)}  # the least and the greatest value


class NameserverSettings:
    def __init__(self) -> None:
        self._values = {SCAN: SCAN_INTERVAL_MS}

    @property
    def scan_interval_s(self) -> float:
        """The seconds between two looks for brokers that have gone silent."""
        return self._values[SCAN] / 1000

    def shown(self, fixed: dict[str, str]) -> bytes:
        """All settings as Java properties; `fixed`: those that cannot be changed."""
        settings = fixed | {key: str(value) for key, value in self._values.items()}
        return "".join(f"{key}={value}\n" for key, value in sorted(settings.items())).encode()

    def change(self, who: str, body: bytes) -> None:
        """Change settings, all or none. NoPermission: one is not in `LIVE`. InvalidParameter: a
        value is out of its bounds."""
        texts = changes_in(body, "nameserver", LIVE)
        changes = {key: _checked(key, text) for key, text in texts.items()}
        for key, value in changes.items():
            log.warning("%s changed %s from %d to %d", who, key, self._values[key], value)
        self._values |= changes


def _checked(key: str, text: str) -> int:
    least, most = LIVE[key]
    digits = text.isascii() and text.isdigit() and len(text) <= 9
    if not digits or not least <= int(text) <= most:
        raise InvalidParameter(f"{key} is {text!r:.40}; it must be a number from {least} to {most}")
    return int(text)
