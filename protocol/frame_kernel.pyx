# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
"""The loops over message bytes, compiled; `frame_reference.py` and `batch.py` are their readable twins.

Same signatures, same answers: tests/unit/test_frame_kernels.py holds one against the other on random and on
damaged input. Nothing here knows a file, a clock or a policy.

Memory: every length read from the input is checked against what is left before it is used; frames are
measured in a first pass and written in a second, so `out` cannot be overrun. Long work (LONG_BYTES and
more) releases the GIL: the caller keeps the buffers alive and unchanged for the call, as with any
other call. No Python object is made per message except the views `decode_frames` is asked for.
"""

cimport cython
from array import array

from cpython.array cimport array as carray, clone
from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE,
)
from cpython.memoryview cimport PyMemoryView_Check, PyMemoryView_GET_BUFFER
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

from saturnmq.protocol import batch as _batch
from saturnmq.protocol import properties as _names
from saturnmq.protocol import message_reference as _message
from saturnmq.protocol.compression import COMPRESSED_FLAG, unpack
from saturnmq.runtime.errors import MalformedFrame
from saturnmq.protocol.frame import Damage, decode_frame
from saturnmq.protocol.frame_reference import Scan
from saturnmq.protocol.ids import decode_host, offset_message_id
from saturnmq.protocol.jhash import jhash
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.protocol.received_reference import rebuild

