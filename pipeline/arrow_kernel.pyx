# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
"""Frames to Arrow, compiled; `arrow_reference.py` is the readable twin and says what is right.

One pass: a frame is checked by the frame kernel's `parse`, then copied column by column while it is in the
cache, into buffers that grow; Arrow arrays are made around them when a batch is finished. No Python object is
made per message and the GIL is free, but for what is rare: text that is not UTF-8, IPv6 hosts, messages with
very many properties. Those are left to the Python that the reference uses.

The memory of a batch that is gone is used again (up to IDLE_BYTES_MAX in a process): fresh memory of this size
comes from the system, and its page faults cost more than the copy.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

import pyarrow as pa
from pyarrow import py_buffer

from saturnmq.pipeline.arrow_reference import (
    BYTES_MAX, CORRUPT, FROM_PROPERTIES, ROWS_MAX, US_MAX, US_MIN, Packed, Stop, constant,
)
from saturnmq.protocol.compression import COMPRESSED_FLAG
from saturnmq.protocol.ids import decode_host
from saturnmq.protocol.jhash import tags_code
from saturnmq.protocol.properties import decode_properties

from saturnmq.protocol.frame_kernel.layout cimport Slice, get32, get64
from saturnmq.protocol.frame_kernel.scanning cimport FRAME, Known, Parsed, find_known, parse

cdef extern from *:
    """
    #define prefetch(address) __builtin_prefetch(address)

    /* Whether all bytes are ASCII. */
    static inline int is_ascii(const uint8_t *p, size_t size)
    {
        uint64_t seen = 0, eight;
        size_t i = 0;
        for (; i + 8 <= size; i += 8) {
            memcpy(&eight, p + i, 8);
            seen |= eight;
        }
        for (; i < size; i++)
            seen |= (uint64_t)p[i];
        return (seen & 0x8080808080808080u) == 0;
    }

    /* Whether the bytes are UTF-8 as Python decodes it: no surrogates, no form longer than needed. */
    static inline int is_utf8(const uint8_t *p, size_t size)
    {
        const uint8_t *end = p + size;
        while (p < end) {
            uint8_t first = *p++;
            uint8_t low = 0x80, high = 0xBF;
            int more;
            if (first < 0x80)
                continue;
            if (first < 0xC2)
                return 0;
            if (first < 0xE0)
                more = 1;
            else if (first < 0xF0) {
                more = 2;
                if (first == 0xE0)
                    low = 0xA0;
                if (first == 0xED)
                    high = 0x9F;
            } else if (first < 0xF5) {
                more = 3;
                if (first == 0xF0)
                    low = 0x90;
                if (first == 0xF4)
                    high = 0x8F;
            } else
                return 0;
            if (end - p < more)
                return 0;
            for (; more; more--, p++) {
                if (*p < low || *p > high)
                    return 0;
                low = 0x80, high = 0xBF;
            }
        }
        return 1;
    }
    """
    void prefetch(const void *address) nogil
    bint is_ascii(const uint8_t *p, size_t size) nogil
    bint is_utf8(const uint8_t *p, size_t size) nogil

cdef enum:
    ENTRY_BYTES = 20
    FRAME_BYTES_MIN = 91
    FILLER_SIZE = 0x7FFFFFFF
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    PAIRS_MAX = 64  # of one message; with more a dict finds repeated names sooner than a look at all
    AHEAD = 4  # entries whose frames are on their way from memory
    OFFSET_ID_BYTES_MAX = 56

cdef uint32_t COMPRESSED = COMPRESSED_FLAG
cdef int64_t FIRST_US = US_MIN, LAST_US = US_MAX
cdef int64_t FIRST_MS = US_MIN // 1000, LAST_MS = US_MAX // 1000
cdef const char *HEX = b"0123456789ABCDEF"
cdef object from_buffers = pa.Array.from_buffers, from_arrays = pa.RecordBatch.from_arrays
cdef object STOPS = (Stop.END, Stop.FULL, Stop.DAMAGE)


# --- memory -----------------------------------------------------------------------------------------

cdef enum:
    IDLE_MAX = 128  # blocks
    IDLE_BYTES_MAX = 64 << 20
    BLOCK_BYTES_MIN = 4096

cdef struct Room:
    uint8_t *at
    Py_ssize_t bytes

cdef Room[IDLE_MAX] idle
cdef int idle_count = 0
cdef Py_ssize_t idle_bytes = 0


cdef Room take_room(Py_ssize_t size):
    """At least `size` bytes; `at` is NULL if there are none. With the GIL, which guards the idle ones."""
    global idle_count, idle_bytes
    cdef int i, best = -1
    cdef Room room
    for i in range(idle_count):
        if idle[i].bytes >= size and (best < 0 or idle[i].bytes < idle[best].bytes):
            best = i
    if best >= 0 and idle[best].bytes <= 2 * size + 4 * BLOCK_BYTES_MIN:
        room = idle[best]
        idle_count -= 1
        idle_bytes -= room.bytes
        idle[best] = idle[idle_count]
        return room
    room.bytes = max(size, BLOCK_BYTES_MIN)
    room.at = <uint8_t *>malloc(room.bytes)
    return room


cdef void give_room(Room room):
    global idle_count, idle_bytes
    if room.at == NULL:
        return
    if idle_count == IDLE_MAX or idle_bytes + room.bytes > IDLE_BYTES_MAX:
        free(room.at)
        return
    idle[idle_count] = room
    idle_count += 1
    idle_bytes += room.bytes


cdef class Block:
    """The bytes of one Arrow buffer; its memory is idle once nothing refers to it."""

    cdef Room room
    cdef Py_ssize_t size

    def __dealloc__(self):
        give_room(self.room)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.room.at, self.size, True, flags)


cdef object arrow_buffer(Room *room, Py_ssize_t size):
    """The first `size` bytes of `room`, which is the caller's no more."""
    cdef Block block = Block.__new__(Block)
    block.room = room[0]
    block.size = size
    room.at = NULL
    room.bytes = 0
    return py_buffer(block)


