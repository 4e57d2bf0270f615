# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
"""From the bytes of a frame to a command in one call: a request with its typed header, an answer
with its fields as texts.

The reference is `remoting.parse_frame`, and for a request `Header.decode` behind it;
`command_reading.py` chooses. The readers take what clients and brokers usually write, requests in
either encoding, and nothing else: for everything unusual (an unknown field of the command, numbers
among texts, a request's name that comes twice or value outside of its bounds, a damaged frame) they
return None, and the reference decides. So no answer to a bad request is made here. The bounds are
those of the schema: `Fields` copies them from it.

Memory: every length is checked against what is left before it is used. Nothing is kept of the
frame but a copy of its header.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcmp
from saturnmq.protocol.json_text cimport (
    Text, as_number, as_text, is_ascii, is_plain_name, is_text, number_at, text_at,
)

from saturnmq.protocol.header_fields import (
    REQUIRED,
    FlagField,
    NumberField,
    TextField,
)
from saturnmq.protocol.remoting import FLAG_RESPONSE, LANGUAGES, MAX_FIELDS, MAX_HEADER
from saturnmq.protocol.remoting import Command as Answer

cdef enum:
    FIELDS_MOST = 32

cdef enum Kind:
    OTHER
    NUMBER
    TEXT
    NAME
    FLAG

cdef enum Part:  # of a command, by its name in JSON
    CODE = 1
    EXT = 2
    FLAGS = 4
    LANGUAGE = 8
    OPAQUE = 16
    VERSION = 32
    ENCODING = 64
    REMARK = 128

cdef Py_ssize_t HEADER_MOST = MAX_HEADER
cdef Py_ssize_t NAMES_MOST = MAX_FIELDS
cdef int RESPONSE = FLAG_RESPONSE
cdef tuple KNOWN = LANGUAGES
cdef dict NUMBERS = {name.encode(): number for number, name in enumerate(LANGUAGES)}
cdef uint32_t UNNAMED = LANGUAGES.index("JAVA")
cdef object MUST = REQUIRED


cdef struct Field:
    Kind kind
    const char *name
    Py_ssize_t name_size
    const char *long_name
    Py_ssize_t long_size  # -1 if there is none: a name that came may be empty
    int64_t least, most


cdef struct Command:
    int64_t code, flag, opaque, version
    uint32_t language  # its number; those of unknown ones are higher
    Text remark
    Text values[FIELDS_MOST]
    uint32_t found, found_long  # bits by field


cdef class Taker:
    """Takes the fields of a header, one after the other."""

    cdef int take(self, Command *command, const Text *name, const Text *value) except -1:
        """Note the value of a field; 0 if the reference has to read it."""
        return 0


cdef class Fields(Taker):
    """A kind of header: its fields as the schema has them."""

    cdef object header
    cdef Field fields[FIELDS_MOST]
    cdef Py_ssize_t count
    cdef list attributes, defaults, kept

    def __init__(self, header):
        cdef Field *field
        cdef bytes name
        self.header = header
        self.attributes, self.defaults, self.kept = [], [], []
        for attribute, given in header.FIELDS.items():
            if self.count == FIELDS_MOST:
                raise ValueError(f"{header.__name__} has more than {FIELDS_MOST} fields")
            field = &self.fields[self.count]
            name = given.name.encode()
            self.kept.append(name)
            field.name, field.name_size = PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)
            field.long_name, field.long_size = NULL, -1
            if given.long is not None:
                name = given.long.encode()
                self.kept.append(name)
                field.long_name, field.long_size = PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)
            field.kind = OTHER
            field.least = field.most = 0
            if isinstance(given, NumberField):
                field.kind = NUMBER
                field.least, field.most = given.least, given.most
            elif isinstance(given, TextField):
                field.kind = NAME if given.is_name else TEXT
                field.most = given.most
            elif isinstance(given, FlagField):
                field.kind = FLAG
            self.attributes.append(attribute)
            self.defaults.append(given.default)
            self.count += 1

    cdef int take(self, Command *command, const Text *name, const Text *value) except -1:
        cdef Py_ssize_t at
        cdef const Field *field
        cdef uint32_t bit
        for at in range(self.count):
            field = &self.fields[at]
            if not (
                name.size == field.name_size and memcmp(name.at, field.name, name.size) == 0
                or name.size == field.long_size and memcmp(name.at, field.long_name, name.size) == 0
            ):
                continue
            bit = <uint32_t>1 << at
            if command.found & bit:
                return 0
            command.found |= bit
            command.values[at] = value[0]
            return 1
        return value.ascii  # nobody reads it; other bytes may be no UTF-8

    cdef object made(self, Command *command):
        """The header; None if a value needs the reference."""
        cdef Py_ssize_t at
        cdef const Field *field
        cdef Text *value
        cdef object taken
        cdef int64_t number
        found = self.header.__new__(self.header)
        for at in range(self.count):
            field, value = &self.fields[at], &command.values[at]
            if not command.found >> at & 1 or value.size == 0:
                taken = self.defaults[at]
                if taken is MUST:
                    return None
            elif field.kind == NUMBER:
                if not as_number(value, &number) or number < field.least or number > field.most:
                    return None
                taken = number
            elif field.kind == TEXT or field.kind == NAME:
                if field.kind == NAME and not is_plain_name(value) or value.size > field.most:
                    return None
                taken = as_text(value)
                if taken is None:
                    return None
            elif field.kind == FLAG:
                if is_text(value, b"false", 5):
                    taken = False
                elif is_text(value, b"true", 4):
                    taken = True
                else:
                    return None
            else:
                return None
            setattr(found, self.attributes[at], taken)
        return found


@cython.freelist(4)
cdef class Texts(Taker):
    """The fields of one answer, whatever they are."""

    cdef dict found

    def __cinit__(self):
        self.found = {}

    cdef int take(self, Command *command, const Text *name, const Text *value) except -1:
        cdef object key, taken
        key, taken = as_text(name), as_text(value)
        if key is None or taken is None:
            return 0
        self.found[key] = taken
        return 1


cdef uint32_t get32(const uint8_t *p) noexcept:
    return <uint32_t>p[0] << 24 | <uint32_t>p[1] << 16 | <uint32_t>p[2] << 8 | p[3]


cdef uint32_t language_of(const Text *text):
    """The number of a language; that behind the last one if it is unknown."""
    return NUMBERS.get(PyBytes_FromStringAndSize(<const char *>text.at, text.size), len(KNOWN))


cdef class Reader:
    """Reads the requests of these codes, each with the header that the schema has for it."""

    cdef dict plans
    cdef object request

    def __init__(self, headers, request):
        """`headers` by request code; `request` is the class of what is read."""
        self.plans = {int(code): Fields(header) for code, header in headers.items()}
        self.request = request

    def read(self, frame):
        """The request in a whole frame, its body a slice of it; None: the reference has to read
        it."""
        cdef Py_buffer buffer
        cdef Command command
        cdef Fields fields
        cdef Py_ssize_t head
        cdef object raw
        PyObject_GetBuffer(frame, &buffer, PyBUF_SIMPLE)
        try:
            head = head_size(<const uint8_t *>buffer.buf, buffer.len)
            if head == 0:
                return None
            fields = self.parsed(<const uint8_t *>buffer.buf, head, &command)
            if fields is None:
                return None
            header = fields.made(&command)
            if header is None:
                return None
            raw = PyBytes_FromStringAndSize(<const char *>buffer.buf, head)
        finally:
            PyBuffer_Release(&buffer)
        found = bare_command(self.request, &command)
        found.body = frame[head:]
        found.header = header
        found.head = raw
        return found

    cdef Fields parsed(self, const uint8_t *frame, Py_ssize_t head, Command *command):
        """The parts of the command and of its header, whose kind is the result; None: it needs the
        reference."""
        if frame[4] == 0:
            return json_head(frame + 8, frame + head, command, self.plans, None)
        if frame[4] == 1:
            return self.binary(frame + 8, frame + head, command)
        return None

    cdef Fields binary(self, const uint8_t *p, const uint8_t *end, Command *command):
        cdef Text name, value
        cdef Fields fields
        cdef Py_ssize_t names = 0
        cdef uint32_t size
        if end - p < 21:
            return None
        command.found = 0
        command.code = <int64_t><short>(<int>p[0] << 8 | p[1])
        command.language = p[2]  # a negative one is unknown, too
        command.version = <short>(<int>p[3] << 8 | p[4])
        command.opaque = <int>get32(p + 5)
        command.flag = <int>get32(p + 9)
        if get32(p + 13) != 0:
            return None  # a remark
        fields = self.plans.get(command.code)
        if fields is None or command.flag & RESPONSE:
            return None
        size = get32(p + 17)
        p += 21
        if size != end - p:
            return None
        name.escaped = value.escaped = False
        while p < end:
            names += 1
            if end - p < 2 or names > NAMES_MOST:
                return None
            size = <uint32_t>p[0] << 8 | p[1]
            p += 2
            if size > 0x7FFF or size == 0 or size > end - p:
                return None
            name.at, name.size = p, size
            p += size
            if end - p < 4:
                return None
            size = get32(p)
            p += 4
            if size > 0x7FFFFFFF or size > end - p:
                return None
            value.at, value.size = p, size
            p += size
            value.ascii = is_ascii(&value)
            if not is_ascii(&name) or not fields.take(command, &name, &value):
                return None
        return fields


def read_answer(frame):
    """The answer in a whole frame, its body a slice of it; None: the reference has to read it."""
    cdef Py_buffer buffer
    cdef Command command
    cdef Texts texts = Texts.__new__(Texts)
    cdef const uint8_t *start
    cdef Py_ssize_t head
    PyObject_GetBuffer(frame, &buffer, PyBUF_SIMPLE)
    try:
        start = <const uint8_t *>buffer.buf
        head = head_size(start, buffer.len)
        if head == 0 or start[4] != 0:
            return None
        if json_head(start + 8, start + head, &command, None, texts) is None:
            return None
        remark = None
        if command.remark.at is not NULL:
            remark = as_text(&command.remark)
            if remark is None:
                return None
    finally:
        PyBuffer_Release(&buffer)
    found = bare_command(Answer, &command)
    found.remark = remark
    found.body = frame[head:]
    found.ext = texts.found
    return found


cdef object bare_command(kind, const Command *command):
    """A command of this kind, without its fields and its body."""
    found = kind.__new__(kind)
    found.code = command.code
    found.flag = command.flag
    found.opaque = command.opaque
    found.version = command.version
    found.language = KNOWN[command.language] if command.language < <uint32_t>len(KNOWN) else None
    found.remark = None
    found.more = ()
    return found


cdef Taker json_head(const uint8_t *p, const uint8_t *end, Command *command, dict plans,
                     Texts answer):
    """Read a command in JSON: a request, whose kind of header its code chooses among `plans`, or an
    answer, into `answer`. The taker of its fields; None: it needs the reference."""
    cdef Text name, value
    cdef Taker fields = answer
    cdef int seen = 0, part
    command.flag = command.opaque = command.version = command.code = 0
    command.language = UNNAMED
    command.found = 0
    command.remark.at = NULL
    if p >= end or p[0] != c"{":
        return None
    while True:
        p = text_at(p + 1, end, &name)
        if p is NULL or p >= end or p[0] != c":":
            return None
        p += 1
        part = part_of(&name)
        if part == 0 or seen & part:
            return None
        seen |= part
        if part == CODE:
            p = number_at(p, end, &command.code)
            if p is NULL:
                return None
            if answer is None:
                fields = plans.get(command.code)
                if fields is None:
                    return None
        elif part == FLAGS:
            p = number_at(p, end, &command.flag)
        elif part == OPAQUE:
            p = number_at(p, end, &command.opaque)
        elif part == VERSION:
            p = number_at(p, end, &command.version)
        elif part == EXT:
            if fields is None:
                return None
            p = ext_at(p, end, fields, command)
        elif part == REMARK:
            if answer is None:
                return None
            p = text_at(p, end, &command.remark)
        else:
            p = text_at(p, end, &value)
            if p is NULL or not value.ascii or value.escaped:
                return None
            if part == LANGUAGE:
                command.language = language_of(&value)
        if p is NULL or p >= end:
            return None
        if p[0] == c"}":
            break
        if p[0] != c",":
            return None
    if p + 1 != end or fields is None or (command.flag & RESPONSE != 0) != (answer is not None):
        return None
    return fields


cdef int part_of(const Text *name) noexcept:
    """The part of a command that this name stands for, or 0."""
    if is_text(name, b"code", 4):
        return CODE
    if is_text(name, b"flag", 4):
        return FLAGS
    if is_text(name, b"opaque", 6):
        return OPAQUE
    if is_text(name, b"version", 7):
        return VERSION
    if is_text(name, b"language", 8):
        return LANGUAGE
    if is_text(name, b"extFields", 9):
        return EXT
    if is_text(name, b"serializeTypeCurrentRPC", 23):
        return ENCODING
    if is_text(name, b"remark", 6):
        return REMARK
    return 0


cdef const uint8_t *ext_at(const uint8_t *p, const uint8_t *end, Taker fields,
                           Command *command) except? NULL:
    """Read the fields of a header; as `text_at`."""
    cdef Text name, value
    cdef Py_ssize_t names = 0
    if p >= end or p[0] != c"{":
        return NULL
    if p + 1 < end and p[1] == c"}":
        return p + 2
    while True:
        names += 1
        p = text_at(p + 1, end, &name)
        if p is NULL or p >= end or p[0] != c":" or name.escaped or not name.ascii:
            return NULL
        p = text_at(p + 1, end, &value)
        if p is NULL or p >= end or names > NAMES_MOST:
            return NULL
        if not fields.take(command, &name, &value):
            return NULL
        if p[0] == c"}":
            return p + 1
        if p[0] != c",":
            return NULL


cdef Py_ssize_t head_size(const uint8_t *frame, Py_ssize_t size) noexcept:
    """The bytes of a frame before its body; 0: it needs the reference."""
    cdef Py_ssize_t head
    if size < 8 or <Py_ssize_t>get32(frame) != size - 4:
        return 0
    head = get32(frame + 4) & 0xFFFFFF
    if head > HEADER_MOST or 8 + head > size:
        return 0
    return 8 + head
