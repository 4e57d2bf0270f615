# What the store's kernel uses of this module without a detour through Python.
from libc.stdint cimport int64_t, uint8_t

from saturnmq.protocol.frame_kernel.layout cimport Slice

cdef enum:
    NAMES_MOST = 16  # different properties of one condition


cdef enum Truth:
    NO
    YES
    UNKNOWN
    BROKEN  # a text that is no number: no match, whatever else the condition says
    UNSURE  # the reference decides


cdef enum Kind:
    UNDECIDED
    CONSTANT
    NOT
    ALL
    ANY
    BARE
    ABSENT
    TRUE_OR_FALSE
    WHOLE_NUMBER
    ANY_NUMBER
    AMONG
    CONTAINS
    STARTSWITH
    ENDSWITH


cdef struct Step:
    # A node of the condition. What it joins stands behind it, up to `end`.
    Kind kind
    Truth wanted  # NO turns the answer round; of a constant, its value
    int end
    int name  # the number of its property
    int orders  # those that hold, of BELOW, EQUAL, ABOVE
    int bits  # of the whole numbers that a text may be
    int64_t whole
    double value
    int first, texts  # where its texts are, and how many


cdef class SqlProgram:
    cdef Step *_steps
    cdef int _count
    cdef Slice *_names
    cdef int _names_count
    cdef Slice *_texts
    cdef int _texts_count
    cdef list _kept  # the bytes that the slices point at
    cdef int _add(self, tuple tree) except -1
    cdef int _add_question(self, Step *step, tuple tree) except -1
    cdef int _add_number(self, Step *step, object number) except -1
    cdef int _add_texts(self, Step *step, list texts) except -1
    cdef Slice _kept_slice(self, bytes data)
    cdef int _name(self, str name) except -1
    cdef Truth decide(self, const uint8_t *properties, Py_ssize_t size) noexcept nogil
    cdef Truth _truth(self, int at, const Slice *found) noexcept nogil
