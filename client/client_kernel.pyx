# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
"""The hot half of batch.py, compiled; `batch_reference.py` is its readable twin.

It exists for `Outbox.offer`: from the check of the message to the finished entry nothing in it
releases the GIL or runs Python code, so a batch is never seen half written and needs no lock.
Handles and results are not tracked by the garbage collector: a producer holds hundreds of
thousands, and they are in no cycle.
"""

cimport cython
from cpython.bytearray cimport PyByteArray_FromStringAndSize, PyByteArray_Resize
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE,
)
from cpython.dict cimport PyDict_GetItem, PyDict_Next
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport uint8_t
from libc.string cimport memcpy
from saturnmq.protocol.frame_kernel.sending cimport Message, put_entry

from copy import copy

from saturnmq.client.producer.batch_reference import BATCH_COUNT_MAX, EXTRA_BYTES_MAX, ITEM_OVERHEAD
from saturnmq.client.producer.results import SendStatus
from saturnmq.protocol.kernels import put_batch_item
from saturnmq.protocol.properties import CLIENT_PROPERTIES

cdef Py_ssize_t COUNT_MAX = BATCH_COUNT_MAX
cdef object OK = SendStatus.OK
cdef frozenset NOT_ORDINARY = CLIENT_PROPERTIES
cdef Py_ssize_t EXTRA_MAX = EXTRA_BYTES_MAX
cdef Py_ssize_t OVERHEAD = ITEM_OVERHEAD


@cython.final
@cython.no_gc
cdef class SendResult:
    """The place of an acknowledged message."""

    cdef readonly BatchFields batch
    cdef readonly Py_ssize_t index

    def __init__(self, BatchFields batch not None, Py_ssize_t index):
        self.batch = batch
        self.index = index

    @property
    def ok(self):
        """Whether the message is acknowledged in the mode asked for: status is SendStatus.OK."""
        return self.batch.status is OK

    @property
    def status(self):
        return self.batch.status

    @property
    def message_id(self):
        """The UNIQ_KEY, which the producer gave."""
        return self.batch.message_id(self.index)

    @property
    def offset_message_id(self):
        """The id that the broker gave: its address and the physical offset."""
        return self.batch.offset_id(self.index)

    @property
    def queue(self):
        return self.batch.queue

    @property
    def queue_offset(self):
        return self.batch.first_offset + self.index

    def __repr__(self):
        return (f"SendResult({self.status.name}, {self.message_id}, {self.queue}, "
                f"offset {self.queue_offset})")


@cython.final
@cython.no_gc
cdef class SendHandle:
    """A message under way. `result(timeout)` waits for its acknowledgement; a handle of
    `saturnmq.aio` is awaited instead."""

    cdef readonly BatchFields batch
    cdef readonly Py_ssize_t index

    def __init__(self, BatchFields batch not None, Py_ssize_t index):
        self.batch = batch
        self.index = index

    @property
    def message_id(self):
        """The UNIQ_KEY of this message."""
        return self.batch.message_id(self.index)

    def done(self):
        return self.batch.done

    def exception(self):
        """The error of a finished send; None if it succeeded or is still under way."""
        return self.batch.error

    def result(self, timeout=None):
        """The SendResult; raises the error of the send, or RequestTimeout if it takes longer."""
        if not self.batch.done:
            self.batch.wait(timeout)
        if self.batch.error is not None:
            # A copy: every raise would add its traceback to the shared error, and with the frames
            # in it the handles, which hold the batch.
            raise copy(self.batch.error)
        return make_result(self.batch, self.index)

    def __await__(self):
        if not self.batch.done:
            yield from self.batch.lane.owner.wait_async(self.batch).__await__()
        return self.result()

    def add_done_callback(self, callback):
        """Call `callback(self)` on the client's loop when the send is over, or now if it already
        is."""
        callbacks = self.batch.callbacks  # of ProducerBatch
        if callbacks is not None:
            # `Accumulator.finish` sets `done` before it takes the list, and nothing in between here
            # releases the GIL: the call is in that list, or made now.
            if not self.batch.done:
                (<list>callbacks).append(callback)
                (<list>callbacks).append(self)
                return
        elif self.batch.lane.owner.call_when_done(self.batch, callback, self):
            return
        callback(self)


