# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
"""The frames of a batch: its entries are checked, measured and written; the ids of what was written.

The readable twins: `batch.py` (`check_batch`), `frame_reference.py` (`write_message`, `write_batch`)
and `ids.py` (`batch_ids`). Frames are measured in a first pass and written in a second, so `out`
cannot be overrun.
"""

from array import array

from cpython.array cimport array as carray, clone
from cpython.buffer cimport PyBUF_WRITABLE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from saturnmq.protocol import batch as _batch

from saturnmq.protocol.frame_kernel.crc cimport (
    CRC_MASK, Shift, joined_crc, saturnmq_crc32, saturnmq_crc32_setup,
)
from saturnmq.protocol.frame_kernel.layout cimport (
    BORN_HOST_V6, CRC_PROPERTY_BYTES, ENTRY_BYTES_MIN, ENTRY_HEAD_BYTES, FRAME_BYTES_MIN,
    LONG_BYTES, MAGIC_V1, MAGIC_V2, PROPERTIES_BYTES_MAX, STORE_HOST_V6, Bytes, get32, hold, is_torn,
    own_properties, put32, put64, release,
)

cdef extern from *:
    """
    static PyObject *new_ascii(Py_ssize_t size) { return PyUnicode_New(size, 127); }
    static uint8_t *ascii_data(PyObject *text) { return (uint8_t *)PyUnicode_1BYTE_DATA(text); }
    """
    object new_ascii(Py_ssize_t size)
    uint8_t *ascii_data(object text)

cdef carray INTS = array("i")

saturnmq_crc32_setup()


# --- the entries of a batch -------------------------------------------------------------------------

cdef struct Entry:
    int32_t size
    uint32_t crc
    uint32_t flag
    const uint8_t *body
    Py_ssize_t body_size
    const uint8_t *properties
    Py_ssize_t properties_size


cdef inline bint read_entry(const uint8_t *p, Py_ssize_t left, Entry *e) noexcept nogil:
    """False if no well-formed entry begins at `p`."""
    if left < ENTRY_BYTES_MIN:
        return False
    e.size = <int32_t>get32(p)
    e.crc = get32(p + 8)
    e.flag = get32(p + 12)
    e.body_size = <int32_t>get32(p + 16)
    if e.size < ENTRY_BYTES_MIN or e.size > left:
        return False
    if e.body_size < 0 or e.body_size > e.size - ENTRY_BYTES_MIN:
        return False
    e.body = p + ENTRY_HEAD_BYTES
    e.properties_size = (<Py_ssize_t>e.body[e.body_size] << 8) | e.body[e.body_size + 1]
    e.properties = e.body + e.body_size + 2
    if ENTRY_BYTES_MIN + e.body_size + e.properties_size != e.size:
        return False
    e.properties_size = own_properties(e.properties, e.properties_size)
    return True


cdef inline Py_ssize_t stored_properties(const uint8_t *properties, Py_ssize_t size,
                                         bint crc_property) noexcept nogil:
    if not crc_property:
        return size
    return size + CRC_PROPERTY_BYTES + (1 if size and properties[size - 1] != 2 else 0)


cdef enum Fault:
    NO_FAULT
    MALFORMED
    BODY_SIZE
    PROPERTIES_SIZE
    PROPERTIES_ZEROS
    CRC


cdef struct Check:
    Fault fault
    Py_ssize_t pos
    Py_ssize_t number
    Py_ssize_t actual  # the size, or the CRC, that was found
    Py_ssize_t claimed
    Py_ssize_t total


cdef void measure(const uint8_t *p, Py_ssize_t size, Py_ssize_t fixed, bint crc_property,
                  Py_ssize_t max_body, Py_ssize_t max_properties, Check *c) noexcept nogil:
    """Walk the entries: their number and the bytes of their frames, `fixed` + body + properties."""
    cdef Entry e
    cdef Py_ssize_t stored
    c.fault = NO_FAULT
    c.pos = c.number = c.total = 0
    while c.pos < size:
        if not read_entry(p + c.pos, size - c.pos, &e):
            c.fault = MALFORMED
            return
        if e.body_size > max_body:
            c.fault = BODY_SIZE
            c.actual = e.body_size
            return
        stored = stored_properties(e.properties, e.properties_size, crc_property)
        if stored > max_properties:
            c.fault = PROPERTIES_SIZE
            c.actual = stored
            return
        if not crc_property and is_torn(e.properties, e.properties_size):
            c.fault = PROPERTIES_ZEROS
            return
        c.total += fixed + e.body_size + stored
        c.pos += e.size
        c.number += 1


