"""The log that a consumer has read: its epoch, as brokers of ours say it, and those that led to it.

They are told to the next broker, which may have another log (broker/tables/lost_offsets.py). An
offset is told with the epochs of the log that it was read in, whatever a broker has said meanwhile.
Pure.
"""

from __future__ import annotations

from saturnmq.protocol.message import MessageQueue

Terms = dict[tuple[str, MessageQueue], dict[str, str]]
"""By group and queue, the fields of a request that say it."""


def note_term(terms: Terms, group: str, queue: MessageQueue, said: dict[str, str]) -> None:
    """`group` goes on where the answer that `said` this (`epochs.term_in`) has it go on. If it goes
    on from an offset of its own, this is not to be noted: that log may lack what it has read."""
    known = terms.get((group, queue), {})
    if said:
        is_same = known.get("saturnTerm") == said["saturnTerm"]
        terms[group, queue] = known | said if is_same else said
