"""What a consumer notes of the logs that it reads, to be told to the next broker."""

from __future__ import annotations

import pytest
from saturnmq.client.terms import Terms, note_term
from saturnmq.protocol.epochs import term_in
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import MalformedFrame

Q = MessageQueue("T", "a", 0)


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"saturnTerm": "-1"},
        {"saturnTerm": "7"},
        {"saturnTerm": "7", "saturnEpochs": "3-0,7-12"},
        {"saturnTerm": "7", "saturnMoves": "2"},
    ],
)
def test_a_broker_of_ours_says_from_which_log_it_answers(said: dict[str, str]) -> None:
    assert term_in(Command(0, {"offset": "1", **said})) == said


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"saturnTerm": "-2"}, "saturnTerm"),
        ({"saturnTerm": "x"}, "saturnTerm"),
        ({"saturnTerm": "1", "saturnMoves": "-2"}, "saturnMoves"),
        ({"saturnTerm": "1", "saturnEpochs": "z" * 100}, f"is '{'z' * 80}', not the epochs of"),
    ],
)
def test_a_log_that_cannot_be_is_an_error(said: dict[str, str], why: str) -> None:
    with pytest.raises(MalformedFrame, match=why):
        term_in(Command(0, said))


def test_epochs_are_kept_until_another_log_is_read() -> None:
    terms: Terms = {}
    note_term(terms, "G", Q, {})
    assert terms == {}
    first = {"saturnTerm": "3", "saturnEpochs": "3-0"}
    note_term(terms, "G", Q, first)
    note_term(terms, "G", Q, {"saturnTerm": "3"})
    assert terms == {("G", Q): first}, "it was told them and need not say them again"
    note_term(terms, "G", Q, {})
    assert terms == {("G", Q): first}
    note_term(terms, "G", Q, {"saturnTerm": "4"})
    assert terms == {("G", Q): {"saturnTerm": "4"}}
    note_term(terms, "H", Q, first)
    assert terms == {("G", Q): {"saturnTerm": "4"}, ("H", Q): first}


def test_moves_are_kept_until_a_broker_tells_another_number() -> None:
    terms: Terms = {}
    note_term(terms, "G", Q, {"saturnTerm": "3", "saturnEpochs": "3-0", "saturnMoves": "2"})
    note_term(terms, "G", Q, {"saturnTerm": "4"})  # a slave tells none
    assert terms["G", Q] == {"saturnTerm": "4", "saturnMoves": "2"}
    note_term(terms, "G", Q, {"saturnTerm": "4", "saturnMoves": "0"})
    assert terms["G", Q] == {"saturnTerm": "4", "saturnMoves": "0"}
