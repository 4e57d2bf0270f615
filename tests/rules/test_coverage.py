"""Every row of the rules has a test, and the document in docs/ says which."""

from __future__ import annotations

from row_coverage import DOCUMENT, document, missing, read_rows


def test_every_row_has_a_test() -> None:
    assert missing(read_rows().values()) == []


def test_the_document_is_up_to_date() -> None:
    assert DOCUMENT.read_text() == document(read_rows().values()), (
        "run: python tests/rules/row_coverage.py --write"
    )