cdef int grow(Room *room, Py_ssize_t size) noexcept nogil:
    """Make it `size` bytes at least; -1 without memory."""
    cdef Py_ssize_t bytes = max(size, 2 * room.bytes)
    cdef uint8_t *at
    bytes = max(bytes, BLOCK_BYTES_MIN)
    at = <uint8_t *>realloc(room.at, bytes)
    if at == NULL:
        return -1
    room.at = at
    room.bytes = bytes
    return 0


# --- columns ----------------------------------------------------------------------------------------

cdef enum:  # columns of one width
    QUEUE_ID
    QUEUE_OFFSET
    STORE_TIMESTAMP
    BORN_TIMESTAMP
    PHYSICAL_OFFSET
    SIZE
    FLAG
    SYS_FLAG
    RECONSUME_TIMES
    BODY_CRC
    MAP_ENDS
    FIXED_COLUMNS

cdef enum:  # columns of text and bytes
    TOPIC
    KEYS
    TAGS
    BODY
    MESSAGE_ID
    BORN_HOST
    STORE_HOST
    CORRUPT_TEXT
    MAP_NAMES
    MAP_VALUES
    TEXT_COLUMNS

cdef enum:  # bitmaps
    KEYS_GIVEN
    TAGS_GIVEN
    CRC_OK
    CORRUPT_GIVEN
    BIT_COLUMNS

cdef dict FIXED = {
    "queueId": QUEUE_ID,
    "queueOffset": QUEUE_OFFSET,
    "storeTimestamp": STORE_TIMESTAMP,
    "bornTimestamp": BORN_TIMESTAMP,
    "physicalOffset": PHYSICAL_OFFSET,
    "size": SIZE,
    "flag": FLAG,
    "sysFlag": SYS_FLAG,
    "reconsumeTimes": RECONSUME_TIMES,
    "bodyCrc": BODY_CRC,
}
cdef dict TEXTS = {
    "topic": TOPIC,
    "keys": KEYS,
    "tags": TAGS,
    "body": BODY,
    "messageId": MESSAGE_ID,
    "bornHost": BORN_HOST,
    "storeHost": STORE_HOST,
    CORRUPT: CORRUPT_TEXT,
}
cdef dict GIVEN = {"keys": KEYS_GIVEN, "tags": TAGS_GIVEN, CORRUPT: CORRUPT_GIVEN}


cdef struct Fixed:
    bint wanted
    int width
    Room values


cdef struct Text:
    bint wanted
    Room data
    Py_ssize_t used
    Room ends  # int32 each; item n lies between ends n and n + 1
    Py_ssize_t count
    Py_ssize_t row_bytes, row_items  # of a row in the batch before: what to reserve for the next


cdef struct Host:
    # The host of the frame before: most come from few.
    uint8_t[20] raw
    Py_ssize_t raw_size
    uint8_t[64] text
    Py_ssize_t size


cdef struct PackedRow:
    int64_t row
    int64_t sys_flag
    int64_t place


cdef struct Batch:
    Fixed[FIXED_COLUMNS] fixed
    Text[TEXT_COLUMNS] texts
    Room[BIT_COLUMNS] bits
    bint crc_wanted, map_wanted, properties_wanted
    bint topic_varies
    uint8_t[32768] topic  # of the first message
    Py_ssize_t topic_size  # 0 before it
    Host born_host, store_host
    Py_ssize_t rows, row_room, rows_max
    Py_ssize_t bytes, bytes_max
    bint verify
    Slice *tags  # those that are wanted; NULL = all
    int32_t *codes
    Py_ssize_t tag_count
    Room packed  # PackedRow each
    Py_ssize_t packed_count


