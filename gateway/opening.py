"""The first bytes of a connection to the port of gRPC, which takes TLS and plain text. Pure.

A TLS client begins with a record of type 22 that holds its ClientHello, any other client of gRPC
with the preface of HTTP/2:

    TLS     16 | 03 minor | length u16 | 01 ...      (RFC 8446, 5.1 and 4.1.2)
    HTTP/2  PRI * HTTP/2.0 CRLF CRLF SM CRLF CRLF    (RFC 9113, 3.4)

Connections with other first bytes are refused by `http2/socket_side.py`.
"""

from __future__ import annotations

from enum import Enum

from saturnmq.protocol.tls import HANDSHAKE

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
CLIENT_HELLO = 0x01
RECORD_HEAD = 5
RECORD_MAX = 1 << 14
OPENING_MAX = RECORD_HEAD + RECORD_MAX  # no opening is longer
_METHODS = (b"GET ", b"POST ", b"HEAD ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"TRACE ")

_TEXT = b"This port serves gRPC, which needs HTTP/2: use a client of RocketMQ 5 or of gRPC.\n"
HTTP1_ANSWER = (
    b"HTTP/1.1 505 HTTP Version Not Supported\r\nContent-Type: text/plain\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(_TEXT), _TEXT)
)
"""The answer to a client of HTTP/1, a browser for example."""


class Opening(Enum):
    """The kind of a connection, as its first bytes say."""

    UNFINISHED = "unfinished"  # more bytes are needed
    PLAIN = "plain text"
    TLS = "TLS"
    HTTP1 = "HTTP/1"
    FOREIGN = "neither TLS nor HTTP/2"


def judge(start: bytes | bytearray) -> Opening:
    """The kind of the connection that starts so. PLAIN and TLS are certain only once the whole
    preface, or the whole first record, is there."""
    if not start:
        return Opening.UNFINISHED
    if start[0] == HANDSHAKE:
        return _judge_record(start)
    if PREFACE.startswith(start[: len(PREFACE)]):
        return Opening.PLAIN if len(start) >= len(PREFACE) else Opening.UNFINISHED
    for method in _METHODS:
        if method.startswith(start[: len(method)]):
            return Opening.HTTP1 if len(start) >= len(method) else Opening.UNFINISHED
    return Opening.FOREIGN


def _judge_record(start: bytes | bytearray) -> Opening:
    if len(start) > 1 and start[1] != 3:  # the major version, the same in every TLS
        return Opening.FOREIGN
    if len(start) < RECORD_HEAD:
        return Opening.UNFINISHED
    length = int.from_bytes(start[3:RECORD_HEAD], "big")
    if not 4 <= length <= RECORD_MAX:  # a handshake message has a head of 4 bytes
        return Opening.FOREIGN
    if len(start) > RECORD_HEAD and start[RECORD_HEAD] != CLIENT_HELLO:
        return Opening.FOREIGN
    return Opening.TLS if len(start) >= RECORD_HEAD + length else Opening.UNFINISHED
