"""The nameserver's key-value configuration: namespace, key, text (codes 100, 101, 102, 219).

mqadmin uses it for ordered topics: `BROKER:QUEUES;..` by topic in the namespace ORDER_TOPIC_CONFIG.
The answer to every registration contains it, and with `--order-messages` the route of the topic.
Kept in memory: this nameserver has no disk, so the table is empty after a restart. As in RocketMQ a
namespace still exists after all its keys were deleted.
"""

from saturnmq.protocol import fastjson
from saturnmq.runtime.errors import InvalidParameter, QueryNotFound

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
# Every client may write here, so entries, the characters of one key and value, and the bytes of
# all as JSON are bounded: the answer to a registration has a whole namespace in one frame.
ENTRIES_MAX = 10_000
ENTRY_BYTES_MAX = 64 * 1024
BYTES_MAX = 4 << 20


class KvConfig:
    """All namespaces."""

    def __init__(self) -> None:
        self._spaces: dict[str, dict[str, str]] = {}
        self._count = 0
        self._bytes = 0

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
