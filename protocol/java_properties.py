"""Settings as lines of Java properties: in the file `broker.conf`, and in requests that change
settings of a running node.

Anybody who reaches a node may send such a request, so the node names the keys that can be changed.
"""

from __future__ import annotations

from collections.abc import Collection

from saturnmq.runtime.errors import ConfigError, InvalidParameter, NoPermission, nearest

BODY_MAX = 1 << 16  # bytes of the settings of one request


def decode(text: str) -> dict[str, str]:
    """The settings in these lines: `key = value`, `#` and `!` comments. ConfigError: a line is none
    of them."""
    pairs: dict[str, str] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in "#!":
            continue
        cut = min((line.find(c) for c in "=:" if c in line), default=-1)
        if cut <= 0:
            raise ConfigError(f"line {number}: {line[:60]!r} is not of the form key=value")
        pairs[line[:cut].strip()] = line[cut + 1 :].strip()
    return pairs


def changes_in(body: bytes, node: str, live: Collection[str]) -> dict[str, str]:
    """The settings in the body of a request. NoPermission: one is not in `live`, and so cannot be
    changed while the node runs."""
    if len(body) > BODY_MAX:
        raise InvalidParameter(f"settings of {len(body)} bytes: the limit is {BODY_MAX}")
    try:
        changes = decode(body.decode())
    except (ConfigError, UnicodeDecodeError) as error:
        raise InvalidParameter(f"the body holds no settings: {error}") from None
    if not changes:
        raise InvalidParameter("the body names no setting: send key=value")
    for key in changes:
        if key not in live:
            raise NoPermission(
                f"{key} cannot be changed while the {node} runs{nearest(key, live)}; it can change "
                f"{', '.join(sorted(live))}"
            )
    return changes
