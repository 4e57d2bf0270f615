# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
"""Frames that are read: their checks, and what dispatch makes of a stretch of the log.

The readable twins: `frame.py` (`crc32`, `decode_frame`) and `frame_reference.py` (`scan_frames`).
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp, memset

from saturnmq.protocol.frame import Damage, decode_frame
from saturnmq.protocol.frame_reference import Scan, batch_run
from saturnmq.protocol.jhash import jhash

from saturnmq.protocol.frame_kernel.crc cimport (
    CRC_MASK, joined_crc, saturnmq_crc32, saturnmq_crc32_is_hardware, saturnmq_crc32_join,
    saturnmq_crc32_join_portable, saturnmq_crc32_portable, saturnmq_crc32_setup,
    saturnmq_crc32_shift,
)
from saturnmq.protocol.frame_kernel.layout cimport (
    BLANK_MAGIC, BORN_HOST_V6, CRC_PROPERTY_BYTES, FRAME_BYTES_MIN, LONG_BYTES, MAGIC_V1, MAGIC_V2,
    STORE_HOST_V6, Bytes, Slice, get32, get64, has_crc_property, hold, is_torn, put32, put64,
    release,
)

cdef extern from *:
    """
    #include <stdint.h>

    /* Java's string hash goes on by eight characters at once: a chain of single steps would wait for each
     * multiplication. Takes whole eights while all is ASCII; the number of bytes taken. */
    static inline size_t hash_eights(uint32_t *hash, const uint8_t *p, size_t size)
    {
        enum { P2 = 31 * 31, P4 = P2 * P2 };
        const uint32_t p3 = 31u * P2, p5 = 31u * P4, p6 = (uint32_t)P2 * P4, p7 = 31u * p6, p8 = 31u * p7;
        size_t taken = 0;
        for (; size - taken >= 8; taken += 8, p += 8) {
            uint64_t all;
            memcpy(&all, p, 8);
            if (all & 0x8080808080808080u)
                break;
            *hash = *hash * p8 + (p[0] * p7 + p[1] * p6 + p[2] * p5 + p[3] * (uint32_t)P4 +
                                  p[4] * p3 + p[5] * (uint32_t)P2 + p[6] * 31u + p[7]);
        }
        return taken;
    }
    """
    size_t hash_eights(uint32_t *hash, const uint8_t *p, size_t size) nogil

cdef enum:
    CQ_ENTRY_BYTES = 20
    TRANSACTION_MASK = 0xC
    TRANSACTION_COMMIT = 0x8
    TRANSACTION_ROLLBACK = 0xC
    UNKNOWN_LEVEL_DELAY_MS = 1000
    INNER_BATCH = 0x80
    WRAPPED = 0xC0

saturnmq_crc32_setup()
CRC_HARDWARE = bool(saturnmq_crc32_is_hardware())


# --- checksums --------------------------------------------------------------------------------------

cdef uint32_t crc_of(const uint8_t *data, Py_ssize_t size) noexcept nogil:
    return saturnmq_crc32(0, data, <size_t>size) & CRC_MASK


def crc32(data):
    """The IEEE CRC-32 & 0x7FFFFFFF."""
    cdef Bytes b
    cdef uint32_t value
    hold(data, &b)
    if b.size >= LONG_BYTES:
        with nogil:
            value = crc_of(b.at, b.size)
    else:
        value = crc_of(b.at, b.size)
    release(&b)
    return value


def crc32_portable(data):
    """The same by the fallback; for tests."""
    cdef Bytes b
    hold(data, &b)
    value = saturnmq_crc32_portable(0, b.at, b.size) & CRC_MASK
    release(&b)
    return value


def crc32_joined(bytes head not None, bytes tail not None, bint portable=False):
    """The CRC of head + tail from the CRC of each; for tests."""
    cdef uint32_t a = saturnmq_crc32(0, <const uint8_t *>PyBytes_AS_STRING(head), len(head))
    cdef uint32_t b = saturnmq_crc32(0, <const uint8_t *>PyBytes_AS_STRING(tail), len(tail))
    cdef uint32_t shift = saturnmq_crc32_shift(len(tail))
    if portable:
        return saturnmq_crc32_join_portable(a, b, shift)
    return saturnmq_crc32_join(a, b, shift)


# --- one frame --------------------------------------------------------------------------------------

cdef Status parse(const uint8_t *p, Py_ssize_t left, bint verify, Parsed *f) noexcept nogil:
    """`frame.decode_frame` without the copies; the original gives the reasons of damage."""
    cdef int32_t size
    cdef uint32_t magic
    cdef uint32_t crc
    cdef Py_ssize_t at, store_end, length_bytes = 1, n
    if left <= 0:
        return END
    if left < 8:
        for at in range(left):
            if p[at]:
                return MORE
        return END
    size = <int32_t>get32(p)
    magic = get32(p + 4)
    f.size = size
    if magic == BLANK_MAGIC:
        return BLANK if size >= 8 else DAMAGE
    if magic == MAGIC_V2:
        length_bytes = 2
    elif magic != MAGIC_V1:
        return END if size == 0 and magic == 0 else DAMAGE
    if size < FRAME_BYTES_MIN:
        return DAMAGE
    if size > left:
        return MORE
    f.sys_flag = get32(p + 36)
    at = 48 + (20 if f.sys_flag & BORN_HOST_V6 else 8)
    store_end = at + 8 + (20 if f.sys_flag & STORE_HOST_V6 else 8)
    if store_end + 16 + length_bytes + 2 > size:
        return DAMAGE
    f.store_ts = <int64_t>get64(p + at)
    f.body_size = <int32_t>get32(p + store_end + 12)
    at = store_end + 16
    if f.body_size < 0 or at + f.body_size + length_bytes + 2 > size:
        return DAMAGE
    f.body = p + at
    at += f.body_size
    if length_bytes == 2:
        n = (<Py_ssize_t>p[at] << 8) | p[at + 1]
        if n > 32767:
            return DAMAGE
    else:
        n = p[at]
        if n > 127:
            return DAMAGE
    at += length_bytes
    if n == 0 or at + n + 2 > size:
        return DAMAGE
    f.topic = p + at
    f.topic_size = n
    at += n
    n = (<Py_ssize_t>p[at] << 8) | p[at + 1]
    at += 2
    if n > 32767 or at + n != size:
        return DAMAGE
    f.properties = p + at
    f.properties_size = n
    if verify:
        crc = saturnmq_crc32(0, f.body, f.body_size)
        if crc & CRC_MASK != get32(p + 8):
            return DAMAGE
        if has_crc_property(f.properties, n) and not crc_property_holds(p, size, f, crc):
            return DAMAGE
    return FRAME


cdef bint crc_property_holds(const uint8_t *p, Py_ssize_t size, Parsed *f,
                             uint32_t body_crc) noexcept nogil:
    cdef const uint8_t *end = p + size - CRC_PROPERTY_BYTES
    cdef uint32_t crc = joined_crc(&f.shift, p, f.body, f.body_size, end, body_crc) & CRC_MASK
    cdef int i
    for i in range(10):  # least significant digit first
        if end[9 + i] != 48 + crc % 10:
            return False
        crc //= 10
    return True


cdef void find_known(const uint8_t *p, Py_ssize_t size, Known *k) noexcept nogil:
    """The last pair with a value counts, as in a dict. A name ends with the first 0x01 of its pair."""
    cdef const uint8_t *end = p + size
    cdef const uint8_t *value
    cdef Slice *slot
    k.tags.size = k.keys.size = k.unique.size = k.delay.size = 0
    while p < end:
        slot = NULL
        value = p
        size = end - p
        if size >= 9 and memcmp(p, b"UNIQ_KEY\x01", 9) == 0:
            slot = &k.unique
            value = p + 9
        elif size >= 5:
            if memcmp(p, b"TAGS\x01", 5) == 0:
                slot = &k.tags
                value = p + 5
            elif memcmp(p, b"KEYS\x01", 5) == 0:
                slot = &k.keys
                value = p + 5
            elif size >= 6 and memcmp(p, b"DELAY\x01", 6) == 0:
                slot = &k.delay
                value = p + 6
        p = <const uint8_t *>memchr(value, 2, end - value)
        if p == NULL:
            p = end
        if slot != NULL and p > value:
            slot.at = value
            slot.size = p - value
        p += 1


cdef void find_whole(const uint8_t *start, Py_ssize_t size, bint verify, int32_t *sizes,
                     Whole *found) noexcept nogil:
    """The whole frames from `start` on; `sizes` has room for those of `size // FRAME_BYTES_MIN`: a long
    response has left the processor's cache when its frames are looked at again."""
    cdef Parsed f
    f.shift.size = found.end = found.count = found.wraps = 0
    while found.end < size and parse(start + found.end, size - found.end, verify, &f) == FRAME:
        found.wraps |= f.sys_flag & WRAPPED == WRAPPED
        sizes[found.count] = <int32_t>f.size
        found.count += 1
        found.end += f.size


