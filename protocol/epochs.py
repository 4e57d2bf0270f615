"""The numbering of masters' terms. Pure; broker and client count alike.

An epoch is a number up to EPOCH_MAX, of three parts:

| part | times | counts |
|---|---|---|
| term | 100,000 | promotions: an operator's word, which wins over what the old master did since |
| opener | 1,000 | the id that the node's configuration gives it |
| restart | 1 | how often the master of this term began again, out of order |

So two nodes that cannot hear each other never open the same epoch, and a master that restarted
while it was cut off never outranks the one that was promoted meanwhile.

A client that reads a log gets its epochs, each with the physical offset where it begins, as text,
`100000-0,200000-4096`. It sends them to the next broker that it asks.
"""

import re
from collections.abc import Iterable

from saturnmq.runtime.errors import MalformedFrame

from . import checked
from .remoting import Command

EPOCH_MAX = (1 << 31) - 1  # the greatest that RocketMQ's brokers can read
TERM = 100_000
OPENER = 1_000
# A node believes no epoch further above its own: it cannot have missed so many promotions, and a
# false epoch would use up the numbers of the true masters.
AHEAD_MAX = 5_000 * TERM
TOLD_MAX = 16  # a client gets at most so many epochs, the newest
_TOLD = re.compile("([0-9]{1,10})-([0-9]{1,19})")


def next_restart(epoch: int, opener: int) -> int:
    """The epoch that a master of `epoch` (0: none yet) opens when it restarts."""
    following = epoch + 1
    if epoch and following % OPENER:
        return following
    return next_term(epoch) + _part(opener)


def next_promotion(known: int, least: int, opener: int) -> int:
    """The epoch that a promoted node opens: above `known`, and `least` or more."""
    epoch = max(known, least) // TERM * TERM + _part(opener)
    return epoch if epoch > known and epoch >= least else epoch + TERM


def next_term(known: int) -> int:
    """The epoch that a promotion fences with: no earlier master can reach it by restarting."""
    return (known // TERM + 1) * TERM


def ceiling(known: int) -> int:
    """The highest epoch that a node with the epoch `known` believes; any for 0."""
    return min(EPOCH_MAX, known + AHEAD_MAX) if known else EPOCH_MAX


def is_own(epoch: int, opener: int) -> bool:
    """Whether the node of this configured id opened `epoch`, or continued it."""
    return epoch % TERM // OPENER * OPENER == _part(opener)


def _part(opener: int) -> int:
    return opener % (TERM // OPENER) * OPENER


def to_text(epochs: Iterable[tuple[int, int]]) -> str:
    """The newest of these (epoch, start), which rise, as text for a client."""
    return ",".join(f"{number}-{start}" for number, start in [*epochs][-TOLD_MAX:])


def from_text(text: str) -> list[tuple[int, int]] | None:
    """Parse such a text; None if it is malformed."""
    found = [_TOLD.fullmatch(each) for each in text.split(",", TOLD_MAX)]
    told = [(int(each[1]), int(each[2])) for each in found if each is not None]
    return told if len(told) == len(found) <= TOLD_MAX else None


def term_in(answer: Command) -> dict[str, str]:
    """The fields in which a broker of ours names the log it answers from: the epoch, and the
    earlier epochs unless the client sent them; and how often the group's offset was moved
    (`saturnMoves`), if the client did not know. Empty for another broker, which does not send
    them."""
    if "saturnTerm" not in answer.ext:
        return {}
    said = {"saturnTerm": str(checked.integer(answer.ext, "saturnTerm", least=-1))}
    if led := checked.text(answer.ext, "saturnEpochs", ""):
        if from_text(led) is None:
            raise MalformedFrame(f"saturnEpochs is {led[:80]!r}, not the epochs of a log")
        said["saturnEpochs"] = led
    if "saturnMoves" in answer.ext:
        said["saturnMoves"] = str(checked.integer(answer.ext, "saturnMoves"))
    return said
