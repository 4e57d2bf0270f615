"""The nameserver's key-value configuration: namespace, key, text (codes 100, 101, 102, 219).

Used by mqadmin for ordered topics (namespace ORDER_TOPIC_CONFIG, which every registration is
answered with). Kept in memory: this nameserver has no disk, so the table is empty after a
restart. As in RocketMQ a namespace whose keys were all deleted still exists.
"""

from saturnmq.protocol.errors import InvalidParameter, QueryNotFound

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
# Anybody may write here, so the table is bounded: entries, and bytes of one key and value.
ENTRIES_MAX = 10_000
ENTRY_BYTES_MAX = 64 * 1024


class KvConfig:
    """All namespaces."""

    def __init__(self) -> None:
        self._spaces: dict[str, dict[str, str]] = {}
        self._count = 0

    def put(self, namespace: str, key: str, value: str) -> None:
        size = len(namespace) + len(key) + len(value)
        if size > ENTRY_BYTES_MAX:
            raise InvalidParameter(f"entry of {size} characters: the limit is {ENTRY_BYTES_MAX}")
        space = self._spaces.get(namespace, {})
        if key not in space:
            if self._count >= ENTRIES_MAX:
                raise InvalidParameter(f"{self._count} entries are stored: delete some first (102)")
            self._count += 1
        self._spaces[namespace] = space
        space[key] = value

    def get(self, namespace: str, key: str) -> str:
        value = self._spaces.get(namespace, {}).get(key)
        if value is None:
            raise QueryNotFound(f"No config item, Namespace: {namespace} Key: {key}")
        return value

    def delete(self, namespace: str, key: str) -> None:
        if self._spaces.get(namespace, {}).pop(key, None) is not None:
            self._count -= 1

    def table(self, namespace: str) -> dict[str, str] | None:
        """The namespace's entries, or None when it was never written."""
        return self._spaces.get(namespace)