cdef bint wraps(const uint8_t *p, Py_ssize_t left) noexcept:
    cdef Py_ssize_t size
    while left >= FRAME_BYTES_MIN:
        if get32(p + 36) & WRAPPED == WRAPPED:
            return True
        size = <int32_t>get32(p)
        if size < FRAME_BYTES_MIN or size > left:
            return False
        p += size
        left -= size
    return False


def has_wrapped(frames):
    """`frame_reference.has_wrapped`. It looks at two fields of each frame: no work to release the
    GIL for, beside that of decoding them."""
    cdef Bytes b
    cdef bint found
    hold(frames, &b)
    found = wraps(b.at, b.size)
    release(&b)
    return found


# --- a stretch of the log ---------------------------------------------------------------------------

cdef inline int32_t hash_utf8(int32_t seed, const uint8_t *p, Py_ssize_t size) noexcept nogil:
    """jhash of UTF-8 bytes, continuing `seed`."""
    cdef uint32_t value = <uint32_t>seed
    cdef Py_ssize_t i
    for i in range(<Py_ssize_t>hash_eights(&value, p, size), size):
        if p[i] & 0x80:
            with gil:  # rare: text beyond ASCII goes through the reference
                return jhash((<const char *>p)[:size].decode("utf-8", "replace"), seed)
        value = 31 * value + p[i]
    return <int32_t>value


