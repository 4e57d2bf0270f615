# What the client's kernel uses of this module without a detour through Python.
from libc.stdint cimport uint8_t


cdef class Message:
    cdef public object topic
    cdef object _body
    cdef public int flag
    cdef dict _properties
    cdef _set(self, name, value)


cdef Py_ssize_t put_entry(bytearray buffer, Py_ssize_t at, const uint8_t *body, Py_ssize_t body_size,
                          bytes id_head, Py_ssize_t number, bytes extra, int flag) noexcept