cdef extern from "crc32.h":
    void saturnmq_crc32_setup()
    int saturnmq_crc32_is_hardware()
    uint32_t saturnmq_crc32(uint32_t crc, const uint8_t *data, size_t size) nogil
    uint32_t saturnmq_crc32_portable(uint32_t crc, const uint8_t *data, size_t size) nogil
    uint32_t saturnmq_crc32_shift(size_t size) nogil
    uint32_t saturnmq_crc32_join(uint32_t crc_a, uint32_t crc_b, uint32_t shift_b) nogil
    uint32_t saturnmq_crc32_join_portable(uint32_t crc_a, uint32_t crc_b, uint32_t shift_b)

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

    static PyObject *new_ascii(Py_ssize_t size) { return PyUnicode_New(size, 127); }
    static uint8_t *ascii_data(PyObject *text) { return (uint8_t *)PyUnicode_1BYTE_DATA(text); }
    """
    size_t hash_eights(uint32_t *hash, const uint8_t *p, size_t size) nogil
    object new_ascii(Py_ssize_t size)
    uint8_t *ascii_data(object text)

cdef uint32_t MAGIC_V1 = 0xDAA320A7
cdef uint32_t MAGIC_V2 = 0xDAA320AB
cdef uint32_t BLANK_MAGIC = 0xCBD43194
cdef enum:
    FRAME_BYTES_MIN = 91
    ENTRY_BYTES_MIN = 22
    ENTRY_HEAD_BYTES = 20
    CQ_ENTRY_BYTES = 20
    CRC_PROPERTY_BYTES = 20
    PROPERTIES_BYTES_MAX = 32767
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    TRANSACTION_MASK = 0xC
    TRANSACTION_COMMIT = 0x8
    TRANSACTION_ROLLBACK = 0xC
    UNKNOWN_LEVEL_DELAY_MS = 1000
    JOINED_BYTES = 256  # bodies from here on are not read again for the frame's CRC
    LONG_BYTES = 65536  # about 10 us of work; below it releasing the GIL costs more than it gives

cdef uint8_t[128] NOTHING
memset(NOTHING, 0, sizeof(NOTHING))
cdef uint32_t COMPRESSED = COMPRESSED_FLAG
cdef carray INTS = array("i")

saturnmq_crc32_setup()
CRC_HARDWARE = bool(saturnmq_crc32_is_hardware())


# --- buffers ----------------------------------------------------------------------------------------

cdef struct Bytes:
    Py_buffer buffer
    bint is_held  # the buffer must be released
    uint8_t *at
    Py_ssize_t size


cdef inline int hold(object source, Bytes *b, int flags=PyBUF_SIMPLE) except -1:
    """Borrow the bytes of `source`, which must outlive the use; ends with `release`."""
    if flags == PyBUF_SIMPLE and PyBytes_CheckExact(source):
        b.is_held = False
        b.at = <uint8_t *>PyBytes_AS_STRING(source)
        b.size = PyBytes_GET_SIZE(source)
        return 0
    PyObject_GetBuffer(source, &b.buffer, flags)
    b.is_held = True
    b.at = <uint8_t *>b.buffer.buf
    b.size = b.buffer.len
    return 0


cdef inline void release(Bytes *b):
    if b.is_held:
        PyBuffer_Release(&b.buffer)


cdef uint32_t crc_of(const uint8_t *data, Py_ssize_t size) noexcept nogil:
    return saturnmq_crc32(0, data, <size_t>size) & 0x7FFFFFFF


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
    value = saturnmq_crc32_portable(0, b.at, b.size) & 0x7FFFFFFF
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


# --- batch entries ----------------------------------------------------------------------------------

cdef const char *ID_NAME = b"UNIQ_KEY\x01"
cdef const char *ID_TAIL = b"\x02WAIT\x01true\x02"
cdef const char *HEX = b"0123456789ABCDEF"
cdef enum:
    ID_NAME_BYTES = 9
    ID_TAIL_BYTES = 11


cdef Py_ssize_t put_entry(bytearray buffer, Py_ssize_t at, const uint8_t *body, Py_ssize_t body_size,
                          bytes id_head, Py_ssize_t number, bytes extra, int flag) noexcept:
    """-1 if it does not fit, -2 if the properties are too large for any."""
    cdef Py_ssize_t head_size = PyBytes_GET_SIZE(id_head), extra_size = PyBytes_GET_SIZE(extra)
    cdef Py_ssize_t properties_size = extra_size, size
    cdef uint8_t *p
    if number >= 0:
        properties_size += ID_NAME_BYTES + head_size + 4 + ID_TAIL_BYTES
    if properties_size > PROPERTIES_BYTES_MAX:
        return -2
    size = ENTRY_BYTES_MIN + body_size + properties_size
    if at < 0 or size > PyByteArray_GET_SIZE(buffer) - at:
        return -1
    p = <uint8_t *>PyByteArray_AS_STRING(buffer) + at
    put32(p, <uint32_t>size)
    put32(p + 4, 0)
    put32(p + 8, crc_of(body, body_size))
    put32(p + 12, <uint32_t>flag)
    put32(p + 16, <uint32_t>body_size)
    p += ENTRY_HEAD_BYTES
    memcpy(p, body, body_size)
    p += body_size
    p[0] = <uint8_t>(properties_size >> 8)
    p[1] = <uint8_t>properties_size
    p += 2
    if number >= 0:
        memcpy(p, ID_NAME, ID_NAME_BYTES)
        p += ID_NAME_BYTES
        memcpy(p, PyBytes_AS_STRING(id_head), head_size)
        p += head_size
        p[0] = HEX[number >> 12 & 15]
        p[1] = HEX[number >> 8 & 15]
        p[2] = HEX[number >> 4 & 15]
        p[3] = HEX[number & 15]
        memcpy(p + 4, ID_TAIL, ID_TAIL_BYTES)
        p += 4 + ID_TAIL_BYTES
    memcpy(p, PyBytes_AS_STRING(extra), extra_size)
    return at + size


def put_batch_item(bytearray buffer not None, Py_ssize_t at, body, bytes id_head not None,
                   Py_ssize_t number, bytes extra not None, int flag=0):
    """Write one entry into `buffer` at byte `at`; returns the position of the next one, or -1 if it
    does not fit."""
    cdef Bytes b
    cdef Py_ssize_t end
    hold(body, &b)
    end = put_entry(buffer, at, b.at, b.size, id_head, number, extra, flag)
    release(&b)
    if end == -2:
        return _batch.put_batch_item(buffer, at, body, id_head, number, extra, flag)  # raises
    return end


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


cdef inline bint has_crc_property(const uint8_t *properties, Py_ssize_t size) noexcept nogil:
    """Whether the last property is a frame's CRC."""
    cdef const uint8_t *at = properties + size - CRC_PROPERTY_BYTES
    return (size >= CRC_PROPERTY_BYTES and at[CRC_PROPERTY_BYTES - 1] == 2
            and memcmp(at, b"__CRC32#\x01", 9) == 0
            and (size == CRC_PROPERTY_BYTES or at[-1] == 2))


