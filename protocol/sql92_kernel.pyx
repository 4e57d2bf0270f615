# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
"""SQL92 conditions over the properties of a frame as they are encoded, compiled.

The reference is `sql92.py` with `sql92_terms.py`: `Sql.matches` of what `decode_properties` makes of
these bytes. A program of steps decides what consumers usually ask: a property compared with numbers,
texts, TRUE, FALSE or NULL, joined by AND, OR and NOT. It answers UNSURE, and the reference decides,
where the condition compares other things, has more than NAMES_MOST properties or a text with U+FFFD
(which the decoder writes for bytes that are no UTF-8), and where a property is a number of more than
19 digits, a fraction that two doubles do not give by one rounding, or has digits of other scripts.

Texts are compared as bytes. That is exact: the decoder keeps every valid sequence of UTF-8, whatever
bytes stand around it, and makes U+FFFD only of bytes that belong to none.

Memory: nothing is allocated for a message, and no Python object made.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp

from saturnmq.protocol.frame_kernel.layout cimport Bytes, Slice, hold, release

from saturnmq.protocol.sql92_terms import read_any, read_int

cdef extern from *:
    """
    #include <float.h>
    #include <math.h>
    #include <string.h>

    /* Of two doubles that are exact, * and / give the nearest to the true value, unless the processor
     * keeps more digits than a double has. */
    static const int rounds_once = FLT_EVAL_METHOD == 0;
    static const double powers_of_ten[] = {
        1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
        1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
    };
    """
    const int rounds_once
    const double powers_of_ten[23]
    int signbit(double value) nogil
    void *memmem(const void *text, size_t size, const void *part, size_t part_size) nogil

cdef enum Order:
    BELOW = 1
    EQUAL = 2
    ABOVE = 4

cdef enum:
    DIGITS_MOST = 19  # of a number of 64 bits
    TENS_MOST = 22  # the largest exact power of ten
    PLACES_MOST = 9999  # an exponent beyond is left to the reference

cdef uint64_t EXACT_MOST = 1ULL << 53  # whole numbers up to here are exact doubles
cdef uint64_t SHORTEST = 100000000000000000ULL  # ten times as much, and nine, fits 64 bits
cdef dict ORDERS = {"=": EQUAL, "<": BELOW, "<=": BELOW | EQUAL, ">": ABOVE, ">=": ABOVE | EQUAL}
cdef dict SEARCH_KINDS = {"CONTAINS": CONTAINS, "STARTSWITH": STARTSWITH, "ENDSWITH": ENDSWITH}
cdef str REPLACEMENT = "�"


cdef class SqlProgram:
    """A condition, given as the tree that `sql92.py` describes."""

    def __cinit__(self, tuple tree not None):
        self._kept = []
        self._add(tree)

    def __dealloc__(self):
        free(self._steps)
        free(self._names)
        free(self._texts)

    @property
    def decides(self):
        """Whether it decides about any message at all."""
        return self._steps[0].kind != UNDECIDED and self._names_count <= NAMES_MOST

    def matches(self, properties):
        """Whether the condition is true of encoded properties; None where the reference decides."""
        cdef Bytes b
        cdef Truth truth
        hold(properties, &b)
        truth = self.decide(b.at, b.size)
        release(&b)
        return None if truth == UNSURE else truth == YES

    # --- from a tree to steps -----------------------------------------------------------------------

    cdef int _add(self, tuple tree) except -1:
        cdef int at = self._count
        cdef Step *grown = <Step *>realloc(self._steps, (at + 1) * sizeof(Step))
        cdef Step step
        if grown == NULL:
            raise MemoryError
        self._steps = grown
        self._count += 1
        step.kind, step.wanted, step.name, step.orders, step.bits = UNDECIDED, YES, 0, 0, 0
        step.whole, step.value, step.first, step.texts = 0, 0, 0, 0
        if tree[0] == "word":
            step.kind = CONSTANT
            step.wanted = UNKNOWN if tree[1] is None else YES if tree[1] else NO
        elif tree[0] == "not":
            step.kind = NOT
            self._add(tree[1])
        elif tree[0] in ("all", "any"):
            step.kind = ALL if tree[0] == "all" else ANY
            for part in tree[1]:
                self._add(part)
        elif isinstance(tree[1], tuple) and tree[1][0] == "property":
            self._add_question(&step, tree)
        step.end = self._count
        self._steps[at] = step
        return 0

    cdef int _add_question(self, Step *step, tuple tree) except -1:
        """A step that asks about one property."""
        cdef str kind = tree[0]
        cdef object what = tree[2] if len(tree) > 2 else None
        cdef object wanted = tree[3] if len(tree) > 3 else True
        if kind == "condition":
            step.kind = BARE
        elif kind == "null":
            step.kind, wanted = ABSENT, what
        elif kind == "in" and self._add_texts(step, list(what)):
            step.kind = AMONG
        elif kind in SEARCH_KINDS and self._add_texts(step, [what]):
            step.kind = SEARCH_KINDS[kind]
        elif kind == "=" and what[0] == "text" and self._add_texts(step, [what[1]]):
            step.kind = AMONG
        elif kind == "=" and what[0] == "word":
            step.kind, wanted = TRUE_OR_FALSE, what[1]
        elif kind in ORDERS and what[0] == "number":
            self._add_number(step, what[1])
            step.orders = ORDERS[kind]
        if step.kind != UNDECIDED:
            step.name = self._name(tree[1][1])
            step.wanted = YES if wanted else NO
        return 0

    cdef int _add_number(self, Step *step, object number) except -1:
        if number.read is read_any:
            step.kind, step.value = ANY_NUMBER, number.value
        else:
            step.kind, step.whole = WHOLE_NUMBER, number.value
            step.bits = 32 if number.read is read_int else 64
        return 0

    cdef int _add_texts(self, Step *step, list texts) except -1:
        """Whether bytes decide about these texts; then they are the step's, in the order in which
        `is_among` looks for them."""
        cdef Slice *grown
        cdef list encoded = []
        for text in texts:
            if REPLACEMENT in text:
                return 0
            try:
                encoded.append(text.encode())
            except UnicodeEncodeError:  # half of a pair: in no decoded text
                return 0
        encoded.sort(key=lambda data: (len(data), data))
        grown = <Slice *>realloc(self._texts, (self._texts_count + len(encoded)) * sizeof(Slice))
        if grown == NULL:
            raise MemoryError
        self._texts = grown
        step.first, step.texts = self._texts_count, <int>len(encoded)
        for data in encoded:
            grown[self._texts_count] = self._kept_slice(data)
            self._texts_count += 1
        return 1

    cdef Slice _kept_slice(self, bytes data):
        cdef Slice slice
        self._kept.append(data)
        slice.at, slice.size = data, len(data)
        return slice

    cdef int _name(self, str name) except -1:
        cdef bytes data = name.encode()
        cdef Slice *grown
        cdef int number
        for number in range(self._names_count):
            if is_equal(self._names[number], data, len(data)):
                return number
        grown = <Slice *>realloc(self._names, (self._names_count + 1) * sizeof(Slice))
        if grown == NULL:
            raise MemoryError
        self._names = grown
        grown[self._names_count] = self._kept_slice(data)
        self._names_count += 1
        return self._names_count - 1

    # --- of a message -------------------------------------------------------------------------------

    cdef Truth decide(self, const uint8_t *properties, Py_ssize_t size) noexcept nogil:
        """The truth of the condition for these encoded properties."""
        cdef Slice found[NAMES_MOST]
        cdef const uint8_t *at = properties
        cdef const uint8_t *end = properties + size
        cdef const uint8_t *stop
        cdef const uint8_t *value
        cdef Slice name
        cdef int number
        if self._names_count > NAMES_MOST:
            return UNSURE
        for number in range(self._names_count):
            found[number].at, found[number].size = NULL, 0
        while at < end:
            if at[0] == 2:  # a pair of nothing
                at += 1
                continue
            stop = <const uint8_t *>memchr(at, 2, end - at)
            if stop == NULL:
                stop = end
            for number in range(self._names_count):
                # No name has a 0x01: if one stands behind it here, it is the first of the pair.
                name = self._names[number]
                value = at + name.size + 1
                if value < stop and (value - 1)[0] == 1 and memcmp(at, name.at, name.size) == 0:
                    found[number].at, found[number].size = value, stop - value
                    break
            at = stop + 1
        return self._truth(0, found)

    cdef Truth _truth(self, int at, const Slice *found) noexcept nogil:
        """The truth of the step at `at`. As deep as the condition, which is bounded."""
        cdef const Step *step = &self._steps[at]
        cdef const Slice *text
        cdef Slice value
        cdef Truth truth, result
        cdef int part
        cdef bint holds
        if step.kind == UNDECIDED:
            return UNSURE
        if step.kind == CONSTANT:
            return step.wanted
        if step.kind == NOT:
            truth = self._truth(at + 1, found)
            return NO if truth == YES else YES if truth == NO else truth
        if step.kind == ALL or step.kind == ANY:
            result = YES if step.kind == ALL else NO
            part = at + 1
            while part < step.end:
                truth = self._truth(part, found)
                if truth == UNKNOWN:
                    result = UNKNOWN
                elif truth != (YES if step.kind == ALL else NO):  # it decides, or ends it all
                    return truth
                part = self._steps[part].end
            return result
        value = found[step.name]
        if step.kind == ABSENT:
            return YES if (value.at == NULL) == (step.wanted == YES) else NO
        if step.kind in (CONTAINS, STARTSWITH, ENDSWITH):
            text = &self._texts[step.first]
            if value.at == NULL or text.size == 0:
                return NO
            if step.kind == CONTAINS:
                holds = memmem(value.at, value.size, text.at, text.size) != NULL
            elif value.size < text.size:
                holds = False
            elif step.kind == STARTSWITH:
                holds = memcmp(value.at, text.at, text.size) == 0
            else:
                holds = memcmp(value.at + value.size - text.size, text.at, text.size) == 0
        elif value.at == NULL:
            return UNKNOWN
        elif step.kind == BARE:
            return NO
        elif step.kind == AMONG:
            holds = is_among(&self._texts[step.first], step.texts, value)
        elif step.kind == TRUE_OR_FALSE:
            holds = is_true(value)
        elif step.kind == WHOLE_NUMBER:
            return whole_order(value, step)
        else:
            return any_order(value, step)
        return YES if holds == (step.wanted == YES) else NO


# --- texts ------------------------------------------------------------------------------------------

cdef inline bint is_equal(Slice text, const uint8_t *data, Py_ssize_t size) noexcept nogil:
    return text.size == size and memcmp(text.at, data, size) == 0


cdef bint is_among(const Slice *texts, int count, Slice value) noexcept nogil:
    """Whether it is one of these texts, which are in order: by size, then by their bytes."""
    cdef int low = 0, high = count, middle, order
    while low < high:
        middle = (low + high) // 2
        if texts[middle].size != value.size:
            order = 1 if texts[middle].size < value.size else -1
        else:
            order = memcmp(value.at, texts[middle].at, value.size)
            if order == 0:
                return True
        if order > 0:
            low = middle + 1
        else:
            high = middle
    return False


cdef bint is_true(Slice value) noexcept nogil:
    """Whether it is "true" in any case. No letter beyond ASCII has one of these in lower case."""
    cdef const char *lower = "true"
    cdef int number
    if value.size != 4:
        return False
    for number in range(4):
        if value.at[number] | 0x20 != lower[number]:
            return False
    return True


# --- numbers ----------------------------------------------------------------------------------------

cdef Truth whole_order(Slice text, const Step *step) noexcept nogil:
    """As `sql92_terms.read_int` or `read_long`, and the comparison."""
    cdef const uint8_t *p = text.at
    cdef const uint8_t *end = p + text.size
    cdef bint negative = p[0] == c"-"
    cdef uint64_t size = 0, limit = 1ULL << (step.bits - 1)
    cdef int64_t whole
    p += negative or p[0] == c"+"
    if p == end:
        return BROKEN
    if end - p > DIGITS_MOST:
        return UNSURE
    while p < end:
        if not c"0" <= p[0] <= c"9":
            return UNSURE if p[0] >= 0x80 else BROKEN
        size = size * 10 + (p[0] - c"0")
        p += 1
    if size > limit or (size == limit and not negative):
        return BROKEN
    whole = <int64_t>(0 - size) if negative else <int64_t>size
    if whole == step.whole:
        return YES if step.orders & EQUAL else NO
    return YES if step.orders & (BELOW if whole < step.whole else ABOVE) else NO


cdef Truth any_order(Slice text, const Step *step) noexcept nogil:
    """As `sql92_terms.read_any`, and the comparison, in which -0.0 is below 0."""
    cdef const uint8_t *p = text.at
    cdef const uint8_t *end = p + text.size
    cdef const uint8_t *digits
    cdef bint negative, lower
    cdef uint64_t size = 0
    cdef int64_t power = 0, places = 0
    cdef int count = 0
    cdef double value, wanted = step.value
    while p < end and p[0] <= 32:
        p += 1
    while p < end and (end - 1)[0] <= 32:
        end -= 1
    if p == end:
        return BROKEN
    negative = p[0] == c"-"
    p += negative or p[0] == c"+"
    if end - p == 3 and memcmp(p, b"NaN", 3) == 0:
        return YES if step.orders & ABOVE else NO
    if end - p == 8 and memcmp(p, b"Infinity", 8) == 0:
        return YES if step.orders & (BELOW if negative else ABOVE) else NO
    while p < end and (c"0" <= p[0] <= c"9" or (p[0] == c"." and places == 0)):
        if p[0] == c".":
            places = 1
        else:
            if size >= SHORTEST:
                return UNSURE
            size = size * 10 + (p[0] - c"0")
            count += 1
            power -= places
        p += 1
    if not count:
        return BROKEN
    if p < end and (p[0] == c"e" or p[0] == c"E"):
        p += 1
        lower = p < end and p[0] == c"-"
        p += lower or (p < end and p[0] == c"+")
        digits, places = p, 0
        while p < end and c"0" <= p[0] <= c"9":
            places = places * 10 + (p[0] - c"0")
            if places > PLACES_MOST:
                return UNSURE
            p += 1
        if p == digits:
            return BROKEN
        power += -places if lower else places
    if p < end and (p[0] == c"f" or p[0] == c"F" or p[0] == c"d" or p[0] == c"D"):
        p += 1
    if p < end:
        return BROKEN
    if size > EXACT_MOST or not -TENS_MOST <= power <= TENS_MOST or not rounds_once:
        return UNSURE
    value = <double>size
    value = value / powers_of_ten[-power] if power < 0 else value * powers_of_ten[power]
    if negative:
        value = -value
    if value != wanted:
        return YES if step.orders & (BELOW if value < wanted else ABOVE) else NO
    if value != 0 or negative == (signbit(wanted) != 0):
        return YES if step.orders & EQUAL else NO
    return YES if step.orders & (BELOW if negative else ABOVE) else NO
