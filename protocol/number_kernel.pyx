# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
"""The numbers of a header, each in one call. The reference is `checked.integer`, which also reads
what is unusual and makes the errors."""

from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int64_t, uint8_t
from saturnmq.protocol.json_text cimport Text, as_number


def number_in(dict fields, name):
    """The number that the text under `name` says, with at most 18 digits; None for anything else,
    which the reference has to read."""
    cdef object value = fields.get(name)
    cdef Text text
    cdef int64_t number
    if type(value) is not str or not (<str>value).isascii():
        return None
    text.at = <const uint8_t *>PyUnicode_AsUTF8AndSize(value, &text.size)
    return number if as_number(&text, &number) else None
