# What reads frames elsewhere uses of this module without a detour through Python.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from saturnmq.protocol.frame_kernel.crc cimport Shift
from saturnmq.protocol.frame_kernel.layout cimport Slice


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
    Shift shift


cdef Status parse(const uint8_t *p, Py_ssize_t left, bint verify, Parsed *f) noexcept nogil


cdef struct Known:
    # The properties that dispatch looks at; size 0 = absent.
    Slice tags
    Slice keys
    Slice unique
    Slice delay


cdef void find_known(const uint8_t *p, Py_ssize_t size, Known *k) noexcept nogil


cdef uint32_t crc_of(const uint8_t *data, Py_ssize_t size) noexcept nogil
cdef struct Whole:
    Py_ssize_t end  # of them
    Py_ssize_t count
    bint wraps  # one of them holds a batch of messages


cdef void find_whole(const uint8_t *start, Py_ssize_t size, bint verify, int32_t *sizes,
                     Whole *found) noexcept nogil