cdef class BatchFields:
    """The entries so far, and the state that all handles of a batch share."""

    cdef public object lane, buffer, given_ids, avoid, error, status, queue, offset_ids, sizes, watchers
    cdef public str properties
    cdef public bytes id_head
    cdef public Py_ssize_t bytes, count, reserved
    cdef public long long born_ms, first_offset
    cdef public int flag, sys_flag, attempts
    cdef public double sent_at, deadline
    cdef public bint single, done, unsure

    def __init__(self, lane, long long born_ms, bytes id_head not None, buffer, bint single):
        self.lane = lane
        self.buffer = buffer
        self.reserved = len(buffer)
        self.id_head = id_head
        self.given_ids = {}
        self.born_ms = born_ms
        self.single = single
        self.properties = ""
        self.status = OK
        self.offset_ids = ""
        self.sizes = b""
        self.watchers = []

    def put(self, body, bytes extra not None, int flag, bint generate):
        """Add an entry; returns its index, or -1 if there is no room. Without `generate`, `extra`
        has a UNIQ_KEY."""
        cdef Py_ssize_t end
        if self.count == COUNT_MAX:
            return -1
        end = put_batch_item(
            self.buffer, self.bytes, body, self.id_head, self.count if generate else -1, extra, flag
        )
        if end < 0:
            return -1
        self.bytes = end
        self.count += 1
        return self.count - 1

    def handle(self, Py_ssize_t index):
        """The handle of message `index`."""
        return make_handle(self, index)

    def result(self, Py_ssize_t index):
        """The result of message `index`; only for a batch that is done without an error."""
        return make_result(self, index)


cdef inline SendHandle make_handle(BatchFields batch, Py_ssize_t index):
    cdef SendHandle handle = SendHandle.__new__(SendHandle)
    handle.batch = batch
    handle.index = index
    return handle


cdef inline SendResult make_result(BatchFields batch, Py_ssize_t index):
    cdef SendResult result = SendResult.__new__(SendResult)
    result.batch = batch
    result.index = index
    return result


cdef class Outbox:
    """The open batches that take messages without further checks: the loop knows them and will come
    for them."""

    cdef readonly dict open  # by topic
    cdef readonly Py_ssize_t alone_from

    def __init__(self, Py_ssize_t alone_from):
        self.open = {}
        self.alone_from = alone_from

    def offer(self, message):
        """Put an ordinary message (no property that means something to the client, a body of bytes
        that is not compressed) into the open batch of its topic. Returns None, and does nothing,
        for any other message, without an open batch, or if that is full."""
        cdef BatchFields batch
        if not isinstance(message, Message):
            return None
        batch = self._open_for(<Message>message)
        if batch is None or not self._put(batch, <Message>message):
            return None
        return make_handle(batch, batch.count - 1)

    def offer_all(self, messages):
        """As `offer`, all messages or none of them; they have one topic. Returns their handles."""
        cdef BatchFields batch
        cdef Py_ssize_t count, size
        cdef list given = list(messages)  # may run code of the caller's; from here on nothing does
        if not given or not isinstance(given[0], Message):
            return None
        batch = self._open_for(<Message>given[0])
        if batch is None:
            return None
        count, size = batch.count, batch.bytes
        topic = (<Message>given[0]).topic
        for message in given:
            if (
                not isinstance(message, Message)
                or not has_topic(<Message>message, topic)
                or not self._put(batch, <Message>message)
            ):
                batch.count, batch.bytes = count, size
                return None
        return [make_handle(batch, index) for index in range(count, batch.count)]

    cdef BatchFields _open_for(self, Message message):
        """The open batch of the message's topic, or None."""
        cdef PyObject *found
        if type(message.topic) is not str:
            return None
        found = PyDict_GetItem(self.open, message.topic)
        return None if found is NULL else <BatchFields>found

    cdef bint _put(self, BatchFields batch, Message message):
        """Put an ordinary message into `batch`; False, and nothing is done, if it is not ordinary
        or has no room."""
        cdef Py_ssize_t size
        cdef bytes extra
        if batch.count == COUNT_MAX or not PyBytes_CheckExact(message._body):
            return False
        size = PyBytes_GET_SIZE(message._body)
        if size == 0 or size >= self.alone_from:
            return False
        extra = extra_of(message)
        return extra is not None and put_message(batch, message, extra)


cdef inline bint has_topic(Message message, str topic):
    return message.topic is topic or (type(message.topic) is str and message.topic == topic)