cdef inline bint is_torn(const uint8_t *properties, Py_ssize_t size) noexcept nogil:
    """Whether zeros lie where the CRC property was, or the 0x02 before it."""
    cdef Py_ssize_t last = min(size, CRC_PROPERTY_BYTES + 1)
    return (not has_crc_property(properties, size)
            and memchr(properties + size - last, 0, last) != NULL)


cdef inline Py_ssize_t own_properties(const uint8_t *properties, Py_ssize_t size) noexcept nogil:
    """Bytes without the CRC property of the frame they were taken from."""
    return size - CRC_PROPERTY_BYTES if has_crc_property(properties, size) else size


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


# --- writing frames ---------------------------------------------------------------------------------

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


cdef inline uint32_t joined_crc(Shift *shift, const uint8_t *start, const uint8_t *body,
                                Py_ssize_t body_size, const uint8_t *end,
                                uint32_t body_crc) noexcept nogil:
    """The CRC of [start, end) with the body in it, whose CRC is known."""
    cdef uint32_t crc
    if body_size < JOINED_BYTES:
        return saturnmq_crc32(0, start, end - start)
    if body_size != shift.size:
        shift.size = body_size
        shift.by = saturnmq_crc32_shift(body_size)
    crc = saturnmq_crc32_join(saturnmq_crc32(0, start, body - start), body_crc, shift.by)
    return saturnmq_crc32(crc, body + body_size, end - body - body_size)


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
    put32(p + 8, body_crc & 0x7FFFFFFF)
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
        crc = joined_crc(&f.shift, start, body_at, body_size, p, body_crc) & 0x7FFFFFFF
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
        if e.crc != 0 and e.crc != crc & 0x7FFFFFFF:
            c.fault = CRC
            c.number = n
            c.claimed = e.crc
            c.actual = crc & 0x7FFFFFFF
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


# --- reading frames ---------------------------------------------------------------------------------

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
        if crc & 0x7FFFFFFF != get32(p + 8):
            return DAMAGE
        if has_crc_property(f.properties, n) and not crc_property_holds(p, size, f, crc):
            return DAMAGE
    return FRAME


cdef bint crc_property_holds(const uint8_t *p, Py_ssize_t size, Parsed *f,
                             uint32_t body_crc) noexcept nogil:
    cdef const uint8_t *end = p + size - CRC_PROPERTY_BYTES
    cdef uint32_t crc = joined_crc(&f.shift, p, f.body, f.body_size, end, body_crc) & 0x7FFFFFFF
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
        if transaction == 0 or transaction == TRANSACTION_COMMIT:
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
        return Scan(s.pos, STATUS_NAMES[<int>s.status], why, runs, items, s.last_store_ts, s.messages)
    finally:
        release(&b)
        free(s.runs.at)
        free(s.entries.at)
        free(s.items.at)


STATUS_NAMES = ("frame", "end", "blank", "more", "damage", "damage", "damage", "damage")


# --- received messages ------------------------------------------------------------------------------

cdef enum:
    ROOM_MIN = 65536
    RANKS = 33  # rooms of 64 KiB to 16 MiB, the largest frame of a connection, four to a doubling
    IDLE_BYTES_MAX = 16 * 1024 * 1024
    IDLE_MAX = 64

cdef uint8_t *idle_memory[RANKS][IDLE_MAX]
cdef int idle_count[RANKS]
cdef Py_ssize_t idle_bytes = 0
memset(idle_count, 0, sizeof(idle_count))


