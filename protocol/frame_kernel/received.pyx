# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
"""Messages as a consumer gets them: windows on the memory of a response.

The readable twin: `received_reference.py`. No Python object is made per message except the views
`decode_frames` is asked for.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE,
)
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.memoryview cimport PyMemoryView_Check, PyMemoryView_GET_BUFFER
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.unicode cimport PyUnicode_DecodeUTF8, PyUnicode_GET_LENGTH
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcmp, memset

from saturnmq.protocol.compression import COMPRESSED_FLAG, unpack
from saturnmq.protocol.frame import decode_frame
from saturnmq.protocol.ids import decode_host, offset_message_id
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.protocol.received_reference import rebuild
from saturnmq.runtime.errors import MalformedFrame

from saturnmq.protocol.frame_kernel.layout cimport (
    BORN_HOST_V6, FRAME_BYTES_MIN, LONG_BYTES, MAGIC_V2, STORE_HOST_V6, Slice, get32, get64,
)
from saturnmq.protocol.frame_kernel.scanning cimport (
    FRAME, Known, Parsed, Whole, find_known, find_whole, parse,
)

cdef extern from "Python.h":
    bint PyUnicode_IS_COMPACT_ASCII(object text)
    void *PyUnicode_DATA(object text)
    void PyUnicode_InternInPlace(PyObject **text)
    Py_ssize_t references "Py_REFCNT"(PyObject *)

cdef uint8_t[128] NOTHING
memset(NOTHING, 0, sizeof(NOTHING))
cdef uint32_t COMPRESSED = COMPRESSED_FLAG


# --- the memory of a response -----------------------------------------------------------------------

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


# --- messages ---------------------------------------------------------------------------------------

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
    cdef int32_t _in_place  # attempts since it was delivered

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
        cdef Slice properties
        cdef Known known
        if self._properties is not None:
            return self._properties.get("KEYS", "").split()
        self.find_properties(&properties)
        find_known(properties.at, properties.size, &known)
        return text(&known.keys).split() if known.keys.size else []

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
        cdef Slice properties
        cdef Known known
        if self._properties is not None:
            return self._properties.get("UNIQ_KEY") or self.offset_message_id
        self.find_properties(&properties)
        find_known(properties.at, properties.size, &known)
        return text(&known.unique) if known.unique.size else self.offset_message_id

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
        return <int32_t>get32(self.tail()) + self._in_place

    @reconsume_times.setter
    def reconsume_times(self, int32_t value):
        self._in_place = value - <int32_t>get32(self.tail())

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
        return PyBytes_FromStringAndSize(<const char *>self._at, <int32_t>get32(self._at))

    def __repr__(self):
        return (
            f"ReceivedMessage({self.topic!r}, queue {self.queue_id}, offset {self.queue_offset}, "
            f"{self.stored_body_size} B, {self.properties})"
        )

    def __reduce__(self):
        return rebuild, (self.frame, self.broker_name, self._topic, self.reconsume_times)


cdef inline str text(const Slice *raw):
    return PyUnicode_DecodeUTF8(<const char *>raw.at, raw.size, "replace")


cdef enum:
    SHARED = 256
    SHARED_BYTES_MAX = 32
    SHARED_VALUE_MAX = 8  # longer ones are mostly ids

cdef list shared_names = [None] * SHARED
cdef list shared_values = [None] * SHARED


cdef str shared(list table, const Slice *raw, bint name):
    """The text of `raw`, from `table` if it is there: names, and many values, come again and again.
    Each text has one place, which the last one has that was asked for; names are interned."""
    cdef PyObject *found, *fresh
    cdef Py_ssize_t size = raw.size
    cdef int place
    cdef str made
    if size > SHARED_BYTES_MAX:
        return text(raw)
    place = (size * 37 + raw.at[0] * 5 + raw.at[size >> 1] * 11 + raw.at[size - 1] * 3) & (SHARED - 1)
    found = PyList_GET_ITEM(table, place)
    if (<object>found is not None and PyUnicode_GET_LENGTH(<object>found) == size
            and memcmp(PyUnicode_DATA(<object>found), raw.at, size) == 0):
        return <str>found
    made = text(raw)
    if PyUnicode_IS_COMPACT_ASCII(made):
        if name:
            fresh = <PyObject *>made
            Py_INCREF(made)
            PyUnicode_InternInPlace(&fresh)
            made = <str>fresh
            Py_DECREF(made)
        table[place] = made
    return made


cdef dict properties_of(const uint8_t *p, Py_ssize_t size):
    """`properties.decode_properties`, pair by pair: no separator is part of a longer character."""
    cdef const uint8_t *end = p + size, *pair_end, *name_end
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
            properties[shared(shared_names, &name, True)] = (
                shared(shared_values, &value, False) if value.size <= SHARED_VALUE_MAX else text(&value)
            )
        p = pair_end + 1
    return properties


def decode_frames(data, bint verify_crc=False, str broker_name not None="", tags=None):
    """The messages of `data`, whole frames only; with `tags` only those that have one of them.

    Messages in bytes and in a ResponseBuffer refer to it, all others to a copy.
    """
    return decode(data, verify_crc, broker_name, tags, False)


def decode_plain(data, bint verify_crc=False, str broker_name not None="", tags=None):
    """`received_reference.decode_plain`: the same in one look at the frames, or None."""
    return decode(data, verify_crc, broker_name, tags, True)


cdef list decode(data, bint verify_crc, str broker_name, tags, bint plain):
    cdef object owner = data
    cdef const uint8_t *start
    cdef Py_ssize_t pos = 0, size, i
    cdef int32_t *sizes
    cdef Whole whole
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
    sizes = <int32_t *>malloc((size // FRAME_BYTES_MIN + 1) * sizeof(int32_t))
    if sizes == NULL:
        raise MemoryError(f"no memory for the sizes of the frames in {size} B")
    try:
        if size >= LONG_BYTES:
            with nogil:
                find_whole(start, size, verify_crc, sizes, &whole)
        else:
            find_whole(start, size, verify_crc, sizes, &whole)
        if plain and whole.wraps:
            return None
        if whole.end != size:
            outcome = decode_frame(data, whole.end, None, verify_crc)
            raise MalformedFrame(f"no whole frame at byte {whole.end} of {size}: {outcome}")
        for i in range(whole.count):
            message = ReceivedMessage.__new__(ReceivedMessage)
            message._owner = owner
            message._at = start + pos
            message.broker_name = broker_name
            if not tags or message.tag in tags:
                found.append(message)
            pos += sizes[i]
    finally:
        free(sizes)
    return found


@cython.final
cdef class Upcoming:
    """`received_reference.upcoming`."""

    cdef list _messages
    cdef Py_ssize_t _next
    cdef Py_ssize_t _holders  # references to the message that was given last, before it was

    def __cinit__(self, list messages not None):
        self._messages = messages

    def __iter__(self):
        return self

    def __next__(self):
        cdef Py_ssize_t at = self._next, holders = self._holders
        cdef PyObject *found = NULL
        cdef PyObject *last = PyList_GET_ITEM(self._messages, at - 1) if at else NULL
        if at < PyList_GET_SIZE(self._messages):
            found = PyList_GET_ITEM(self._messages, at)
            self._next, self._holders = at + 1, references(found)
        # The state is right now, whatever runs when an object goes. The caller holds the last, too.
        if last != NULL and references(last) <= holders + 1 and type(<object>last) is ReceivedMessage:
            (<ReceivedMessage>last)._properties = (<ReceivedMessage>last)._unpacked = None
        if found == NULL:
            raise StopIteration
        return <object>found
