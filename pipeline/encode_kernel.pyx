# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
"""Rows to entries of a MessageBatch, compiled; `encode_reference.py` is the readable twin and says what is
right.

Entries are written from the Arrow buffers of a batch without a Python object per row and without the GIL. A
row that cannot be sent only stops it: the reference then says what is wrong. Offsets in the buffers came from
another process (the JVM), so each is checked against the buffer it points into.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy

import pyarrow as pa

from saturnmq.pipeline import encode_reference as _reference
from saturnmq.pipeline.encode_reference import (
    ENTRY_BYTES_MAX, ID_PREFIX_BYTES, LEFT_OUT, NUMBER_MAX, PROPERTIES_BYTES_MAX, TEXT_COLUMNS, Encoded,
)

from saturnmq.protocol.frame_kernel.layout cimport Slice, put32
from saturnmq.protocol.frame_kernel.scanning cimport crc_of

cdef enum:
    HEAD_BYTES = 20  # of an entry, before the body
    LAST_BYTES = 21  # of properties that hold no zero: the CRC property would be there, and one before
    PREFIX_BYTES = 24
    TEXTS_MAX = 3
    SIZES = 64  # no name that is left out is longer

cdef Py_ssize_t PROPERTIES_MAX = PROPERTIES_BYTES_MAX
cdef int64_t LAST_NUMBER = NUMBER_MAX
cdef const char *HEX = b"0123456789ABCDEF"
assert ID_PREFIX_BYTES == PREFIX_BYTES
assert len(TEXT_COLUMNS) == TEXTS_MAX


# --- columns ----------------------------------------------------------------------------------------

cdef struct Column:
    # An Arrow array: binary or large binary, or int32 (without `ends`), or the offsets of a map (without
    # `data`). `valid` is NULL if nothing is null, all of it if the column is not there.
    const uint8_t *valid
    const uint8_t *ends
    bint large
    Py_ssize_t first  # the array's own offset
    Py_ssize_t size
    const uint8_t *data
    Py_ssize_t data_size


cdef enum Fault:
    NO_FAULT
    REFUSED  # the reference says why
    OUTSIDE  # an offset leads out of its buffer
    NO_MEMORY


cdef inline bint is_null(const Column *c, Py_ssize_t n) noexcept nogil:
    n += c.first
    return c.valid != NULL and not c.valid[n >> 3] >> (n & 7) & 1


cdef inline bint span(const Column *c, Py_ssize_t n, int64_t limit, int64_t *begin, int64_t *end) noexcept nogil:
    """Where item n lies; False if that is not within [0, limit]."""
    n += c.first
    if c.large:
        begin[0] = (<const int64_t *>c.ends)[n]
        end[0] = (<const int64_t *>c.ends)[n + 1]
    else:
        begin[0] = (<const int32_t *>c.ends)[n]
        end[0] = (<const int32_t *>c.ends)[n + 1]
    return 0 <= begin[0] <= end[0] <= limit


cdef inline bint find(const Column *c, Py_ssize_t n, Slice *item) noexcept nogil:
    """Item n of bytes, empty if it is null; False if its offsets are wrong."""
    cdef int64_t begin, end
    item.at = c.data
    item.size = 0
    if is_null(c, n):
        return True
    if not span(c, n, c.data_size, &begin, &end):
        return False
    item.at = c.data + begin
    item.size = end - begin
    return True


cdef open_column(Column *c, array, Py_ssize_t width):
    """Look into `array`, which the caller keeps; `width` of an int, 0 for what has offsets."""
    valid, ends = array.buffers()[:2]
    data = None
    c.first = array.offset
    c.size = len(array)
    c.valid = address(valid, (c.first + c.size + 7) >> 3)
    if width:
        c.data = address(ends, (c.first + c.size) * width)
        return
    c.large = array.type == pa.large_binary()
    if ends is None and c.size == 0:  # as Arrow allows for an array of nothing
        return
    if ends is None:
        raise ValueError(f"an Arrow array of {c.size} items has no offsets")
    c.ends = address(ends, (c.first + c.size + 1) * (8 if c.large else 4))
    if not pa.types.is_map(array.type):
        data = array.buffers()[2]
        c.data = address(data, 0)
        c.data_size = 0 if data is None else data.size


cdef const uint8_t *address(buffer, Py_ssize_t size) except? NULL:
    """Where the bytes of `buffer` are, `size` at least; NULL if there is none."""
    if buffer is None:
        return NULL
    if buffer.size < size:
        raise ValueError(f"an Arrow buffer has {buffer.size} B, {size} B belong there")
    return <const uint8_t *><uintptr_t>buffer.address


# --- names that are left out ------------------------------------------------------------------------

cdef struct Names:
    # Sorted by size: those of n bytes are [start[n], start[n + 1]).
    Slice *names
    int[SIZES + 1] start

cdef Names left_out
cdef list LEFT_OUT_SORTED = sorted(LEFT_OUT, key=len)


cdef set_up_names():
    cdef Py_ssize_t i, size
    cdef bytes name
    left_out.names = <Slice *>malloc(len(LEFT_OUT_SORTED) * sizeof(Slice))
    if left_out.names == NULL:
        raise MemoryError("no memory for the names of the system's properties")
    for i, name in enumerate(LEFT_OUT_SORTED):
        left_out.names[i].at = <const uint8_t *>PyBytes_AS_STRING(name)
        left_out.names[i].size = PyBytes_GET_SIZE(name)
    for size in range(SIZES + 1):
        left_out.start[size] = sum([len(name) < size for name in LEFT_OUT_SORTED])
    assert left_out.start[SIZES] == len(LEFT_OUT_SORTED)


set_up_names()


cdef inline bint is_left_out(const Slice *name) noexcept nogil:
    cdef int i
    if name.size >= SIZES:
        return False
    for i in range(left_out.start[name.size], left_out.start[name.size + 1]):
        # Most differ in the first byte, and a look at it is cheaper than the call.
        if name.at[0] == left_out.names[i].at[0] and memcmp(name.at, left_out.names[i].at, name.size) == 0:
            return True
    return False


# --- entries ----------------------------------------------------------------------------------------

cdef struct Entries:
    Column body, flag, map, names, values
    Column[TEXTS_MAX] texts
    Slice[TEXTS_MAX] text_names
    int text_count
    bint flag_wanted, map_wanted
    Py_ssize_t entry_bytes_max
    uint8_t *out
    Py_ssize_t used, room


cdef inline int reserve(Entries *e, Py_ssize_t size) noexcept nogil:
    cdef uint8_t *out
    if e.used + size <= e.room:
        return 0
    out = <uint8_t *>realloc(e.out, max(2 * e.room, e.used + size))
    if out == NULL:
        return -1
    e.out = out
    e.room = max(2 * e.room, e.used + size)
    return 0


cdef inline bint holds_mark(const Slice *text) noexcept nogil:
    return memchr(text.at, 1, text.size) != NULL or memchr(text.at, 2, text.size) != NULL


cdef inline Fault put_pair(Entries *e, const Slice *name, const Slice *value) noexcept nogil:
    cdef uint8_t *p
    if name.size == 0 or value.size == 0:
        return NO_FAULT
    if name.size + value.size > PROPERTIES_MAX or holds_mark(name) or holds_mark(value):
        return REFUSED
    if reserve(e, name.size + value.size + 2):
        return NO_MEMORY
    p = e.out + e.used
    memcpy(p, name.at, name.size)
    p[name.size] = 1
    memcpy(p + name.size + 1, value.at, value.size)
    p[name.size + 1 + value.size] = 2
    e.used += name.size + value.size + 2
    return NO_FAULT


cdef inline bint has_column(Entries *e, const Slice *name) noexcept nogil:
    cdef int i
    for i in range(e.text_count):
        if name.size == e.text_names[i].size and memcmp(name.at, e.text_names[i].at, name.size) == 0:
            return True
    return False


cdef Fault put_map(Entries *e, Py_ssize_t row) noexcept nogil:
    cdef int64_t n, begin, end
    cdef Slice name, value
    cdef Fault fault
    if is_null(&e.map, row):
        return NO_FAULT
    if not span(&e.map, row, min(e.names.size, e.values.size), &begin, &end):
        return OUTSIDE
    for n in range(begin, end):
        if not find(&e.names, n, &name) or not find(&e.values, n, &value):
            return OUTSIDE
        if is_left_out(&name) or has_column(e, &name):
            continue
        fault = put_pair(e, &name, &value)
        if fault != NO_FAULT:
            return fault
    return NO_FAULT


cdef Fault put_row(Entries *e, Py_ssize_t row, const uint8_t *prefix, int64_t number) noexcept nogil:
    """Append the entry of `row`; after a fault, `used` is anything."""
    cdef Py_ssize_t start = e.used, properties_at, size
    cdef Slice body, text
    cdef uint8_t *p
    cdef int32_t flag = 0
    cdef Fault fault
    cdef int i
    if not find(&e.body, row, &body):
        return OUTSIDE
    if body.size == 0 or body.size > e.entry_bytes_max or number > LAST_NUMBER or number < 0:
        return REFUSED
    if reserve(e, HEAD_BYTES + body.size + 2 + 9 + PREFIX_BYTES + 8 + 11):
        return NO_MEMORY
    if e.flag_wanted and not is_null(&e.flag, row):
        flag = (<const int32_t *>e.flag.data)[e.flag.first + row]
    p = e.out + start
    put32(p + 4, 0)
    put32(p + 8, crc_of(body.at, body.size))
    put32(p + 12, <uint32_t>flag)
    put32(p + 16, <uint32_t>body.size)
    memcpy(p + HEAD_BYTES, body.at, body.size)
    p += HEAD_BYTES + body.size + 2
    properties_at = p - e.out
    memcpy(p, b"UNIQ_KEY\x01", 9)
    memcpy(p + 9, prefix, PREFIX_BYTES)
    p += 9 + PREFIX_BYTES
    for i in range(8):
        p[i] = HEX[number >> (28 - 4 * i) & 15]
    memcpy(p + 8, b"\x02WAIT\x01true\x02", 11)
    e.used = properties_at + 9 + PREFIX_BYTES + 8 + 11
    for i in range(e.text_count):
        if not find(&e.texts[i], row, &text):
            return OUTSIDE
        fault = put_pair(e, &e.text_names[i], &text)
        if fault != NO_FAULT:
            return fault
    if e.map_wanted:
        fault = put_map(e, row)
        if fault != NO_FAULT:
            return fault
    size = e.used - properties_at
    if e.used - start > e.entry_bytes_max or size > PROPERTIES_MAX or memchr(e.out + e.used - LAST_BYTES, 0, LAST_BYTES) != NULL:
        return REFUSED
    p = e.out + properties_at - 2
    p[0] = <uint8_t>(size >> 8)
    p[1] = <uint8_t>size
    put32(e.out + start, <uint32_t>(e.used - start))
    return NO_FAULT


cdef Fault put_rows(Entries *e, const int64_t *rows, Py_ssize_t count, Py_ssize_t *at,
                    const uint8_t *prefix, int64_t first_id, Py_ssize_t max_bytes) noexcept nogil:
    """Entries from `rows[at]` on while they fit; `rows` NULL: all. `at` is left at the first without."""
    cdef Py_ssize_t row, start
    cdef Fault fault
    e.used = 0
    while at[0] < count:
        row = at[0] if rows == NULL else rows[at[0]]
        if row < 0 or row >= e.body.size:
            return OUTSIDE
        start = e.used
        fault = put_row(e, row, prefix, first_id + row)
        if fault != NO_FAULT:
            e.used = start
            return fault
        if start and e.used > max_bytes:
            e.used = start
            return NO_FAULT
        at[0] += 1
    return NO_FAULT


cdef class RowColumns:
    """The columns of one batch that go into entries: Arrow arrays by the sink's names, of (large)
    binary, `properties` a map of those, `flag` int32."""

    cdef Entries e
    cdef dict columns
    cdef list text_names
    cdef object keys, items, entry_bytes_max

    def __init__(self, columns, Py_ssize_t entry_bytes_max=ENTRY_BYTES_MAX):
        cdef bytes name
        cdef int i = 0
        self.columns = dict(columns)
        self.text_names = []
        assert 0 < entry_bytes_max <= 1 << 30
        self.entry_bytes_max = self.e.entry_bytes_max = entry_bytes_max
        open_column(&self.e.body, columns["body"], 0)
        for column, text in TEXT_COLUMNS.items():
            if column in columns:
                name = text.encode()
                self.text_names.append(name)
                open_column(&self.e.texts[i], columns[column], 0)
                self.e.text_names[i].at = <const uint8_t *>PyBytes_AS_STRING(name)
                self.e.text_names[i].size = PyBytes_GET_SIZE(name)
                i += 1
        self.e.text_count = i
        self.e.flag_wanted = "flag" in columns
        if self.e.flag_wanted:
            open_column(&self.e.flag, columns["flag"], 4)
        self.e.map_wanted = "properties" in columns
        if self.e.map_wanted:
            pairs = columns["properties"]
            self.keys, self.items = pairs.keys, pairs.items
            open_column(&self.e.map, pairs, 0)
            open_column(&self.e.names, self.keys, 0)
            open_column(&self.e.values, self.items, 0)
        if len({len(column) for column in columns.values()}) != 1:
            raise ValueError("the columns of a batch differ in length")

    def __dealloc__(self):
        free(self.e.out)

    def encode(self, rows, Py_ssize_t at, bytes id_prefix not None, int64_t first_id,
               Py_ssize_t max_bytes):
        """The entries of `rows[at:]`, as many as `max_bytes` hold, but at least one."""
        cdef const int64_t[::1] numbers
        cdef const int64_t *chosen = NULL
        cdef const uint8_t *prefix
        cdef Py_ssize_t count = len(rows), first = at
        cdef Fault fault
        if PyBytes_GET_SIZE(id_prefix) != PREFIX_BYTES or at < 0:
            raise ValueError(f"prefix {id_prefix!r} has not {PREFIX_BYTES} bytes, or {at} is negative")
        if not isinstance(rows, range):
            numbers = rows
            chosen = &numbers[0]
        elif rows != range(self.e.body.size):
            raise ValueError(f"{rows} is not all rows of the batch; give an array")
        prefix = <const uint8_t *>PyBytes_AS_STRING(id_prefix)
        with nogil:
            fault = put_rows(&self.e, chosen, count, &at, prefix, first_id, max_bytes)
        if fault == OUTSIDE:
            raise ValueError(f"row {at} of those asked for lies outside of its batch")
        if fault == NO_MEMORY:
            raise MemoryError(f"no memory for entries of more than {self.e.used} B")
        if fault == REFUSED and at == first:
            _reference.RowColumns(self.columns, self.e.entry_bytes_max).encode(
                rows[at : at + 1], 0, id_prefix, first_id, max_bytes)
            raise AssertionError(f"row {at} was refused, and the reference takes it")
        return Encoded(PyBytes_FromStringAndSize(<const char *>self.e.out, self.e.used), at - first, at)
