"""The types of messages that a topic may be for: values of its attribute `message.type`.

Brokers check them (`broker/tables/attributes.py`, `broker/commit/message_types.py`); the admin and
the command line refuse another one before they ask.
"""

from __future__ import annotations

MESSAGE_TYPE = "message.type"
NORMAL, FIFO, DELAY, TRANSACTION = "NORMAL", "FIFO", "DELAY", "TRANSACTION"
MIXED, UNSPECIFIED = "MIXED", "UNSPECIFIED"
MESSAGE_TYPES = (NORMAL, FIFO, DELAY, TRANSACTION, MIXED, UNSPECIFIED)
