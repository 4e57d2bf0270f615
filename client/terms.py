"""The log that a consumer has read: its epoch, as our brokers report it, and the earlier epochs.

A consumer sends them to the next broker, which may have another log
(broker/tables/lost_offsets.py). An offset is sent with the epochs of the log that it was read in,
even if a broker has reported others since. Pure.
"""

from __future__ import annotations

from saturnmq.protocol.message import MessageQueue

Terms = dict[tuple[str, MessageQueue], dict[str, str]]
"""By group and queue, the fields of a request that carry the epochs."""


def note_term(terms: Terms, group: str, queue: MessageQueue, said: dict[str, str]) -> None:
    """Note the fields `said` of an answer (`epochs.term_in`) when `group` goes on where the answer
    says. Do not note them when it goes on from an offset of its own: that log may lack messages
    it has read."""
    known = terms.get((group, queue), {})
    if said:
        is_same = known.get("saturnTerm") == said["saturnTerm"]
        terms[group, queue] = known | said if is_same else said
