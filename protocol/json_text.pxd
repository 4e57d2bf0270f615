# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
# Texts and integers in JSON, where they lie in a header. All of it is compiled into the module that uses it.
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcmp

cdef enum:
    DIGITS_MOST = 18  # a number of so many digits fits 64 bits
    TEXT_MOST = 16384  # bytes of a text with escapes


cdef struct Text:
    const uint8_t *at
    Py_ssize_t size
    bint escaped
    bint ascii


cdef inline bint is_text(const Text *value, const char *wanted, Py_ssize_t size) noexcept:
    return value.size == size and memcmp(value.at, wanted, size) == 0


cdef inline bint as_number(const Text *value, int64_t *number) noexcept:
    """A decimal number that is not too long for 64 bits."""
    cdef const uint8_t *p = value.at
    cdef const uint8_t *end = p + value.size
    cdef int64_t found = 0
    cdef bint negative = p < end and p[0] == c"-"
    p += negative
    if p == end or end - p > DIGITS_MOST:
        return False
    while p < end:
        if not c"0" <= p[0] <= c"9":
            return False
        found = 10 * found + p[0] - c"0"
        p += 1
    number[0] = -found if negative else found
    return True


cdef inline bint is_plain_name(const Text *value) noexcept:
    """Whether all of it is printable ASCII, and not only spaces."""
    cdef Py_ssize_t at
    cdef bint seen = False
    for at in range(value.size):
        if not 0x20 <= value.at[at] < 0x7F or value.at[at] == c"\\":
            return False
        seen |= value.at[at] != c" "
    return seen


cdef inline object as_text(const Text *value):
    """The text; None if it is not UTF-8, or long with escapes."""
    cdef uint8_t plain[TEXT_MOST]
    cdef Py_ssize_t size = value.size
    cdef const uint8_t *at = value.at
    if value.escaped:
        if size > TEXT_MOST:
            return None
        size = unescaped(value, plain)
        at = plain
    try:
        return PyUnicode_DecodeUTF8(<const char *>at, size, NULL)
    except UnicodeDecodeError:
        return None


cdef inline Py_ssize_t unescaped(const Text *value, uint8_t *out) noexcept:
    """Write a text whose escapes `text_at` has checked; return its length in UTF-8."""
    cdef const uint8_t *p = value.at
    cdef const uint8_t *end = p + value.size
    cdef Py_ssize_t size = 0
    cdef uint32_t point
    while p < end:
        if p[0] != c"\\":
            out[size] = p[0]
            size += 1
            p += 1
            continue
        if p[1] != c"u":
            out[size] = simple_escape(p[1])
            size += 1
            p += 2
            continue
        point = hex_digit(p[2]) << 12 | hex_digit(p[3]) << 8 | hex_digit(p[4]) << 4 | hex_digit(p[5])
        p += 6
        if point < 0x80:
            out[size] = point
            size += 1
        elif point < 0x800:
            out[size] = 0xC0 | point >> 6
            out[size + 1] = 0x80 | point & 0x3F
            size += 2
        else:
            out[size] = 0xE0 | point >> 12
            out[size + 1] = 0x80 | point >> 6 & 0x3F
            out[size + 2] = 0x80 | point & 0x3F
            size += 3
    return size


cdef inline uint8_t simple_escape(uint8_t letter) noexcept:
    """The character behind a backslash and this letter; 0 if there is none."""
    if letter == c'"' or letter == c"\\" or letter == c"/":
        return letter
    if letter == c"n":
        return 10
    if letter == c"t":
        return 9
    if letter == c"r":
        return 13
    if letter == c"b":
        return 8
    if letter == c"f":
        return 12
    return 0


cdef inline uint32_t hex_digit(uint8_t letter) noexcept:
    """The value of a hexadecimal digit; 16 for any other character."""
    if c"0" <= letter <= c"9":
        return letter - c"0"
    letter |= 0x20
    if c"a" <= letter <= c"f":
        return letter - c"a" + 10
    return 16


cdef inline const uint8_t *text_at(const uint8_t *p, const uint8_t *end, Text *text) noexcept:
    """Read a JSON text that begins at `p`; the place behind it, or NULL: it needs the reference."""
    cdef uint32_t first, second
    if p >= end or p[0] != c'"':
        return NULL
    p += 1
    text.at, text.escaped, text.ascii = p, False, True
    while p < end:
        if p[0] == c'"':
            text.size = p - text.at
            return p + 1
        if p[0] < 0x20:
            return NULL
        if p[0] >= 0x80:
            text.ascii = False
        elif p[0] == c"\\":
            text.escaped = True
            p += 1
            if p >= end:
                return NULL
            if p[0] == c"u":
                if end - p < 5:
                    return NULL
                first, second = hex_digit(p[1]), hex_digit(p[2])
                if first > 15 or second > 15 or hex_digit(p[3]) > 15 or hex_digit(p[4]) > 15:
                    return NULL
                if first == 0xD and second >= 8:
                    return NULL  # a surrogate
                p += 4
            elif not simple_escape(p[0]):
                return NULL
        p += 1
    return NULL


cdef inline const uint8_t *number_at(const uint8_t *p, const uint8_t *end, int64_t *number) noexcept:
    """Read a JSON integer of 32 bits; as `text_at`."""
    cdef Text digits
    digits.at = p
    if p < end and p[0] == c"-":
        p += 1
    if p < end and p[0] == c"0" and (p > digits.at or p + 1 < end and c"0" <= p[1] <= c"9"):
        return NULL
    while p < end and c"0" <= p[0] <= c"9":
        p += 1
    digits.size = p - digits.at
    if not as_number(&digits, number) or not -0x80000000 <= number[0] <= 0x7FFFFFFF:
        return NULL
    return p


cdef inline bint is_ascii(const Text *text) noexcept:
    cdef Py_ssize_t at
    cdef uint8_t bits = 0
    for at in range(text.size):
        bits |= text.at[at]
    return bits < 0x80