cdef object refusal(Check *c, Py_ssize_t max_body, Py_ssize_t max_properties):
    if c.fault == MALFORMED:
        return _batch.malformed(c.number, c.pos)
    if c.fault == BODY_SIZE:
        return _batch.body_too_large(c.number, c.actual, max_body)
    if c.fault == PROPERTIES_SIZE:
        return _batch.properties_too_large(c.number, c.actual, max_properties)
    if c.fault == PROPERTIES_ZEROS:
        return _batch.properties_with_zeros(c.number)
    return _batch.crc_differs(c.number, c.claimed, c.actual)


def check_batch(body, int topic_len, int host6, bint crc_property, Py_ssize_t max_body,
                Py_ssize_t max_properties=PROPERTIES_BYTES_MAX):
    """Returns (messages, bytes of their frames); MessageIllegal if any entry cannot be stored."""
    cdef Bytes b
    cdef Check c
    cdef Py_ssize_t fixed = FRAME_BYTES_MIN + topic_len + (topic_len > 127) + 12 * host6
    max_properties = min(max_properties, PROPERTIES_BYTES_MAX)
    hold(body, &b)
    # One visit per entry: a few nanoseconds each, so the GIL stays.
    measure(b.at, b.size, fixed, crc_property, max_body, max_properties, &c)
    release(&b)
    if c.fault != NO_FAULT:
        raise refusal(&c, max_body, max_properties)
    if c.number == 0:
        raise _batch.MessageIllegal("the batch is empty; send at least one message")
    return c.number, c.total


# --- frames -----------------------------------------------------------------------------------------

cdef struct Fields:
    # The common fields of the frames of one batch.
    int64_t physical_offset  # of the next frame
    int64_t queue_offset
    int32_t queue_id
    uint32_t sys_flag
    int64_t born_ts
    const uint8_t *born_host
    Py_ssize_t born_host_size
    int64_t store_ts
    const uint8_t *store_host
    Py_ssize_t store_host_size
    int32_t reconsume
    int64_t prepared_offset
    const uint8_t *topic
    Py_ssize_t topic_size
    bint crc_property
    Shift shift


cdef int set_hosts_and_topic(Fields *f, bytes born_host, bytes store_host, bytes topic) except -1:
    f.born_host = <const uint8_t *>PyBytes_AS_STRING(born_host)
    f.born_host_size = PyBytes_GET_SIZE(born_host)
    f.store_host = <const uint8_t *>PyBytes_AS_STRING(store_host)
    f.store_host_size = PyBytes_GET_SIZE(store_host)
    f.topic = <const uint8_t *>PyBytes_AS_STRING(topic)
    f.topic_size = PyBytes_GET_SIZE(topic)
    f.shift.size = 0
    if f.born_host_size not in (8, 20) or f.store_host_size not in (8, 20):
        raise ValueError("a host has 8 bytes (IPv4) or 20 (IPv6)")
    if not 0 < f.topic_size <= 32767:
        raise ValueError(f"a topic of {f.topic_size} B cannot be stored")
    f.sys_flag &= ~<uint32_t>(BORN_HOST_V6 | STORE_HOST_V6)
    if f.born_host_size == 20:
        f.sys_flag |= BORN_HOST_V6
    if f.store_host_size == 20:
        f.sys_flag |= STORE_HOST_V6
    return 0


cdef inline Py_ssize_t fixed_size(const Fields *f) noexcept nogil:
    """A frame without body and properties."""
    return (FRAME_BYTES_MIN - 16 + f.born_host_size + f.store_host_size + f.topic_size
            + (1 if f.topic_size > 127 else 0))


