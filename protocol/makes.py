"""The make and the version of a server, as the header of each of its answers tells them.

Ours give a number of RocketMQ's too (docs/internals/protocol.md 1.6), and another language.
"""

from __future__ import annotations

from saturnmq.protocol.remoting import Command

_LANGUAGE = "PYTHON"
_FIRST = 212  # of 4.0.0; the numbers before follow no rule


def is_ours(answer: Command) -> bool:
    """Whether a server of ours answered."""
    return answer.language == _LANGUAGE


def make_of(answer: Command) -> str:
    """The make of the server that answered, such as `RocketMQ 4.9.7`."""
    if is_ours(answer):
        return "SaturnMQ"
    if answer.version < _FIRST:
        return "RocketMQ before 4.0"
    major, rest = divmod((answer.version - _FIRST) // 2, 100)
    return f"RocketMQ {4 + major}.{rest // 10}.{rest % 10}"
