"""The log that a consumer has read: its epoch, as brokers of ours say it, and those that led to it.

They are told to the next broker, which may have another log (broker/positions.py). An offset is
told with the epochs of the log that it was read in, whatever a broker has said meanwhile. Pure.
"""

from __future__ import annotations

from saturnmq.protocol import checked, epochs
from saturnmq.protocol.errors import MalformedFrame
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.remoting import Command

Terms = dict[tuple[str, MessageQueue], dict[str, str]]
"""By group and queue, the fields of a request that say it."""


def term_in(answer: Command) -> dict[str, str]:
    """The fields in which a broker of ours says from which log it answers: the epoch, and those
    that led to it unless it was told them. Empty: another broker, which does not say so."""
    if "saturnTerm" not in answer.ext:
        return {}
    said = {"saturnTerm": str(checked.integer(answer.ext, "saturnTerm", least=-1))}
    if led := checked.text(answer.ext, "saturnEpochs", ""):
        if epochs.from_text(led) is None:
            raise MalformedFrame(f"saturnEpochs is {led[:80]!r}, not the epochs of a log")
        said["saturnEpochs"] = led
    return said


def note_term(terms: Terms, group: str, queue: MessageQueue, said: dict[str, str]) -> None:
    """`group` goes on where the answer that `said` this (`term_in`) has it go on. If it goes on
    from an offset of its own, this is not to be noted: that log may lack what it has read."""
    known = terms.get((group, queue), {})
    if said:
        is_same = known.get("saturnTerm") == said["saturnTerm"]
        terms[group, queue] = known | said if is_same else said
