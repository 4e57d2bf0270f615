"""Opening the place where messages lie: the `Access` that fits a `Where`.

Its two kinds are imported when they are needed: a task that asks brokers loads nothing of a store.
"""

from __future__ import annotations

from saturnmq.pipeline.access import Access, Where


def open_access(where: Where) -> Access:
    """The place, of which nothing is looked at before it is asked."""
    if where.path:
        from saturnmq.pipeline.directory import StoreDirectory

        return StoreDirectory(where)
    from saturnmq.pipeline.brokers import ClusterAccess

    return ClusterAccess(where)