cdef inline Py_ssize_t room_of(int rank) noexcept:
    return (<Py_ssize_t>(4 + rank % 4) * ROOM_MIN // 4) << rank // 4


@cython.no_gc
cdef class ResponseBuffer:
    """Memory of one large response: filled once by its connection, then read by its messages.

    It is recycled when the last of them is gone, up to IDLE_BYTES_MAX in a process: fresh memory of this
    size comes from the system and goes back to it, and its page faults cost more than the data.
    """

    cdef uint8_t *_at
    cdef Py_ssize_t _size
    cdef int _rank

    def __cinit__(self, Py_ssize_t size):
        global idle_bytes
        if size < 0:
            raise ValueError(f"a buffer of {size} B cannot be")
        while self._rank < RANKS and size > room_of(self._rank):
            self._rank += 1
        self._size = size
        if self._rank < RANKS and idle_count[self._rank]:
            idle_count[self._rank] -= 1
            idle_bytes -= room_of(self._rank)
            self._at = idle_memory[self._rank][idle_count[self._rank]]
            return
        self._at = <uint8_t *>malloc(room_of(self._rank) if self._rank < RANKS else size)
        if self._at == NULL:
            raise MemoryError(f"no memory for a buffer of {size} B")

    def __dealloc__(self):
        global idle_bytes
        cdef Py_ssize_t room
        if self._at == NULL:
            return
        room = room_of(self._rank)
        if (self._rank == RANKS or idle_count[self._rank] == IDLE_MAX
                or idle_bytes + room > IDLE_BYTES_MAX):
            free(self._at)
            return
        idle_memory[self._rank][idle_count[self._rank]] = self._at
        idle_count[self._rank] += 1
        idle_bytes += room

    def __len__(self):
        return self._size

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self._at, self._size, False, flags)


