"""The files of the tables in `config/`, and the order in which a start reads them.

The log may have lost a part since a table was written, and may grow again over that part. A table
that described it is corrected here, and saved before the log grows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from saturnmq.broker.context import Context
from saturnmq.broker.tables.lost_offsets import has_queue
from saturnmq.broker.tables.table_persistence import Saveable, TablePersistence
from saturnmq.broker.tables.topics import system_topics
from saturnmq.runtime.errors import MalformedFrame, StoreDamaged
from saturnmq.store.config_files import ConfigFile
from saturnmq.store.disk import Disk

log = logging.getLogger(__name__)


class TableFiles:
    def __init__(self, disk: Disk, root: str, persistence: TablePersistence) -> None:
        self._disk = disk
        self._folder = f"{root}/config"
        self._persistence = persistence
        disk.make_dirs(self._folder)

    def load(self, name: str, table: Saveable, *, keep_room: bool = False) -> ConfigFile:
        """Read a table from its file, where it is saved from now on, with `keep_room` also on a
        full disk. StoreDamaged: the file has another shape."""
        file = ConfigFile(self._disk, f"{self._folder}/{name}.json", keep_room=keep_room)
        try:
            table.load(file.load() or {})
        except MalformedFrame as error:
            raise StoreDamaged(
                f"{file.path} was not written by a broker ({error}): restore it, or delete it and "
                "its .bak to start with an empty table"
            ) from error
        self._persistence.add(table, file)
        return file


def load_tables(
    files: TableFiles,
    context: Context,
    delays: Saveable,
    sinks: Saveable,
    delay_clock: Saveable,
    *,
    forget_delays: Callable[[], None],
) -> None:
    """`forget_delays` empties the table of delays. It is called if the log has lost a part, because
    the copies in the lost part may be among those that the table calls delivered."""
    _load_topics(files, context)
    files.load("subscriptionGroup", context.groups)
    files.load("consumerOffset", context.offsets)
    delay_file = files.load("delayOffset", delays)
    if context.store.recovery.missing:
        forget_delays()
    else:
        context.offsets.keep(partial(has_queue, context))
    files.load("delayClock", delay_clock)
    files.load("access", context.access)
    sink_file = files.load("sinks", sinks)
    for table, file in ((sinks, sink_file), (delays, delay_file)):
        if table.dirty:
            file.save(table.snapshot())
            table.clean()


def _load_topics(files: TableFiles, context: Context) -> None:
    config, store, topics = context.config, context.store, context.topics
    topics.install_system(
        system_topics(
            config.cluster_name,
            config.broker_name,
            config.default_topic_queues,
            delay_levels=len(store.config.delays_ms),
            auto=config.auto_create_topics,
            traces=config.trace_topic if config.trace_topic_enable else None,
        )
    )
    files.load("topics", topics)
    topics.forget_deleted(store.watermarks.start)
    topics.restore(store.last_entries())
    store.bury(topics.deleted)


def load_role(files: TableFiles, context: Context) -> None:
    """Load the role that a promotion has given this node, else the configured one."""
    role = context.role
    role.log_epoch = context.epochs.last
    # A master whose disk is full can promise to lead no more.
    files.load("role", role, keep_room=True)
    if role.decided and role.is_slave != context.config.is_slave:
        log.warning(
            "brokerRole is %s, but a promotion has made this node a %s since: that counts",
            context.config.role,
            role.name,
        )
    if role.is_slave:
        context.master_confirmed = context.store.recovered_confirm
