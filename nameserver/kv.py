"""The nameserver's key-value configuration: namespace, key, text (codes 100, 101, 102, 219).

mqadmin uses it for ordered topics: `BROKER:QUEUES;..` by topic in the namespace ORDER_TOPIC_CONFIG.
The answer to every registration contains it, and with `--order-messages` the route of the topic. As
in RocketMQ a namespace still exists after all its keys were deleted.

With `--kv-config` the table is in a file as RocketMQ writes it (docs/internals/format.md 10.10),
which is read at the start, and written before a change is answered. Without it the table is empty
after a restart.
"""

import asyncio
import logging
from typing import Any, Protocol

from saturnmq.protocol import fastjson
from saturnmq.protocol.route import ORDER_TOPIC_CONFIG
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import InvalidParameter, QueryNotFound, StoreDamaged, SystemError_

log = logging.getLogger(__name__)

# Every client may write here, so entries, the characters of one key and value, and the bytes of
# all as JSON are bounded: the answer to a registration has a whole namespace in one frame.
ENTRIES_MAX = 10_000
ENTRY_BYTES_MAX = 64 * 1024
BYTES_MAX = 4 << 20


class KvFile(Protocol):
    """The file of the table; both methods block."""

    path: str

    def load(self) -> dict[str, Any] | None: ...
    def save(self, document: Any) -> None: ...


class KvConfig:
    """All namespaces."""

    def __init__(self, file: KvFile | None = None) -> None:
        self._file = file
        self._spaces: dict[str, dict[str, str]] = {}
        self._count = 0
        self._bytes = 0
        self._changes = self._saved = 0
        self._saving = asyncio.Lock()

    async def load(self, runtime: Runtime) -> None:
        """Read the file, if there is one. StoreDamaged: it has another shape, or no place here."""
        if self._file is None:
            return
        document = await runtime.run_blocking(self._file.load)
        try:
            spaces = {} if document is None else document["configTable"]
            for namespace, space in spaces.items():
                for key, value in space.items():
                    if not isinstance(value, str):
                        raise TypeError(f"the value of {key} in {namespace} is no text")
                    self.put(namespace, key, value)
                self._spaces.setdefault(namespace, {})
        except (AttributeError, KeyError, TypeError, InvalidParameter) as error:
            raise StoreDamaged(
                f"{self._file.path} was not written by a nameserver ({error!r}): restore it, or "
                "delete it and its .bak to start without entries"
            ) from error

    async def save(self, runtime: Runtime) -> None:
        """Return when the file has all changes so far. SystemError_: it could not be written; the
        changes hold until this process ends."""
        if self._file is None:
            return
        wanted = self._changes
        async with self._saving:
            if self._saved >= wanted:  # another change that waited has taken this one along
                return
            now = self._changes
            spaces = {name: dict(space) for name, space in self._spaces.items()}
            try:
                await runtime.run_blocking(self._file.save, {"configTable": spaces})
            except OSError as error:
                log.error("%s could not be written: %s", self._file.path, error)
                raise SystemError_(
                    f"{self._file.path} could not be written ({error}): the change holds until "
                    "this nameserver ends"
                ) from error
            self._saved = now

    def put(self, namespace: str, key: str, value: str) -> None:
        size = len(namespace) + len(key) + len(value)
        if size > ENTRY_BYTES_MAX:
            raise InvalidParameter(f"entry of {size} characters: the limit is {ENTRY_BYTES_MAX}")
        space = self._spaces.get(namespace, {})
        if key not in space and self._count >= ENTRIES_MAX:
            raise InvalidParameter(f"{self._count} entries are stored: delete some first (102)")
        more = _encoded(key, value)
        if key in space:
            more -= _encoded(key, space[key])
        if namespace not in self._spaces:  # it stays when it is empty
            more += _encoded(namespace, "")
        if self._bytes + more > BYTES_MAX:
            raise InvalidParameter(
                f"entry of {more} bytes: {self._bytes} of {BYTES_MAX} are stored, delete some "
                "first (102)"
            )
        self._changes += 1
        self._bytes += more
        self._count += key not in space
        self._spaces[namespace] = space
        space[key] = value

    def get(self, namespace: str, key: str) -> str:
        value = self._spaces.get(namespace, {}).get(key)
        if value is None:
            raise QueryNotFound(f"No config item, Namespace: {namespace} Key: {key}")
        return value

    def delete(self, namespace: str, key: str) -> None:
        value = self._spaces.get(namespace, {}).pop(key, None)
        if value is not None:
            self._changes += 1
            self._count -= 1
            self._bytes -= _encoded(key, value)

    def order_of(self, topic: str) -> str | None:
        """The order configuration of a topic."""
        return self._spaces.get(ORDER_TOPIC_CONFIG, {}).get(topic)

    def table(self, namespace: str) -> dict[str, str] | None:
        """The namespace's entries, or None when it was never written."""
        return self._spaces.get(namespace)


def _encoded(key: str, value: str) -> int:
    return len(fastjson.dumps({key: value}))
