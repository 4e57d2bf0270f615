# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
"""Messages to send, and the entries that they become in the body of a batch.

The readable twins: `message_reference.py` and `put_batch_item` of `batch.py`. The client's kernel
writes entries by `put_entry`, which never goes beyond the end of the buffer.
"""

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy

from saturnmq.protocol import batch as _batch
from saturnmq.protocol import message_reference as _message
from saturnmq.protocol import properties as _names

from saturnmq.protocol.frame_kernel.crc cimport CRC_MASK, saturnmq_crc32, saturnmq_crc32_setup
from saturnmq.protocol.frame_kernel.layout cimport (
    ENTRY_BYTES_MIN, ENTRY_HEAD_BYTES, PROPERTIES_BYTES_MAX, Bytes, hold, put32, release,
)

saturnmq_crc32_setup()

cdef str TAGS = _names.TAGS
cdef str KEYS = _names.KEYS
cdef str SHARDING_KEY = _names.SHARDING_KEY
cdef str DELAY = _names.DELAY


# --- messages ---------------------------------------------------------------------------------------

@cython.no_gc
@cython.freelist(64)
cdef class Message:
    """A message to send. Tag, keys and the rest live in `properties`, as they do on the wire."""

    def __init__(self, topic, body, *, tag=None, keys=(), properties=None, sharding_key=None,
                 delay_level=0, int flag=0):
        if not isinstance(topic, str):
            _message.refuse("topic", topic, "give its name as text")
        self.topic = topic
        self._body = body if PyBytes_CheckExact(body) else _message.plain_body(body)
        self.flag = flag
        if properties:
            self._properties = dict(properties)
        # Not by the setters: those would take Python's way from here.
        if tag:
            self._set(TAGS, tag)
        if keys:
            self._set(KEYS, keys if isinstance(keys, str) else _message.joined_keys(keys))
        if sharding_key:
            self._set(SHARDING_KEY, sharding_key)
        if delay_level:
            self._set(DELAY, _message.level_text(delay_level))

    @property
    def body(self):
        return self._body

    @body.setter
    def body(self, value):
        self._body = value if PyBytes_CheckExact(value) else _message.plain_body(value)

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
        return self.properties.get(TAGS)

    @tag.setter
    def tag(self, value):
        self._set(TAGS, value)

    @property
    def keys(self):
        return self.properties.get(KEYS, "").split()

    @keys.setter
    def keys(self, value):
        self._set(KEYS, value if isinstance(value, str) else _message.joined_keys(value))

    @property
    def sharding_key(self):
        return self.properties.get(SHARDING_KEY)

    @sharding_key.setter
    def sharding_key(self, value):
        self._set(SHARDING_KEY, value)

    @property
    def delay_level(self):
        return int(self.properties.get(DELAY, "0"))

    @delay_level.setter
    def delay_level(self, value):
        self._set(DELAY, _message.level_text(value) if value else None)

    @property
    def unique_id(self):
        """Set by the producer when the message is sent."""
        return self.properties.get(_names.UNIQ_KEY)

    cdef _set(self, name, value):
        if self._properties is None:
            self._properties = {}
        if value:
            if not isinstance(value, str):
                _message.refuse(name, value, "give text")
            self._properties[name] = value
        else:
            self._properties.pop(name, None)

    def __repr__(self):
        return f"Message({self.topic!r}, {len(self.body)} B, {self.properties})"

    def __reduce__(self):
        return _message.reduced(self)


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
    put32(p + 8, saturnmq_crc32(0, body, body_size) & CRC_MASK)
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