cdef inline bint is_utf8(const uint8_t *p, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(size):
        if p[i] & 0x80:
            with gil:
                try:
                    (<const char *>p)[:size].decode("utf-8")
                except UnicodeDecodeError:
                    return False
                return True
    return True


cdef struct RunRecord:
    const uint8_t *topic
    Py_ssize_t topic_size
    int32_t queue_id
    int64_t first
    Py_ssize_t count


cdef struct Growing:
    uint8_t *at
    Py_ssize_t size
    Py_ssize_t room


cdef inline uint8_t *grow(Growing *g, Py_ssize_t size) noexcept nogil:
    """Room for `size` more bytes at the end; NULL without memory."""
    cdef uint8_t *moved
    cdef Py_ssize_t room
    if g.size + size > g.room:
        room = 2 * g.room + size + 1024
        moved = <uint8_t *>realloc(g.at, room)
        if moved == NULL:
            return NULL
        g.at = moved
        g.room = room
    g.size += size
    return g.at + g.size - size


cdef struct Scanning:
    Py_ssize_t pos
    Status status
    bint is_out_of_memory
    Py_ssize_t messages
    int64_t last_store_ts
    int64_t claimed_offset
    Growing runs
    Growing entries
    Growing items
    Growing batches  # the positions of inner batches


cdef inline int64_t entry_code(const Parsed *f, const Known *k, const int64_t *delays,
                               Py_ssize_t delays_count) noexcept nogil:
    cdef Py_ssize_t i, level = 0
    if f.topic_size == 19 and k.delay.size and memcmp(f.topic, b"SCHEDULE_TOPIC_XXXX", 19) == 0:
        if k.delay.size < 10:
            for i in range(k.delay.size):
                if k.delay.at[i] < 48 or k.delay.at[i] > 57:
                    level = 0
                    break
                level = 10 * level + k.delay.at[i] - 48
        if level > 0:
            if delays_count == 0:
                return f.store_ts + UNKNOWN_LEVEL_DELAY_MS
            return f.store_ts + delays[min(level, delays_count) - 1]
    return hash_utf8(0, k.tags.at, k.tags.size) if k.tags.size else 0


cdef inline int add_item(Growing *items, int32_t seed, const uint8_t *key, Py_ssize_t size,
                         int64_t physical_offset, int64_t store_ts) noexcept nogil:
    cdef int32_t value = hash_utf8(seed, key, size)
    cdef uint8_t *p = grow(items, 20)
    if p == NULL:
        return -1
    if value < 0:
        value = 0 if value == <int32_t>0x80000000 else -value
    put32(p, <uint32_t>value)
    put64(p + 4, <uint64_t>physical_offset)
    put64(p + 12, <uint64_t>store_ts)
    return 0


cdef int scan(const uint8_t *data, Py_ssize_t end, int64_t base, bint verify, bint index,
              const int64_t *delays, Py_ssize_t delays_count, Scanning *s) noexcept nogil:
    """-1 without memory."""
    cdef Parsed f
    cdef Known k
    cdef RunRecord *run = NULL
    cdef const uint8_t *topic = NULL  # of the frame before: most frames repeat it
    cdef const uint8_t *space
    cdef Py_ssize_t topic_size = 0, at, n
    cdef int32_t topic_hash = 0, queue_id
    cdef int64_t physical_offset, queue_offset
    cdef uint32_t transaction
    cdef const uint8_t *p
    cdef uint8_t *q
    f.shift.size = 0
    while True:
        p = data + s.pos
        s.status = parse(p, end - s.pos, verify, &f)
        if s.status != FRAME:
            if s.status == BLANK:
                s.pos += f.size
            return 0
        if f.topic_size != topic_size or memcmp(topic, f.topic, topic_size) != 0:
            if not is_utf8(f.topic, f.topic_size):
                s.status = DAMAGE_TOPIC
                return 0
            topic = f.topic
            topic_size = f.topic_size
            topic_hash = hash_utf8(0, topic, topic_size)
            topic_hash = <int32_t>(31 * <uint32_t>topic_hash + 35)  # '#'
            run = NULL
        physical_offset = <int64_t>get64(p + 28)
        if physical_offset != base + s.pos:
            s.claimed_offset = physical_offset
            s.status = DAMAGE_OFFSET
            return 0
        if verify and is_torn(f.properties, f.properties_size):
            s.status = DAMAGE_TORN
            return 0
        find_known(f.properties, f.properties_size, &k)
        transaction = f.sys_flag & TRANSACTION_MASK
        if transaction == 0 and f.sys_flag & INNER_BATCH:
            q = grow(&s.batches, sizeof(Py_ssize_t))
            if q == NULL:
                return -1
            (<Py_ssize_t *>q)[0] = s.pos
            run = NULL
        elif transaction == 0 or transaction == TRANSACTION_COMMIT:
            queue_id = <int32_t>get32(p + 12)
            queue_offset = <int64_t>get64(p + 20)
            if run == NULL or run.queue_id != queue_id or run.first + run.count != queue_offset:
                q = grow(&s.runs, sizeof(RunRecord))
                if q == NULL:
                    return -1
                run = <RunRecord *>q
                run.topic = topic
                run.topic_size = topic_size
                run.queue_id = queue_id
                run.first = queue_offset
                run.count = 0
            run.count += 1
            q = grow(&s.entries, CQ_ENTRY_BYTES)
            if q == NULL:
                return -1
            put64(q, <uint64_t>physical_offset)
            put32(q + 8, <uint32_t>f.size)
            put64(q + 12, <uint64_t>entry_code(&f, &k, delays, delays_count))
        if index and transaction != TRANSACTION_ROLLBACK:
            if k.unique.size:
                if add_item(&s.items, topic_hash, k.unique.at, k.unique.size, physical_offset,
                            f.store_ts) < 0:
                    return -1
            at = 0
            while at < k.keys.size:
                space = <const uint8_t *>memchr(k.keys.at + at, 32, k.keys.size - at)
                n = (space - k.keys.at if space != NULL else k.keys.size) - at
                if n and add_item(&s.items, topic_hash, k.keys.at + at, n, physical_offset,
                                  f.store_ts) < 0:
                    return -1
                at += n + 1
        s.last_store_ts = f.store_ts
        s.messages += 1
        s.pos += f.size


def scan_frames(view, Py_ssize_t pos, Py_ssize_t end, int64_t physical_base, bint verify_crc=False,
                bint index=True, tuple delay_ms=()):
    """Read the frames in [pos, end) of `view`; `physical_base` is the offset of its first byte."""
    cdef Bytes b
    cdef Scanning s
    cdef int64_t[64] delays
    cdef Py_ssize_t delays_count = min(<Py_ssize_t>len(delay_ms), 64), i, entry = 0
    cdef RunRecord *run
    cdef int failed
    for i in range(delays_count):
        delays[i] = delay_ms[i]
    memset(&s, 0, sizeof(s))
    s.pos = pos
    hold(view, &b)
    try:
        if pos < 0 or end > b.size:
            raise ValueError(f"[{pos}, {end}) is not inside a view of {b.size} B")
        if end - pos >= LONG_BYTES:
            with nogil:
                failed = scan(b.at, end, physical_base, verify_crc, index, delays, delays_count, &s)
        else:
            failed = scan(b.at, end, physical_base, verify_crc, index, delays, delays_count, &s)
        if failed:
            raise MemoryError
        why = ""
        if s.status == DAMAGE:
            outcome = decode_frame(view, s.pos, end, verify_crc)
            assert isinstance(outcome, Damage), outcome
            why = outcome.why
        elif s.status == DAMAGE_TOPIC:
            why = "topic is not UTF-8"
        elif s.status == DAMAGE_TORN:
            why = "the last properties are zeros"
        elif s.status == DAMAGE_OFFSET:
            why = f"frame says offset {s.claimed_offset}, it lies at {physical_base + s.pos}"
        runs = []
        for i in range(s.runs.size // <Py_ssize_t>sizeof(RunRecord)):
            run = <RunRecord *>s.runs.at + i
            runs.append((
                (<const char *>run.topic)[:run.topic_size].decode("utf-8"),
                run.queue_id,
                run.first,
                run.count,
                PyBytes_FromStringAndSize(<const char *>s.entries.at + entry,
                                          run.count * CQ_ENTRY_BYTES),
            ))
            entry += run.count * CQ_ENTRY_BYTES
        items = PyBytes_FromStringAndSize(<const char *>s.items.at, s.items.size) if s.items.size else b""
        batches = [
            batch_run(decode_frame(view, (<Py_ssize_t *>s.batches.at)[i], end, False))
            for i in range(s.batches.size // <Py_ssize_t>sizeof(Py_ssize_t))
        ]
        return Scan(s.pos, STATUS_NAMES[<int>s.status], why, runs, items, s.last_store_ts, s.messages,
                    batches)
    finally:
        release(&b)
        free(s.runs.at)
        free(s.entries.at)
        free(s.items.at)
        free(s.batches.at)


STATUS_NAMES = ("frame", "end", "blank", "more", "damage", "damage", "damage", "damage")