@cython.no_gc
@cython.final
@cython.freelist(1024)
cdef class ReceivedMessage:
    """A message as the broker delivered it: one frame inside a bytes object or a ResponseBuffer.
    Every field is read on demand.

    The collector does not track it, as it would instances of a Python subclass: thousands live at
    once in every consumer, and the objects they refer to (bytes, strings, a dict of strings) never
    refer back.
    """

    cdef object _owner  # keeps the memory
    cdef const uint8_t *_at
    cdef public object _properties
    cdef object _unpacked
    cdef public object _topic
    cdef public object broker_name

    def __cinit__(self, *_):
        self._at = NOTHING  # a view made without __init__ reads as zeros, not as stray memory
        self.broker_name = ""

    def __init__(self, bytes data not None, Py_ssize_t pos=0):
        cdef Parsed f
        if pos < 0 or parse(<const uint8_t *>PyBytes_AS_STRING(data) + pos,
                            PyBytes_GET_SIZE(data) - pos, False, &f) != FRAME:
            raise MalformedFrame(f"no whole frame at byte {pos} of {len(data)}")
        self._owner = data
        self._at = <const uint8_t *>PyBytes_AS_STRING(data) + pos

    cdef inline Py_ssize_t born_host_size(self) noexcept:
        return 20 if get32(self._at + 36) & BORN_HOST_V6 else 8

    cdef inline Py_ssize_t store_host_size(self) noexcept:
        return 20 if get32(self._at + 36) & STORE_HOST_V6 else 8

    cdef inline const uint8_t *tail(self) noexcept:
        """The fields behind the hosts."""
        return self._at + 56 + self.born_host_size() + self.store_host_size()

    cdef inline void find_topic(self, Slice *topic) noexcept:
        cdef const uint8_t *p = self.tail()
        p += 16 + <int32_t>get32(p + 12)
        if get32(self._at + 4) == MAGIC_V2:
            topic.size = (<Py_ssize_t>p[0] << 8) | p[1]
            topic.at = p + 2
        else:
            topic.size = p[0]
            topic.at = p + 1

    cdef inline void find_properties(self, Slice *properties) noexcept:
        cdef Slice topic
        cdef const uint8_t *p
        self.find_topic(&topic)
        p = topic.at + topic.size
        properties.at = p + 2
        properties.size = (<Py_ssize_t>p[0] << 8) | p[1]

    @property
    def topic(self):
        cdef Slice topic
        if self._topic is None:
            self.find_topic(&topic)
            self._topic = text(&topic)
        return self._topic

    @topic.setter
    def topic(self, str value):
        self._topic = value

    @property
    def body(self):
        cdef const uint8_t *p
        if get32(self._at + 36) & COMPRESSED:
            body = None if self._unpacked is None else self._unpacked.body
            if body is None:
                body, self._unpacked = unpack(self.raw_body, self.sys_flag)
            return body
        p = self.tail()
        return PyBytes_FromStringAndSize(<const char *>p + 16, <int32_t>get32(p + 12))

    @property
    def tag(self):
        cdef Slice properties
        cdef Known known
        if self._properties is not None:
            return self._properties.get("TAGS")
        self.find_properties(&properties)
        find_known(properties.at, properties.size, &known)
        return text(&known.tags) if known.tags.size else None

    @property
    def properties(self):
        cdef Slice properties
        if self._properties is None:
            self.find_properties(&properties)
            self._properties = properties_of(properties.at, properties.size)
        return self._properties

    @property
    def keys(self):
        return self.properties.get("KEYS", "").split()

    @property
    def sharding_key(self):
        return self.properties.get("__SHARDINGKEY")

    @property
    def delay_level(self):
        level = self.properties.get("DELAY", "0")
        return int(level) if level.isascii() and level.isdigit() and len(level) < 10 else 0

    @property
    def born_host(self):
        return decode_host(self.raw_born_host)

    @property
    def store_host(self):
        return decode_host(self.raw_store_host)

    @property
    def offset_message_id(self):
        host = self.raw_store_host
        ip = len(host) - 4
        return offset_message_id(host[:ip], int.from_bytes(host[ip:], "big"), self.physical_offset)

    @property
    def message_id(self):
        return self.properties.get("UNIQ_KEY") or self.offset_message_id

    @property
    def queue(self):
        return MessageQueue(self.topic, self.broker_name, self.queue_id)

    @property
    def frame_size(self):
        return <int32_t>get32(self._at)

    @property
    def body_crc(self):
        return <int32_t>get32(self._at + 8)

    @property
    def queue_id(self):
        return <int32_t>get32(self._at + 12)

    @property
    def flag(self):
        return <int32_t>get32(self._at + 16)

    @property
    def queue_offset(self):
        return <int64_t>get64(self._at + 20)

    @property
    def physical_offset(self):
        return <int64_t>get64(self._at + 28)

    @property
    def sys_flag(self):
        return <int32_t>get32(self._at + 36)

    @property
    def born_timestamp(self):
        return <int64_t>get64(self._at + 40)

    @property
    def raw_born_host(self):
        return PyBytes_FromStringAndSize(<const char *>self._at + 48, self.born_host_size())

    @property
    def store_timestamp(self):
        return <int64_t>get64(self._at + 48 + self.born_host_size())

    @property
    def raw_store_host(self):
        return PyBytes_FromStringAndSize(<const char *>self._at + 56 + self.born_host_size(),
                                         self.store_host_size())

    @property
    def reconsume_times(self):
        return <int32_t>get32(self.tail())

    @property
    def prepared_offset(self):
        return <int64_t>get64(self.tail() + 4)

    @property
    def stored_body_size(self):
        return <int32_t>get32(self.tail() + 12)

    @property
    def raw_body(self):
        cdef const uint8_t *p = self.tail()
        return PyBytes_FromStringAndSize(<const char *>p + 16, <int32_t>get32(p + 12))

    @property
    def raw_topic(self):
        cdef Slice topic
        self.find_topic(&topic)
        return PyBytes_FromStringAndSize(<const char *>topic.at, topic.size)

    @property
    def raw_properties(self):
        cdef Slice properties
        self.find_properties(&properties)
        return PyBytes_FromStringAndSize(<const char *>properties.at, properties.size)

    @property
    def frame(self):
        """The frame itself, as it lies in the log."""
        return PyBytes_FromStringAndSize(<const char *>self._at, <int32_t>get32(self._at))

    def __repr__(self):
        return (
            f"ReceivedMessage({self.topic!r}, queue {self.queue_id}, offset {self.queue_offset}, "
            f"{self.stored_body_size} B, {self.properties})"
        )

    def __reduce__(self):
        return rebuild, (self.frame, self.broker_name, self._topic)


cdef inline str text(const Slice *raw):
    return PyUnicode_DecodeUTF8(<const char *>raw.at, raw.size, "replace")


cdef dict properties_of(const uint8_t *p, Py_ssize_t size):
    """`properties.decode_properties`, pair by pair: no separator is part of a longer character."""
    cdef const uint8_t *end = p + size
    cdef const uint8_t *pair_end
    cdef const uint8_t *name_end
    cdef Slice name, value
    cdef dict properties = {}
    while p < end:
        pair_end = <const uint8_t *>memchr(p, 2, end - p)
        if pair_end == NULL:
            pair_end = end
        name_end = <const uint8_t *>memchr(p, 1, pair_end - p)
        if name_end != NULL and name_end > p and name_end + 1 < pair_end:
            name.at = p
            name.size = name_end - p
            value.at = name_end + 1
            value.size = pair_end - value.at
            properties[text(&name)] = text(&value)
        p = pair_end + 1
    return properties


