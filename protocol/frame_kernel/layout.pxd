# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
# The layout of frames and of batch entries, and buffers that are borrowed. All of it is compiled into each
# module that uses it: there is no module `layout`, and using it is no call into another module.
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp

cdef extern from *:
    """
    #include <stdint.h>

    #define MAGIC_V1 0xDAA320A7u
    #define MAGIC_V2 0xDAA320ABu
    #define BLANK_MAGIC 0xCBD43194u

    /* Compilers turn each of these into one load or store with a byte swap. */
    static inline uint32_t get32(const uint8_t *p)
    {
        return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    }
    static inline uint64_t get64(const uint8_t *p)
    {
        return (uint64_t)get32(p) << 32 | get32(p + 4);
    }
    static inline void put32(uint8_t *p, uint32_t v)
    {
        p[0] = (uint8_t)(v >> 24); p[1] = (uint8_t)(v >> 16); p[2] = (uint8_t)(v >> 8); p[3] = (uint8_t)v;
    }
    static inline void put64(uint8_t *p, uint64_t v)
    {
        put32(p, (uint32_t)(v >> 32)); put32(p + 4, (uint32_t)v);
    }
    """
    const uint32_t MAGIC_V1, MAGIC_V2, BLANK_MAGIC
    uint32_t get32(const uint8_t *p) nogil
    uint64_t get64(const uint8_t *p) nogil
    void put32(uint8_t *p, uint32_t v) nogil
    void put64(uint8_t *p, uint64_t v) nogil

cdef enum:
    FRAME_BYTES_MIN = 91
    BODY_AT = 88  # with IPv4 hosts
    ENTRY_BYTES_MIN = 22
    ENTRY_HEAD_BYTES = 20
    CRC_PROPERTY_BYTES = 20
    PROPERTIES_BYTES_MAX = 32767
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    LONG_BYTES = 65536  # about 10 us of work; below it releasing the GIL costs more than it gives


cdef struct Slice:
    const uint8_t *at
    Py_ssize_t size


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


cdef inline bint has_crc_property(const uint8_t *properties, Py_ssize_t size) noexcept nogil:
    """Whether the last property is a frame's CRC."""
    cdef const uint8_t *at = properties + size - CRC_PROPERTY_BYTES
    return (size >= CRC_PROPERTY_BYTES and at[CRC_PROPERTY_BYTES - 1] == 2
            and memcmp(at, b"__CRC32#\x01", 9) == 0
            and (size == CRC_PROPERTY_BYTES or properties[size - CRC_PROPERTY_BYTES - 1] == 2))


cdef inline bint is_torn(const uint8_t *properties, Py_ssize_t size) noexcept nogil:
    """Whether zeros lie where the CRC property was, or the 0x02 before it."""
    cdef Py_ssize_t last = min(size, CRC_PROPERTY_BYTES + 1)
    return (not has_crc_property(properties, size)
            and memchr(properties + size - last, 0, last) != NULL)


cdef inline Py_ssize_t own_properties(const uint8_t *properties, Py_ssize_t size) noexcept nogil:
    """Bytes without the CRC property of the frame they were taken from."""
    return size - CRC_PROPERTY_BYTES if has_crc_property(properties, size) else size


cdef inline Slice frame_properties(const uint8_t *frame, Py_ssize_t size) noexcept nogil:
    """As `frame.frame_properties`: `at` is NULL where the lengths contradict each other."""
    cdef Slice found
    cdef uint32_t flags
    cdef Py_ssize_t at = BODY_AT
    found.at, found.size = NULL, 0
    if size < FRAME_BYTES_MIN:
        return found
    flags = get32(frame + 36)
    at += 12 * ((flags & BORN_HOST_V6 != 0) + (flags & STORE_HOST_V6 != 0))
    if at >= size:
        return found
    at += get32(frame + at - 4)
    if at >= size:
        return found
    if get32(frame + 4) == MAGIC_V2:
        if at + 1 >= size:
            return found
        at += 2 + (<Py_ssize_t>frame[at] << 8 | frame[at + 1]) + 2
    else:
        at += 1 + frame[at] + 2
    if at <= size and size - at == (frame[at - 2] << 8 | frame[at - 1]):
        found.at, found.size = frame + at, size - at
    return found