cdef enum Taken:
    TAKEN
    NO_ROOM
    NO_MEMORY


cdef int more_rows(Batch *b, Py_ssize_t rows) noexcept nogil:
    """Make room for `rows` rows at least."""
    cdef int i
    cdef Py_ssize_t old, new
    rows = max(rows, min(2 * b.row_room, b.rows_max))
    for i in range(FIXED_COLUMNS):
        new = (rows + 1) * b.fixed[i].width
        if b.fixed[i].wanted and new > b.fixed[i].values.bytes and grow(&b.fixed[i].values, new):
            return -1
    for i in range(BIT_COLUMNS):
        old, new = (b.row_room + 7) >> 3, (rows + 7) >> 3
        if new > b.bits[i].bytes and grow(&b.bits[i], new):
            return -1
        memset(b.bits[i].at + old, 0, new - old)
    b.row_room = rows
    return 0


cdef inline void copy(uint8_t *to, const uint8_t *p, Py_ssize_t size) noexcept nogil:
    """Most texts are short: two moves that may overlap cost less than a call."""
    if size > 32:
        memcpy(to, p, size)
    elif size >= 16:
        memcpy(to, p, 16)
        memcpy(to + size - 16, p + size - 16, 16)
    elif size >= 8:
        memcpy(to, p, 8)
        memcpy(to + size - 8, p + size - 8, 8)
    elif size >= 4:
        memcpy(to, p, 4)
        memcpy(to + size - 4, p + size - 4, 4)
    else:
        while size > 0:
            size -= 1
            to[size] = p[size]


cdef inline int put(Text *t, const uint8_t *p, Py_ssize_t size) noexcept nogil:
    """One more item; -1 without memory."""
    if t.used + size > t.data.bytes and grow(&t.data, t.used + size):
        return -1
    if 4 * (t.count + 2) > t.ends.bytes and grow(&t.ends, 4 * (t.count + 2)):
        return -1
    copy(t.data.at + t.used, p, size)
    t.used += size
    t.count += 1
    (<int32_t *>t.ends.at)[t.count] = <int32_t>t.used
    return 0