cdef Py_ssize_t put_frame(uint8_t *start, Fields *f, uint32_t flag, uint32_t body_crc,
                          const uint8_t *body, Py_ssize_t body_size,
                          const uint8_t *properties, Py_ssize_t properties_size) noexcept nogil:
    """`body_crc` with all its bits; a frame stores it without the sign."""
    cdef uint8_t *p = start
    cdef uint8_t *body_at
    cdef Py_ssize_t stored = stored_properties(properties, properties_size, f.crc_property)
    cdef Py_ssize_t size = fixed_size(f) + body_size + stored
    cdef uint32_t crc
    cdef int i
    put32(p, <uint32_t>size)
    put32(p + 4, MAGIC_V2 if f.topic_size > 127 else MAGIC_V1)
    put32(p + 8, body_crc & CRC_MASK)
    put32(p + 12, <uint32_t>f.queue_id)
    put32(p + 16, flag)
    put64(p + 20, <uint64_t>f.queue_offset)
    put64(p + 28, <uint64_t>f.physical_offset)
    put32(p + 36, f.sys_flag)
    put64(p + 40, <uint64_t>f.born_ts)
    p += 48
    memcpy(p, f.born_host, f.born_host_size)
    p += f.born_host_size
    put64(p, <uint64_t>f.store_ts)
    memcpy(p + 8, f.store_host, f.store_host_size)
    p += 8 + f.store_host_size
    put32(p, <uint32_t>f.reconsume)
    put64(p + 4, <uint64_t>f.prepared_offset)
    put32(p + 12, <uint32_t>body_size)
    body_at = p + 16
    memcpy(body_at, body, body_size)
    p += 16 + body_size
    if f.topic_size > 127:
        p[0] = <uint8_t>(f.topic_size >> 8)
        p += 1
    p[0] = <uint8_t>f.topic_size
    memcpy(p + 1, f.topic, f.topic_size)
    p += 1 + f.topic_size
    p[0] = <uint8_t>(stored >> 8)
    p[1] = <uint8_t>stored
    memcpy(p + 2, properties, properties_size)
    p += 2 + properties_size
    if f.crc_property:
        if stored > properties_size + CRC_PROPERTY_BYTES:
            p[0] = 2
            p += 1
        crc = joined_crc(&f.shift, start, body_at, body_size, p, body_crc) & CRC_MASK
        memcpy(p, b"__CRC32#\x01", 9)
        for i in range(10):  # least significant digit first
            p[9 + i] = <uint8_t>(48 + crc % 10)
            crc //= 10
        p[19] = 2
    return size


def write_message(out, Py_ssize_t pos, int64_t physical_offset, int64_t queue_offset, int32_t queue_id,
                  int32_t flag, int32_t sys_flag, int64_t born_ts, bytes born_host not None,
                  int64_t store_ts, bytes store_host not None, int32_t reconsume,
                  int64_t prepared_offset, body, bytes topic not None, bytes properties not None,
                  bint crc_property=False):
    """Write one frame at `pos` of `out`; returns its size."""
    cdef Fields f
    cdef Bytes target, b
    cdef Py_ssize_t size, stored, properties_size = PyBytes_GET_SIZE(properties)
    cdef const uint8_t *raw = <const uint8_t *>PyBytes_AS_STRING(properties)
    f.physical_offset = physical_offset
    f.queue_offset = queue_offset
    f.queue_id = queue_id
    f.sys_flag = <uint32_t>sys_flag
    f.born_ts = born_ts
    f.store_ts = store_ts
    f.reconsume = reconsume
    f.prepared_offset = prepared_offset
    f.crc_property = crc_property
    set_hosts_and_topic(&f, born_host, store_host, topic)
    properties_size = own_properties(raw, properties_size)
    stored = stored_properties(raw, properties_size, crc_property)
    if stored > PROPERTIES_BYTES_MAX:
        raise ValueError(f"properties of {stored} B exceed {PROPERTIES_BYTES_MAX} B")
    hold(body, &b)
    try:
        size = fixed_size(&f) + b.size + stored
        hold(out, &target, PyBUF_WRITABLE)
        try:
            if pos < 0 or size > target.size - pos or size > 0x7FFFFFFF:
                raise ValueError(f"a frame of {size} B at {pos} does not fit in {target.size} B")
            if size >= LONG_BYTES:
                with nogil:
                    put_frame(target.at + pos, &f, <uint32_t>flag, saturnmq_crc32(0, b.at, b.size),
                              b.at, b.size, raw, properties_size)
            else:
                put_frame(target.at + pos, &f, <uint32_t>flag, saturnmq_crc32(0, b.at, b.size),
                          b.at, b.size, raw, properties_size)
        finally:
            release(&target)
    finally:
        release(&b)
    return size


