"""One topic subscription of a consumer group, which selects messages.

The expression is `*` (everything), tags joined by `||`, or an SQL92 condition over properties. The
broker drops by tag *code* while it reads the ConsumeQueue (a 32-bit hash, so other tags may slip
through); the client filters again by the tag itself. The broker evaluates conditions exactly. In
heartbeats a subscription is RocketMQ's SubscriptionData JSON; `sub_version` grows with every change
and lets the broker ignore stale ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from saturnmq.protocol.jhash import tags_code
from saturnmq.protocol.sql92 import Sql, compiled
from saturnmq.runtime.errors import SubscriptionParseFailed

ALL = "*"
TAG_EXPRESSION = "TAG"
SQL_EXPRESSION = "SQL92"
Expression = str | Sql
"""The selected messages: `*`, tags joined by `||`, or a condition, `Sql("price > 3")`."""


@lru_cache(maxsize=256)
def _tags(text: str) -> tuple[frozenset[str], frozenset[int]]:
    """Cached: pulls carry their expression again and again."""
    tags = frozenset(tag for part in text.split("||") if (tag := part.strip()))
    return tags, frozenset(tags_code(tag) for tag in tags)


@dataclass(frozen=True, slots=True)
class Subscription:
    """Invariant: `codes` is the set of Java hashes of `tags`; both are empty for everything, and
    for a condition."""

    topic: str
    expression: str
    tags: frozenset[str]
    codes: frozenset[int]
    sub_version: int = 0
    sql: Sql | None = None

    @staticmethod
    def parse(
        topic: str,
        expression: Expression | None,
        sub_version: int = 0,
        expression_type: str = TAG_EXPRESSION,
    ) -> Subscription:
        """An `Sql` needs no type. SubscriptionParseFailed names the fault of an expression."""
        if isinstance(expression, Sql) or expression_type == SQL_EXPRESSION:
            sql = expression if isinstance(expression, Sql) else compiled(expression or "")
            nothing: frozenset[Any] = frozenset()
            return Subscription(topic, sql.expression, nothing, nothing, sub_version, sql)
        if expression_type not in (TAG_EXPRESSION, "", None):
            raise SubscriptionParseFailed(
                f"expression type {expression_type!r} of topic {topic} is unknown; use TAG or SQL92"
            )
        text = (expression or ALL).strip() or ALL
        if text == ALL:
            return Subscription(topic, ALL, frozenset(), frozenset(), sub_version)
        tags, codes = _tags(text)
        if not tags:
            raise SubscriptionParseFailed(
                f"expression {expression!r} of topic {topic} names no tag; "
                "write * or tags joined by ||"
            )
        return Subscription(topic, text, tags, codes, sub_version)

    @property
    def expression_type(self) -> str:
        return TAG_EXPRESSION if self.sql is None else SQL_EXPRESSION

    @property
    def is_all(self) -> bool:
        return not self.tags and self.sql is None

    @property
    def filter_codes(self) -> frozenset[int] | None:
        """The tag codes that a store read selects: None means all."""
        return self.codes or None

    def matches_code(self, code: int) -> bool:
        return not self.codes or code in self.codes

    def matches_tag(self, tag: str | None) -> bool:
        return not self.tags or tag in self.tags

    def to_json(self) -> dict[str, Any]:
        """The object of a heartbeat's `subscriptionDataSet`."""
        return {
            "classFilterMode": False,
            "codeSet": sorted(self.codes),
            "expressionType": self.expression_type,
            "subString": self.expression,
            "subVersion": self.sub_version,
            "tagsSet": sorted(self.tags),
            "topic": self.topic,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Subscription:
        """Parse an entry of a heartbeat; tags and codes are derived anew, because a client's own
        sets are not trusted."""
        return Subscription.parse(
            str(data["topic"]),
            data.get("subString"),
            int(data.get("subVersion") or 0),
            data.get("expressionType") or TAG_EXPRESSION,
        )