cdef Py_ssize_t whole_frames(const uint8_t *start, Py_ssize_t size, bint verify) noexcept nogil:
    """The end of the frames: `size` if all of it is whole frames."""
    cdef Parsed f
    cdef Py_ssize_t pos = 0
    f.shift.size = 0
    while pos < size and parse(start + pos, size - pos, verify, &f) == FRAME:
        pos += f.size
    return pos


def decode_frames(data, bint verify_crc=False, str broker_name not None="", tags=None):
    """The messages of `data`, whole frames only; with `tags` only those that have one of them.

    Messages in bytes and in a ResponseBuffer refer to it; messages in anything else refer to a
    copy.
    """
    cdef object owner = data
    cdef const uint8_t *start
    cdef Py_ssize_t pos = 0, size
    cdef ReceivedMessage message
    cdef list found = []
    if PyMemoryView_Check(data) and type(data.obj) is ResponseBuffer:
        owner = data.obj
        start = <const uint8_t *>PyMemoryView_GET_BUFFER(data).buf
        size = PyMemoryView_GET_BUFFER(data).len
    else:
        if not PyBytes_CheckExact(data):
            owner = bytes(data)
        start = <const uint8_t *>PyBytes_AS_STRING(owner)
        size = PyBytes_GET_SIZE(owner)
    if size >= LONG_BYTES:
        with nogil:
            pos = whole_frames(start, size, verify_crc)
    else:
        pos = whole_frames(start, size, verify_crc)
    if pos != size:
        outcome = decode_frame(data, pos, None, verify_crc)
        raise MalformedFrame(f"no whole frame at byte {pos} of {size}: {outcome}")
    pos = 0
    while pos < size:
        message = ReceivedMessage.__new__(ReceivedMessage)
        message._owner = owner
        message._at = start + pos
        message.broker_name = broker_name
        if not tags or message.tag in tags:
            found.append(message)
        pos += <int32_t>get32(start + pos)
    return found


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


# --- messages to send -------------------------------------------------------------------------------

@cython.no_gc
@cython.freelist(64)
cdef class Message:
    """A message to send. Tag, keys and the rest live in `properties`, as they do on the wire."""

    def __init__(self, topic, body, *, tag=None, keys=(), properties=None, sharding_key=None,
                 int delay_level=0, int flag=0):
        self.topic = topic
        self.body = body
        self.flag = flag
        if properties:
            self._properties = dict(properties)
        if tag:
            self.tag = tag
        if keys:
            self.keys = keys
        if sharding_key:
            self.sharding_key = sharding_key
        if delay_level:
            self.delay_level = delay_level

    @property
    def properties(self):
        if self._properties is None:  # most messages never get one
            self._properties = {}
        return self._properties

    @properties.setter
    def properties(self, dict value not None):
        self._properties = value

    @property
    def tag(self):
        return self.properties.get(_names.TAGS)

    @tag.setter
    def tag(self, value):
        self._set(_names.TAGS, value)

    @property
    def keys(self):
        return self.properties.get(_names.KEYS, "").split()

    @keys.setter
    def keys(self, value):
        self._set(_names.KEYS, value if isinstance(value, str) else _names.KEY_SEPARATOR.join(value))

    @property
    def sharding_key(self):
        return self.properties.get(_names.SHARDING_KEY)

    @sharding_key.setter
    def sharding_key(self, value):
        self._set(_names.SHARDING_KEY, value)

    @property
    def delay_level(self):
        return int(self.properties.get(_names.DELAY, "0"))

    @delay_level.setter
    def delay_level(self, value):
        self._set(_names.DELAY, str(value) if value else None)

    @property
    def unique_id(self):
        """Set by the producer when the message is sent."""
        return self.properties.get(_names.UNIQ_KEY)

    cdef _set(self, name, value):
        if value:
            self.properties[name] = value
        else:
            self.properties.pop(name, None)

    def __repr__(self):
        return f"Message({self.topic!r}, {len(self.body)} B, {self.properties})"

    def __reduce__(self):
        return _message.rebuild, (type(self), self.topic, self.body, self.properties, self.flag)