cdef void put_batch(uint8_t *p, const uint8_t *body, Fields *f, int *sizes, Check *c) noexcept nogil:
    """Write the `c.number` entries of a measured body; on a CRC fault zero the written part."""
    cdef Entry e
    cdef Py_ssize_t n, at = 0, total = c.number, source = 0
    cdef uint32_t crc
    for n in range(total):
        read_entry(body + source, 0x7FFFFFFF, &e)
        crc = saturnmq_crc32(0, e.body, e.body_size)
        if e.crc != 0 and e.crc != crc & CRC_MASK:
            c.fault = CRC
            c.number = n
            c.claimed = <int32_t>e.crc  # as it is on the wire
            c.actual = crc & CRC_MASK
            memset(p, 0, at)
            return
        sizes[n] = <int>put_frame(p + at, f, e.flag, crc, e.body, e.body_size,
                                  e.properties, e.properties_size)
        f.physical_offset += sizes[n]
        f.queue_offset += 1
        at += sizes[n]
        source += e.size


def write_batch(body, out, Py_ssize_t pos, int64_t physical_offset, int64_t queue_offset,
                int32_t queue_id, int32_t sys_flag, int64_t born_ts, bytes born_host not None,
                int64_t store_ts, bytes store_host not None, int32_t reconsume,
                bytes topic not None, bint crc_property=False):
    """Write every entry of a batch body as a frame from `pos` on: returns (count, frame sizes)."""
    cdef Fields f
    cdef Bytes source, target
    cdef Check c
    cdef carray sizes
    f.physical_offset = physical_offset
    f.queue_offset = queue_offset
    f.queue_id = queue_id
    f.sys_flag = <uint32_t>sys_flag
    f.born_ts = born_ts
    f.store_ts = store_ts
    f.reconsume = reconsume
    f.prepared_offset = 0
    f.crc_property = crc_property
    set_hosts_and_topic(&f, born_host, store_host, topic)
    hold(body, &source)
    try:
        measure(source.at, source.size, fixed_size(&f), crc_property, 0x7FFFFFFF,
                PROPERTIES_BYTES_MAX, &c)
        if c.fault != NO_FAULT:
            raise refusal(&c, 0x7FFFFFFF, PROPERTIES_BYTES_MAX)
        hold(out, &target, PyBUF_WRITABLE)
        try:
            if pos < 0 or c.total > target.size - pos:
                raise ValueError(f"frames of {c.total} B at {pos} do not fit in {target.size} B")
            sizes = clone(INTS, c.number, False)
            if c.total >= LONG_BYTES:
                with nogil:
                    put_batch(target.at + pos, source.at, &f, sizes.data.as_ints, &c)
            else:
                put_batch(target.at + pos, source.at, &f, sizes.data.as_ints, &c)
        finally:
            release(&target)
    finally:
        release(&source)
    if c.fault != NO_FAULT:
        raise refusal(&c, 0, 0)
    return c.number, sizes


# --- ids --------------------------------------------------------------------------------------------

cdef inline void put_hex(uint8_t *p, uint64_t value) noexcept:
    cdef int i
    for i in range(15, -1, -1):
        p[i] = b"0123456789ABCDEF"[value & 15]
        value >>= 4


def batch_ids(bytes host_bytes not None, port, int64_t physical_offset, sizes):
    """The comma-joined offset ids of frames of `sizes` that lie back to back."""
    cdef carray numbers
    cdef bytes head = f"{host_bytes.hex().upper()}{port & 0xFFFFFFFF:08X}".encode()
    cdef Py_ssize_t count, i, head_size = len(head)
    cdef uint8_t *p
    if isinstance(sizes, array) and sizes.typecode == "i":
        numbers = sizes
    else:
        numbers = array("i", sizes)
    count = len(numbers)
    if count == 0:
        return ""
    text = new_ascii(count * (head_size + 17) - 1)
    p = ascii_data(text)
    for i in range(count):
        if i:
            p[0] = 44  # ','
            p += 1
        memcpy(p, PyBytes_AS_STRING(head), head_size)
        put_hex(p + head_size, <uint64_t>physical_offset)
        p += head_size + 16
        physical_offset += numbers.data.as_ints[i]
    return text