cdef int put_replaced(Text *t, const uint8_t *p, Py_ssize_t size) noexcept with gil:
    """`put` of bytes that are not UTF-8, as the reference reads them."""
    cdef bytes data
    try:
        data = (<const char *>p)[:size].decode("utf-8", "replace").encode()
    except MemoryError:
        return -1
    return put(t, <const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef inline int put_text(Text *t, const Slice *s, bint ascii) noexcept nogil:
    if ascii or is_utf8(s.at, s.size):
        return put(t, s.at, s.size)
    return put_replaced(t, s.at, s.size)


cdef inline void set_bit(uint8_t *bits, Py_ssize_t n) noexcept nogil:
    bits[n >> 3] |= <uint8_t>(1 << (n & 7))


# --- one row ----------------------------------------------------------------------------------------

cdef inline int64_t microseconds(int64_t ms) noexcept nogil:
    if ms < FIRST_MS:
        return FIRST_US
    if ms > LAST_MS:
        return LAST_US
    return ms * 1000


cdef inline Py_ssize_t put_decimal(uint8_t *out, uint32_t value) noexcept nogil:
    cdef uint8_t[10] digits
    cdef Py_ssize_t count = 0, i
    while True:
        digits[count] = <uint8_t>(48 + value % 10)
        count += 1
        value //= 10
        if value == 0:
            break
    for i in range(count):
        out[i] = digits[count - 1 - i]
    return count


cdef int name_host6(Host *host) noexcept with gil:
    cdef bytes text
    try:
        text = decode_host((<const char *>host.raw)[:20]).encode()
    except MemoryError:
        return -1
    host.size = min(PyBytes_GET_SIZE(text), <Py_ssize_t>sizeof(host.text))
    memcpy(host.text, PyBytes_AS_STRING(text), host.size)
    return 0


cdef int put_host(Text *t, Host *host, const uint8_t *p, Py_ssize_t size) noexcept nogil:
    """ "ip:port" of the 8 or 20 bytes of a host field."""
    cdef Py_ssize_t at = 0
    cdef int i
    if size != host.raw_size or memcmp(p, host.raw, size) != 0:
        memcpy(host.raw, p, size)
        host.raw_size = size
        if size == 20:
            if name_host6(host):
                host.raw_size = 0
                return -1
        else:
            for i in range(4):
                at += put_decimal(host.text + at, p[i])
                host.text[at] = 46 if i < 3 else 58  # '.' and ':'
                at += 1
            host.size = at + put_decimal(host.text + at, get32(p + 4))
    return put(t, host.text, host.size)


cdef int put_offset_id(Text *t, const uint8_t *host, Py_ssize_t host_size,
                       const uint8_t *offset) noexcept nogil:
    """Host and physical offset as upper-case hex."""
    cdef uint8_t[OFFSET_ID_BYTES_MAX] text
    cdef Py_ssize_t i
    for i in range(host_size):
        text[2 * i] = HEX[host[i] >> 4]
        text[2 * i + 1] = HEX[host[i] & 15]
    for i in range(8):
        text[2 * (host_size + i)] = HEX[offset[i] >> 4]
        text[2 * (host_size + i) + 1] = HEX[offset[i] & 15]
    return put(t, text, 2 * (host_size + 8))


cdef int put_dict(Batch *b, const uint8_t *p, Py_ssize_t size) noexcept with gil:
    """`put_map` of what needs a dict: too many pairs, or text that is not UTF-8."""
    cdef bytes name_text, value_text
    try:
        for name, value in decode_properties((<const char *>p)[:size]).items():
            name_text, value_text = name.encode(), value.encode()
            if put(&b.texts[MAP_NAMES], <const uint8_t *>PyBytes_AS_STRING(name_text),
                   PyBytes_GET_SIZE(name_text)):
                return -1
            if put(&b.texts[MAP_VALUES], <const uint8_t *>PyBytes_AS_STRING(value_text),
                   PyBytes_GET_SIZE(value_text)):
                return -1
    except MemoryError:
        return -1
    return 0


cdef int put_map(Batch *b, const uint8_t *p, Py_ssize_t size, bint utf8) noexcept nogil:
    """The pairs of a properties field, each name once with its last value."""
    cdef Slice[PAIRS_MAX] names
    cdef Slice[PAIRS_MAX] values
    cdef const uint8_t *at = p
    cdef const uint8_t *end = p + size
    cdef const uint8_t *pair_end
    cdef const uint8_t *name_end
    cdef Py_ssize_t count = 0, i, name_size
    if not utf8:
        return put_dict(b, p, size)
    while at < end:
        pair_end = <const uint8_t *>memchr(at, 2, end - at)
        if pair_end == NULL:
            pair_end = end
        name_end = <const uint8_t *>memchr(at, 1, pair_end - at)
        if name_end != NULL and name_end > at and name_end + 1 < pair_end:
            name_size = name_end - at
            i = 0
            while i < count and (names[i].size != name_size or memcmp(names[i].at, at, name_size) != 0):
                i += 1
            if i == PAIRS_MAX:
                return put_dict(b, p, size)
            names[i].at = at
            names[i].size = name_size
            values[i].at = name_end + 1
            values[i].size = pair_end - name_end - 1
            count = max(count, i + 1)
        at = pair_end + 1
    for i in range(count):
        if put(&b.texts[MAP_NAMES], names[i].at, names[i].size):
            return -1
        if put(&b.texts[MAP_VALUES], values[i].at, values[i].size):
            return -1
    return 0


cdef int put_topic(Batch *b, Parsed *f) noexcept nogil:
    """The topic is kept once while all rows of a batch have the same; -1 without memory."""
    cdef Slice topic
    cdef Py_ssize_t n
    if b.topic_size == 0:
        b.topic_size = f.topic_size
        memcpy(b.topic, f.topic, f.topic_size)
        return 0
    if not b.topic_varies:
        if f.topic_size == b.topic_size and memcmp(f.topic, b.topic, f.topic_size) == 0:
            return 0
        b.topic_varies = True
        topic.at = b.topic
        topic.size = b.topic_size
        for n in range(b.rows):
            if put_text(&b.texts[TOPIC], &topic, False):
                return -1
    topic.at = f.topic
    topic.size = f.topic_size
    return put_text(&b.texts[TOPIC], &topic, False)


cdef inline bint is_wanted(Batch *b, Parsed *f) noexcept nogil:
    cdef Known known
    cdef Py_ssize_t i
    find_known(f.properties, f.properties_size, &known)
    for i in range(b.tag_count):
        if (known.tags.size and known.tags.size == b.tags[i].size
                and memcmp(known.tags.at, b.tags[i].at, known.tags.size) == 0):
            return True
    return False


cdef int note_packed(Batch *b, int64_t sys_flag, int64_t place) noexcept nogil:
    cdef Py_ssize_t need = (b.packed_count + 1) * sizeof(PackedRow)
    cdef PackedRow *row
    if need > b.packed.bytes and grow(&b.packed, need):
        return -1
    row = <PackedRow *>b.packed.at + b.packed_count
    row.row = b.rows
    row.sys_flag = sys_flag
    row.place = place
    b.packed_count += 1
    return 0


cdef Taken take(Batch *b, const uint8_t *p, Parsed *f, Py_ssize_t place) noexcept nogil:
    """Add the frame at `p` as a row, unless its tag is not wanted."""
    cdef Py_ssize_t n = b.rows, size
    cdef Py_ssize_t born_size = 20 if f.sys_flag & BORN_HOST_V6 else 8
    cdef Py_ssize_t store_size = 20 if f.sys_flag & STORE_HOST_V6 else 8
    cdef const uint8_t *store_host = p + 56 + born_size
    cdef bint ascii = True
    cdef Known known
    cdef Parsed checked
    cdef Text *t = b.texts
    cdef Fixed *c = b.fixed
    if b.tags != NULL and not is_wanted(b, f):
        return TAKEN
    size = (f.body_size if t[BODY].wanted else 0) + (f.properties_size if b.properties_wanted else 0)
    if n and b.bytes + size > b.bytes_max:
        return NO_ROOM
    if n == b.row_room and more_rows(b, n + 1):
        return NO_MEMORY
    if t[TOPIC].wanted and put_topic(b, f):
        return NO_MEMORY
    if c[QUEUE_ID].wanted:
        (<uint32_t *>c[QUEUE_ID].values.at)[n] = get32(p + 12)
    if c[QUEUE_OFFSET].wanted:
        (<uint64_t *>c[QUEUE_OFFSET].values.at)[n] = get64(p + 20)
    if c[STORE_TIMESTAMP].wanted:
        (<int64_t *>c[STORE_TIMESTAMP].values.at)[n] = microseconds(f.store_ts)
    if c[BORN_TIMESTAMP].wanted:
        (<int64_t *>c[BORN_TIMESTAMP].values.at)[n] = microseconds(<int64_t>get64(p + 40))
    if c[PHYSICAL_OFFSET].wanted:
        (<uint64_t *>c[PHYSICAL_OFFSET].values.at)[n] = get64(p + 28)
    if c[SIZE].wanted:
        (<int32_t *>c[SIZE].values.at)[n] = <int32_t>f.size
    if c[FLAG].wanted:
        (<uint32_t *>c[FLAG].values.at)[n] = get32(p + 16)
    if c[SYS_FLAG].wanted:
        (<uint32_t *>c[SYS_FLAG].values.at)[n] = f.sys_flag
    if c[RECONSUME_TIMES].wanted:
        (<uint32_t *>c[RECONSUME_TIMES].values.at)[n] = get32(store_host + store_size)
    if c[BODY_CRC].wanted:
        (<uint32_t *>c[BODY_CRC].values.at)[n] = get32(p + 8)
    if t[BORN_HOST].wanted and put_host(&t[BORN_HOST], &b.born_host, p + 48, born_size):
        return NO_MEMORY
    if t[STORE_HOST].wanted and put_host(&t[STORE_HOST], &b.store_host, store_host, store_size):
        return NO_MEMORY
    if b.crc_wanted:
        checked.shift.size = 0
        if b.verify or parse(p, f.size, True, &checked) == FRAME:
            set_bit(b.bits[CRC_OK].at, n)
    if b.properties_wanted:
        ascii = is_ascii(f.properties, f.properties_size)
        find_known(f.properties, f.properties_size, &known)
        if t[KEYS].wanted:
            if known.keys.size:
                set_bit(b.bits[KEYS_GIVEN].at, n)
            if put_text(&t[KEYS], &known.keys, ascii):
                return NO_MEMORY
        if t[TAGS].wanted:
            if known.tags.size:
                set_bit(b.bits[TAGS_GIVEN].at, n)
            if put_text(&t[TAGS], &known.tags, ascii):
                return NO_MEMORY
        if t[MESSAGE_ID].wanted:
            if known.unique.size == 0:
                if put_offset_id(&t[MESSAGE_ID], store_host, store_size, p + 28):
                    return NO_MEMORY
            elif put_text(&t[MESSAGE_ID], &known.unique, ascii):
                return NO_MEMORY
        if b.map_wanted:
            if put_map(b, f.properties, f.properties_size,
                       ascii or is_utf8(f.properties, f.properties_size)):
                return NO_MEMORY
            (<int32_t *>c[MAP_ENDS].values.at)[n + 1] = <int32_t>t[MAP_NAMES].count
    if t[CORRUPT_TEXT].wanted and put(&t[CORRUPT_TEXT], p, 0):
        return NO_MEMORY
    if t[BODY].wanted:
        if put(&t[BODY], f.body, f.body_size):
            return NO_MEMORY
        if f.sys_flag & COMPRESSED and note_packed(b, <int32_t>f.sys_flag, place):
            return NO_MEMORY
    b.rows = n + 1
    b.bytes += size
    return TAKEN


# --- many rows --------------------------------------------------------------------------------------

cdef enum Halt:
    AT_END
    IS_FULL
    AT_DAMAGE
    OUT_OF_MEMORY


cdef Halt walk_frames(Batch *b, const uint8_t *data, Py_ssize_t size, Py_ssize_t *pos) noexcept nogil:
    cdef Parsed f
    cdef Taken taken
    f.shift.size = 0
    while pos[0] < size:
        if b.rows == b.rows_max:
            return IS_FULL
        if parse(data + pos[0], size - pos[0], b.verify, &f) != FRAME:
            return AT_DAMAGE
        taken = take(b, data + pos[0], &f, pos[0])
        if taken != TAKEN:
            return IS_FULL if taken == NO_ROOM else OUT_OF_MEMORY
        pos[0] += f.size
    return AT_END


cdef Halt read_entries(Batch *b, const uint8_t *log, Py_ssize_t log_size, int64_t base,
                       const uint8_t *entries, Py_ssize_t count, int64_t first,
                       Py_ssize_t *number) noexcept nogil:
    cdef const uint8_t *entry
    cdef const uint8_t *p
    cdef int64_t offset
    cdef int32_t size
    cdef Py_ssize_t i
    cdef Parsed f
    cdef Taken taken
    f.shift.size = 0
    while number[0] < count:
        if b.rows == b.rows_max:
            return IS_FULL
        entry = entries + ENTRY_BYTES * number[0]
        if number[0] + AHEAD < count:
            offset = <int64_t>get64(entry + ENTRY_BYTES * AHEAD)
            if offset >= base and offset - base < log_size:
                prefetch(log + (offset - base))
                prefetch(log + (offset - base) + 64)
        offset = <int64_t>get64(entry)
        size = <int32_t>get32(entry + 8)
        if offset == 0 and size == FILLER_SIZE:
            number[0] += 1
            continue
        if b.tags != NULL:
            i = 0
            while i < b.tag_count and b.codes[i] != <int32_t>get32(entry + 16):
                i += 1
            if i == b.tag_count:
                number[0] += 1
                continue
        # In this order: no difference of offsets is taken that could overflow.
        if (size < FRAME_BYTES_MIN or size > log_size or offset < base
                or offset - base > log_size - size):
            return AT_DAMAGE
        p = log + (offset - base)
        if parse(p, size, b.verify, &f) != FRAME or f.size != size:
            return AT_DAMAGE
        if <int64_t>get64(p + 28) != offset or <int64_t>get64(p + 20) != first + number[0]:
            return AT_DAMAGE
        taken = take(b, p, &f, number[0])
        if taken != TAKEN:
            return IS_FULL if taken == NO_ROOM else OUT_OF_MEMORY
        number[0] += 1
    return AT_END


cdef class Builder:
    """Fills batches of `columns`; the arguments are the decoder's."""

    cdef Batch b
    cdef object schema, broker, tag_bytes
    cdef list fields, corrupt_rows
    cdef bint started

    def __init__(self, columns, str broker not None, *, bint verify=False, tags=None,
                 Py_ssize_t rows_max=ROWS_MAX, Py_ssize_t bytes_max=BYTES_MAX):
        cdef int i
        cdef set names = set(columns.names)
        # Ends of texts are int32, and one that is not UTF-8 may become three times as long.
        assert 0 < rows_max <= ROWS_MAX
        assert 0 <= bytes_max <= 1 << 29
        self.schema = columns.arrow_schema()
        self.fields = [(field.name, field.type) for field in self.schema]
        self.broker = broker
        self.b.verify = verify
        self.b.rows_max = rows_max
        self.b.bytes_max = bytes_max
        self.b.crc_wanted = "crcOk" in names
        self.b.map_wanted = "properties" in names
        self.b.properties_wanted = not FROM_PROPERTIES.isdisjoint(names)
        for i in range(FIXED_COLUMNS):
            self.b.fixed[i].width = 4
        for i in (QUEUE_OFFSET, STORE_TIMESTAMP, BORN_TIMESTAMP, PHYSICAL_OFFSET):
            self.b.fixed[i].width = 8
        for name in names:
            if name in FIXED:
                self.b.fixed[<int>FIXED[name]].wanted = True
            elif name in TEXTS:
                self.b.texts[<int>TEXTS[name]].wanted = True
        if self.b.map_wanted:
            self.b.fixed[MAP_ENDS].wanted = True
            self.b.texts[MAP_NAMES].wanted = self.b.texts[MAP_VALUES].wanted = True
        if tags is not None:
            self._want_tags(tags)
        for i in range(TEXT_COLUMNS):
            self.b.texts[i].row_bytes = 16
            self.b.texts[i].row_items = 1
        self.corrupt_rows = []

    cdef _want_tags(self, tags):
        cdef Py_ssize_t i, count = len(tags)
        cdef bytes tag
        self.tag_bytes = [text.encode() for text in tags]
        self.b.tags = <Slice *>malloc((count + 1) * sizeof(Slice))
        self.b.codes = <int32_t *>malloc((count + 1) * sizeof(int32_t))
        if self.b.tags == NULL or self.b.codes == NULL:
            raise MemoryError(f"no memory for {count} tags")
        self.b.tag_count = count
        for i, text in enumerate(tags):
            tag = self.tag_bytes[i]
            self.b.tags[i].at = <const uint8_t *>PyBytes_AS_STRING(tag)
            self.b.tags[i].size = PyBytes_GET_SIZE(tag)
            self.b.codes[i] = <int32_t>tags_code(text)

    def __dealloc__(self):
        cdef int i
        for i in range(FIXED_COLUMNS):
            give_room(self.b.fixed[i].values)
        for i in range(TEXT_COLUMNS):
            give_room(self.b.texts[i].data)
            give_room(self.b.texts[i].ends)
        for i in range(BIT_COLUMNS):
            give_room(self.b.bits[i])
        give_room(self.b.packed)
        free(self.b.tags)
        free(self.b.codes)

    @property
    def rows(self):
        return self.b.rows

    cdef _start(self, Py_ssize_t rows, Py_ssize_t frame_bytes):
        """Begin a batch that will hold at most about so many rows, of frames of about this size."""
        cdef int i
        cdef Text *t
        frame_bytes = max(frame_bytes, FRAME_BYTES_MIN)
        if self.b.texts[BODY].wanted:
            rows = min(rows, self.b.bytes_max // frame_bytes)
            self.b.texts[BODY].row_bytes = frame_bytes
        rows = max(1, min(rows, self.b.rows_max))
        for i in range(TEXT_COLUMNS):
            t = &self.b.texts[i]
            t.used = t.count = 0
            if t.wanted:
                t.data = take_room(min(rows * t.row_bytes, self.b.bytes_max))
                t.ends = take_room(4 + min(4 * rows * t.row_items, max(self.b.bytes_max, 4 * rows)))
                if t.data.at == NULL or t.ends.at == NULL:
                    raise MemoryError(f"no memory for a batch of {rows} rows")
                (<int32_t *>t.ends.at)[0] = 0
        for i in range(FIXED_COLUMNS):
            if self.b.fixed[i].wanted:
                self.b.fixed[i].values = take_room((rows + 1) * self.b.fixed[i].width)
        for i in range(BIT_COLUMNS):
            self.b.bits[i] = take_room((rows + 7) >> 3)
        self.b.rows = self.b.row_room = self.b.bytes = self.b.packed_count = self.b.topic_size = 0
        self.b.topic_varies = False
        self.corrupt_rows = []
        if more_rows(&self.b, rows):
            raise MemoryError(f"no memory for a batch of {rows} rows")
        if self.b.map_wanted:
            (<int32_t *>self.b.fixed[MAP_ENDS].values.at)[0] = 0
        self.started = True

    cdef _stopped(self, Halt halt):
        if halt == OUT_OF_MEMORY:
            raise MemoryError(f"no memory for row {self.b.rows} of a batch of {self.b.bytes} B")
        return STOPS[<int>halt]

    def walk(self, const uint8_t[::1] data not None, Py_ssize_t pos):
        """Take the frames that lie back to back in `data` from `pos` to its end: where it stopped, and
        why."""
        cdef Py_ssize_t size = data.shape[0], frame_bytes
        cdef Halt halt
        if not 0 <= pos <= size:
            raise ValueError(f"position {pos} is not within {size} B")
        if not self.started:
            frame_bytes = <int32_t>get32(&data[pos]) if size - pos >= 4 else 0
            # What begins there may be no frame: no more is reserved than the data could fill.
            frame_bytes = max(FRAME_BYTES_MIN, min(frame_bytes, size - pos))
            self._start((size - pos) // frame_bytes + 1, frame_bytes)
        with nogil:
            halt = walk_frames(&self.b, &data[0], size, &pos)
        return pos, self._stopped(halt)

    def read(self, const uint8_t[::1] log not None, int64_t base, const uint8_t[::1] entries not None,
             Py_ssize_t number, int64_t first):
        """Take the frames that ConsumeQueue `entries` from `number` on name, in a stretch of log that
        begins at physical offset `base`: the entry it stopped at, and why."""
        cdef Py_ssize_t count = entries.shape[0] // ENTRY_BYTES, frame_bytes
        cdef Halt halt
        if number < 0 or base < 0:
            raise ValueError(f"entry {number} or base {base} is negative")
        if not self.started:
            frame_bytes = <int32_t>get32(&entries[number * ENTRY_BYTES + 8]) if number < count else 0
            self._start(count - number, min(frame_bytes, log.shape[0]))
        with nogil:
            halt = read_entries(&self.b, &log[0], log.shape[0], base, &entries[0], count, first, &number)
        return number, self._stopped(halt)

    def add_corrupt(self, str text not None):
        """A row of nulls, with `text` in the column `_corrupt`."""
        cdef int i
        cdef Py_ssize_t n, size
        cdef bytes data = text.encode()
        cdef bint ok = True
        if not self.started:
            self._start(1, 0)
        n = self.b.rows
        if n == self.b.row_room:
            ok = not more_rows(&self.b, n + 1)
        for i in range(FIXED_COLUMNS):
            if ok and self.b.fixed[i].wanted and i != MAP_ENDS:
                memset(self.b.fixed[i].values.at + n * self.b.fixed[i].width, 0, self.b.fixed[i].width)
        for i in range(TEXT_COLUMNS):
            if self.b.texts[i].wanted and i not in (MAP_NAMES, MAP_VALUES):
                if i != TOPIC or self.b.topic_varies:
                    size = PyBytes_GET_SIZE(data) if i == CORRUPT_TEXT else 0
                    ok = ok and not put(&self.b.texts[i], <const uint8_t *>PyBytes_AS_STRING(data), size)
        if not ok:
            raise MemoryError(f"no memory for row {n} of a batch")
        if self.b.map_wanted:
            (<int32_t *>self.b.fixed[MAP_ENDS].values.at)[n + 1] = <int32_t>self.b.texts[MAP_NAMES].count
        set_bit(self.b.bits[CORRUPT_GIVEN].at, n)
        self.corrupt_rows.append(n)
        self.b.rows += 1

    def finish(self):
        """The batch so far, maybe of no row, and its rows with compressed bodies (none without the
        column); the next one begins."""
        cdef Py_ssize_t i
        cdef PackedRow *row
        if not self.started:
            self._start(1, 0)
        valid = None
        if self.corrupt_rows:
            bits = bytearray(b"\xff" * ((self.b.rows + 7) >> 3))
            for i in self.corrupt_rows:
                bits[i >> 3] &= ~(1 << (i & 7)) & 0xFF
            valid = py_buffer(bytes(bits))
        arrays = [self._array(name, kind, valid) for name, kind in self.fields]
        batch = from_arrays(arrays, schema=self.schema)
        packed = []
        for i in range(self.b.packed_count):
            row = <PackedRow *>self.b.packed.at + i
            packed.append(Packed(row.row, row.sys_flag, row.place))
        for i in range(BIT_COLUMNS):
            give_room(self.b.bits[i])
            self.b.bits[i].at = NULL
            self.b.bits[i].bytes = 0
        for i in range(TEXT_COLUMNS):  # of a topic that did not vary
            give_room(self.b.texts[i].data)
            give_room(self.b.texts[i].ends)
            self.b.texts[i].data.at = self.b.texts[i].ends.at = NULL
            self.b.texts[i].data.bytes = self.b.texts[i].ends.bytes = 0
        self.b.rows = 0
        self.started = False
        return batch, packed

    cdef _array(self, str name, kind, valid):
        cdef Py_ssize_t n = self.b.rows
        cdef Fixed *c
        if name == "properties":
            names = self._texts(MAP_NAMES, pa.string(), None)
            values = self._texts(MAP_VALUES, pa.string(), None)
            pairs = pa.StructArray.from_arrays([names, values], fields=[kind.key_field, kind.item_field])
            ends = arrow_buffer(&self.b.fixed[MAP_ENDS].values, 4 * (n + 1))
            return from_buffers(kind, n, [valid, ends], children=[pairs])
        if name == "brokerName":
            return self._constant(self.broker, valid)
        if name == "topic" and not self.b.topic_varies:
            topic = (<const char *>self.b.topic)[:self.b.topic_size].decode("utf-8", "replace")
            return self._constant(topic, valid)
        if name == "crcOk":
            return from_buffers(kind, n, [valid, arrow_buffer(&self.b.bits[CRC_OK], (n + 7) >> 3)])
        if name in GIVEN:
            valid = arrow_buffer(&self.b.bits[<int>GIVEN[name]], (n + 7) >> 3)
        if name in TEXTS:
            return self._texts(TEXTS[name], kind, valid)
        c = &self.b.fixed[<int>FIXED[name]]
        return from_buffers(kind, n, [valid, arrow_buffer(&c.values, n * c.width)])

    cdef _texts(self, int column, kind, valid):
        cdef Text *t = &self.b.texts[column]
        cdef Py_ssize_t count = t.count
        if self.b.rows:
            t.row_bytes = (t.used + t.used // 8) // self.b.rows + 1
            t.row_items = (count - 1) // self.b.rows + 1
        ends = arrow_buffer(&t.ends, 4 * (count + 1))
        return from_buffers(kind, count, [valid, ends, arrow_buffer(&t.data, t.used)])

    cdef _constant(self, text, valid):
        array = constant(text).slice(0, self.b.rows)
        if valid is None:
            return array
        return from_buffers(array.type, self.b.rows, [valid, *array.buffers()[1:]])
