# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
# The CRC-32 of frames. A module that uses it is linked with crc32.c (setup.py) and calls
# saturnmq_crc32_setup() when it is loaded: each has its own tables, and no call leaves the module.
from libc.stdint cimport uint8_t, uint32_t

cdef extern from "crc32.h":
    void saturnmq_crc32_setup()
    int saturnmq_crc32_is_hardware()
    uint32_t saturnmq_crc32(uint32_t crc, const uint8_t *data, size_t size) nogil
    uint32_t saturnmq_crc32_portable(uint32_t crc, const uint8_t *data, size_t size) nogil
    uint32_t saturnmq_crc32_shift(size_t size) nogil
    uint32_t saturnmq_crc32_join(uint32_t crc_a, uint32_t crc_b, uint32_t shift_b) nogil
    uint32_t saturnmq_crc32_join_portable(uint32_t crc_a, uint32_t crc_b, uint32_t shift_b)


cdef enum:
    CRC_MASK = 0x7FFFFFFF  # RocketMQ keeps a CRC without its sign
    JOINED_BYTES = 256  # bodies from here on are not read again for the frame's CRC


cdef struct Shift:
    # What joins a body's CRC to the CRC before it, by the body's size: batches repeat sizes.
    Py_ssize_t size  # 0 before the first body
    uint32_t by


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
