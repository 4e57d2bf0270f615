# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
"""The hot half of digest.py, compiled; `hash_slices_reference` there says what it does."""

from libc.stdint cimport int32_t, uint8_t, uint64_t
from libc.string cimport memcpy

cdef uint64_t FACTOR = 0x9E3779B97F4A7C15


def hash_slices(const int32_t[::1] offsets, const uint8_t[::1] data, uint64_t[::1] out):
    """Hash each slice of `data`; offsets that do not rise or leave it are a ValueError."""
    cdef Py_ssize_t count = offsets.shape[0] - 1, total = data.shape[0], number
    if count < 0 or out.shape[0] != count:
        raise ValueError(f"{offsets.shape[0]} offsets make no {out.shape[0]} slices")
    for number in range(count):
        if not 0 <= offsets[number] <= offsets[number + 1] <= total:
            raise ValueError(
                f"slice {number} is [{offsets[number]}, {offsets[number + 1]}) of {total} bytes"
            )
    if not total:
        for number in range(count):
            out[number] = 0
        return
    with nogil:
        for number in range(count):
            out[number] = slice_hash(&data[0] + offsets[number], offsets[number + 1] - offsets[number])


cdef uint64_t slice_hash(const uint8_t *at, Py_ssize_t size) noexcept nogil:
    cdef uint64_t value = <uint64_t>size * FACTOR, word
    while size >= 8:
        memcpy(&word, at, 8)
        value = (value ^ word) * FACTOR
        value ^= value >> 32
        at += 8
        size -= 8
    if size:
        word = 0
        memcpy(&word, at, size)
        value = (value ^ word) * FACTOR
        value ^= value >> 32
    return value
