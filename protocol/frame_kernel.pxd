# What the other kernels use of frame_kernel without a detour through Python.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef extern from *:
    """
    #include <stdint.h>

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
    uint32_t get32(const uint8_t *p) nogil
    uint64_t get64(const uint8_t *p) nogil
    void put32(uint8_t *p, uint32_t v) nogil
    void put64(uint8_t *p, uint64_t v) nogil


cdef class Message:
    cdef public object topic, body
    cdef public int flag
    cdef dict _properties
    cdef _set(self, name, value)


cdef Py_ssize_t put_entry(bytearray buffer, Py_ssize_t at, const uint8_t *body, Py_ssize_t body_size,
                          bytes id_head, Py_ssize_t number, bytes extra, int flag) noexcept
cdef uint32_t crc_of(const uint8_t *data, Py_ssize_t size) noexcept nogil


cdef struct Shift:
    # What joins a body's CRC to the CRC before it, by the body's size: batches repeat sizes.
    Py_ssize_t size
    uint32_t by


cdef enum Status:
    FRAME
    END
    BLANK
    MORE
    DAMAGE
    DAMAGE_TOPIC
    DAMAGE_OFFSET
    DAMAGE_TORN


cdef struct Parsed:
    Py_ssize_t size
    uint32_t sys_flag
    int64_t store_ts
    const uint8_t *body
    Py_ssize_t body_size
    const uint8_t *topic
    Py_ssize_t topic_size
    const uint8_t *properties
    Py_ssize_t properties_size
    Shift shift  # `size` is 0 before the first frame


cdef Status parse(const uint8_t *p, Py_ssize_t left, bint verify, Parsed *f) noexcept nogil


cdef struct Slice:
    const uint8_t *at
    Py_ssize_t size


cdef struct Known:
    # The properties that dispatch looks at; size 0 = absent.
    Slice tags
    Slice keys
    Slice unique
    Slice delay


cdef void find_known(const uint8_t *p, Py_ssize_t size, Known *k) noexcept nogil