cdef inline bytes extra_of(Message message):
    """The encoded properties; None if they are not those of an ordinary message."""
    if message._properties is None or not message._properties:
        return b""
    return plain_properties(message._properties)


cdef inline bint put_message(BatchFields batch, Message message, bytes extra):
    """Add an entry for a message with a body of bytes; False if there is no room."""
    cdef Py_ssize_t end = put_entry(
        <bytearray>batch.buffer, batch.bytes, <const uint8_t *>PyBytes_AS_STRING(message._body),
        PyBytes_GET_SIZE(message._body), batch.id_head, batch.count, extra, message.flag,
    )
    if end < 0:
        return False
    batch.bytes = end
    batch.count += 1
    return True


def pack(BatchFields batch not None, messages, str topic not None, Py_ssize_t most):
    """Put ordinary messages of `topic` (see `Outbox.offer`) into `batch`, which is empty. False
    if one is not ordinary, or the batch would have more than `most` bytes: then it is of no use."""
    cdef Message fields
    cdef Py_ssize_t size, room = 0, total = 0
    cdef bytes extra
    cdef bytearray buffer
    cdef list given = list(messages)
    if len(given) > COUNT_MAX:
        return False
    for message in given:
        if not isinstance(message, Message):
            return False
        fields = <Message>message
        if not PyBytes_CheckExact(fields._body):
            return False
        room += OVERHEAD + PyBytes_GET_SIZE(fields._body)
    if room > most:
        return False
    batch.buffer = buffer = PyByteArray_FromStringAndSize(NULL, room)
    for message in given:
        fields = <Message>message
        extra = extra_of(fields)
        if extra is None or not has_topic(fields, topic):
            return False
        if not PyBytes_CheckExact(fields._body):
            return False
        size = PyBytes_GET_SIZE(fields._body)
        total += OVERHEAD + size + PyBytes_GET_SIZE(extra)
        if size == 0 or total > most:
            return False
        if total > len(buffer):
            PyByteArray_Resize(buffer, min(most, total + total // 2))
        if not put_message(batch, fields, extra):
            return False
    batch.reserved = len(buffer)
    return True


def handles_of(BatchFields batch not None):
    """The handles of all messages."""
    return [make_handle(batch, index) for index in range(batch.count)]


def results_of(BatchFields batch not None):
    """The results of all messages; only for a batch that is done without an error."""
    return [make_result(batch, index) for index in range(batch.count)]


cdef bytes plain_properties(dict properties):
    """The encoded properties; None if one means something to the client or cannot be encoded."""
    cdef PyObject *key
    cdef PyObject *value
    cdef Py_ssize_t pos = 0, total = 0, key_size, value_size
    cdef const char *text
    cdef char *out
    cdef bytes extra
    while PyDict_Next(properties, &pos, &key, &value):
        if type(<object>key) is not str or type(<object>value) is not str:
            return None
        if <object>key in NOT_ORDINARY:
            return None
        try:
            if not (is_plain(key, &key_size) and is_plain(value, &value_size)):
                return None
        except UnicodeEncodeError:
            return None
        total += key_size + value_size + 2
    if total > EXTRA_MAX:
        return None
    extra = PyBytes_FromStringAndSize(NULL, total)
    out = PyBytes_AS_STRING(extra)
    pos = 0
    while PyDict_Next(properties, &pos, &key, &value):
        text = PyUnicode_AsUTF8AndSize(<object>key, &key_size)
        memcpy(out, text, key_size)
        out[key_size] = 1
        out += key_size + 1
        text = PyUnicode_AsUTF8AndSize(<object>value, &value_size)
        memcpy(out, text, value_size)
        out[value_size] = 2
        out += value_size + 1
    return extra


cdef inline bint is_plain(PyObject *name, Py_ssize_t *size) except -1:
    """Whether a name or a value needs no further look: it is not empty, and holds neither a byte
    that ends names or values nor a zero. UnicodeEncodeError: it has no UTF-8."""
    cdef const char *text = PyUnicode_AsUTF8AndSize(<object>name, size)
    cdef Py_ssize_t index
    cdef uint8_t marked = 0
    for index in range(size[0]):  # without a way out, so that it is done many bytes at a time
        marked |= <uint8_t>text[index] <= 2
    return size[0] > 0 and not marked
