"""The log that a consumer has read: its epoch, as our brokers report it, and the earlier epochs;
and which resets of its group's offset it follows.

A consumer sends them to the next broker, which may have another log
(broker/tables/lost_offsets.py), or know of a reset that another member has heard of
(broker/tables/offsets.py). An offset is sent with the epochs of the log that it was read in, even
if a broker has reported others since. Pure.
"""

from __future__ import annotations

from saturnmq.protocol.message import MessageQueue

Terms = dict[tuple[str, MessageQueue], dict[str, str]]
"""By group and queue, the fields of a request that carry the epochs and the moves."""


def note_term(terms: Terms, group: str, queue: MessageQueue, said: dict[str, str]) -> None:
    """Note the fields `said` of an answer (`epochs.term_in`) when `group` goes on where the answer
    says. Do not note them when it goes on from an offset of its own: that log may lack messages
    it has read."""
    known = terms.get((group, queue), {})
    if said:
        if known.get("saturnTerm") != said["saturnTerm"]:
            known = {key: known[key] for key in known.keys() & {"saturnMoves"}}
        terms[group, queue] = known | said
