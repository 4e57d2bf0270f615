"""`saturnmq store`: look into a broker's directory, check it, build its derived files again."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from saturnmq.cli.output import (
    DEFAULT_NAMESERVER,
    MIB,
    TIME_HELP,
    AsJson,
    Nameserver,
    Yes,
    addresses,
    bytes_bar,
    emit,
    fail,
    finding_line,
    table,
    time_ms,
)

if TYPE_CHECKING:
    from saturnmq.store.inspect.verify import Sizes, VerifyReport

app = typer.Typer(
    help="Look into a store directory, ours or RocketMQ's: check, dump, rebuild.",
    no_args_is_help=True,
)

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="storePathRootDir of the broker: has commitlog/.")
]
DirectoryOrFile = Annotated[
    Path,
    typer.Argument(
        metavar="DIR", help="storePathRootDir of the broker, or a file of its truncated/."
    ),
]
SegmentBytes = Annotated[
    int, typer.Option(min=0, help="Size of a CommitLog file, where the files do not tell it.")
]
QueueFileBytes = Annotated[
    int, typer.Option(min=0, help="Size of a ConsumeQueue file, where the files do not tell it.")
]
IndexSlots = Annotated[
    int, typer.Option(min=0, help="maxHashSlotNum of the broker, where the files do not tell it.")
]
IndexItems = Annotated[
    int, typer.Option(min=0, help="maxIndexNum of the broker, where the files do not tell it.")
]


@app.command("check")
def check_store(
    directory: DirectoryOrFile,
    segment_bytes: SegmentBytes = 0,
    queue_file_bytes: QueueFileBytes = 0,
    index_slots: IndexSlots = 0,
    index_items: IndexItems = 0,
    as_json: AsJson = False,
) -> None:
    """Verify every frame, and queues and index against what a rebuild would give.

    Reads only, also beside a running broker: then up to where the log ended at the start. Exit
    status 1 if anything is damaged. Of a file that a truncation wrote, every frame.
    """
    from saturnmq.store.disk import NativeDisk
    from saturnmq.store.inspect.verify import check, check_side_file

    look = check_side_file if directory.is_file() else check
    sizes = sizes_of(segment_bytes, queue_file_bytes, index_slots, index_items)
    try:
        with bytes_bar(f"checking {directory}") as progress:
            report = look(NativeDisk(), str(directory), sizes, progress)
    except FileNotFoundError as gone:
        fail(f"{gone.filename} was deleted during the check, as a running broker does: check again")
    if as_json:
        emit({"sound": not report.damage, **asdict(report)})
    else:
        _print_report(report)
    raise typer.Exit(1 if report.damage else 0)


def _print_report(report: VerifyReport) -> None:
    if report.running:
        print("a broker runs on this directory: checked up to where the log ended at the start")
    elif report.crashed:
        print("the broker did not stop in order: the next start repairs what notes speak of")
    print(
        f"log     {report.log_start:,} to {report.log_end:,}, {report.messages:,} messages\n"
        f"queues  {report.queues:,}, {report.queue_entries:,} entries\n"
        f"index   {report.index_files:,} files, {report.index_items:,} items"
    )
    for finding in report.notes:
        print(f"note    {finding_line(finding)}")
    for finding in report.damage:
        print(f"DAMAGE  {finding_line(finding)}")
    if not report.damage:
        print("sound")
        return
    count = sum(finding.count for finding in report.damage)
    first = report.damage[0]
    print(f"damaged: {count:,} places, the first in {first.path} at {first.position:,}")
    if any(finding.what.startswith(("queue:", "queue ", "index:")) for finding in report.damage):
        print(f"`saturnmq store rebuild {report.directory}` builds queues and index again")
    if any(finding.what.startswith("log:") for finding in report.damage):
        print(
            "the log itself is damaged: a broker goes on without the messages that stood there; a "
            "slave's directory or a copy may still have them"
        )


@app.command("rebuild")
def rebuild_store(
    directory: Directory,
    yes: Yes = False,
    segment_bytes: SegmentBytes = 0,
    queue_file_bytes: QueueFileBytes = 0,
    index_slots: IndexSlots = 0,
    index_items: IndexItems = 0,
    as_json: AsJson = False,
) -> None:
    """Delete ConsumeQueues and IndexFiles and build them again from the CommitLog.

    No broker may run there. If it is interrupted, the next start of a broker does it all.
    """
    from saturnmq.store.disk import NativeDisk
    from saturnmq.store.inspect.rebuild import rebuild
    from saturnmq.store.inspect.verify import check_sizes, open_log

    disk = NativeDisk()
    sizes = sizes_of(segment_bytes, queue_file_bytes, index_slots, index_items)
    open_log(disk, str(directory), sizes)  # before asking: that it is a store
    check_sizes(disk, str(directory), sizes)
    if not yes:
        if not sys.stdin.isatty():
            fail("there is no terminal to ask at: pass --yes to delete queues and index")
        typer.confirm(f"Delete queues and index of {directory} and build them again?", abort=True)
    begin = time.monotonic()
    with bytes_bar(f"rebuilding {directory}") as progress:
        built = rebuild(disk, str(directory), lambda: time.time_ns() // 1_000_000, sizes, progress)
    seconds = max(time.monotonic() - begin, 1e-6)
    rate = built.messages / seconds
    if as_json:
        emit({**asdict(built), "seconds": seconds, "messages_per_second": rate})
        return
    used = built.sizes
    print(
        f"{built.messages:,} messages in {seconds:,.1f} s ({rate:,.0f}/s, "
        f"{(built.log_end - built.log_start) / seconds / MIB:,.0f} MiB/s): "
        f"{built.queues:,} queues, {built.index_items:,} index items\n"
        f"files of {used.queue_file_bytes:,} bytes in queues, {used.index_slots:,} slots and "
        f"{used.index_items:,} items in the index"
    )
    for gap in built.gaps:
        print(f"skipped {gap.end - gap.start:,} bytes of the log at {gap.start:,}: {gap.why}")
    if built.stopped_by:
        print(f"the log ends at {built.log_end:,}: {built.stopped_by}")
    if built.missing:
        print(
            f"{built.missing:,} bytes of the log behind {built.log_end:,} were on this disk once "
            "and are gone: a slave's directory or a copy may still have them"
        )
    if built.not_queues:
        print(f"skipped {built.not_queues:,} runs of frames whose topic or queue cannot be")


@app.command("dump")
def dump_store(
    directory: DirectoryOrFile,
    begin: Annotated[
        int | None, typer.Option("--from", min=0, help="Log offset to begin at, or the next frame.")
    ] = None,
    end: Annotated[
        int | None, typer.Option("--to", min=0, help="Log offset to end before.")
    ] = None,
    topic: Annotated[str | None, typer.Option(help="This topic only.")] = None,
    queue: Annotated[int | None, typer.Option(min=0, help="This queue id only.")] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="So many at most.")
    ] = None,
    queue_entries: Annotated[
        bool, typer.Option("--queue-entries", help="Entries of the ConsumeQueues instead.")
    ] = False,
    index: Annotated[
        bool, typer.Option("--index", help="Items of the IndexFiles instead.")
    ] = False,
    summary: Annotated[
        bool, typer.Option("--summary", help="Files, checkpoint and tables instead.")
    ] = False,
    segment_bytes: SegmentBytes = 0,
    queue_file_bytes: QueueFileBytes = 0,
    index_slots: IndexSlots = 0,
    index_items: IndexItems = 0,
    as_json: AsJson = False,
) -> None:
    """Print the frames of the CommitLog, one a line; with --json all fields of each.

    Reads only, also beside a running broker. It reports parts without frames on standard error. For
    a file in the directory truncated/ it prints the messages that were cut off this log, for
    instance in a fail-over; restore-truncated sends those again that no other node has.
    """
    from saturnmq.cli import store_dump
    from saturnmq.store.disk import NativeDisk

    disk, root = NativeDisk(), str(directory)
    sizes = sizes_of(segment_bytes, queue_file_bytes, index_slots, index_items)
    if summary + index + queue_entries > 1:
        fail("--summary, --index and --queue-entries exclude each other: pass one")
    if summary:
        _print_summary(store_dump.summary(disk, root, sizes), as_json)
        return
    if index and (topic is not None or queue is not None):
        fail("--index knows hashes only: --topic and --queue do not go with it")
    read = store_dump.frames
    if queue_entries:
        read = store_dump.queue_entries
    elif index:
        read = store_dump.index_items
    wanted = store_dump.DumpSelection(begin, end, topic, queue)
    for record in islice(read(disk, root, sizes, wanted), limit):
        print(json.dumps(record.fields) if as_json else record.line)


@app.command("restore-truncated")
def restore_truncated(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR_OR_FILE...",
            help="storePathRootDir of a broker, a file of its truncated/, or a copy of one.",
        ),
    ],
    send: Annotated[bool, typer.Option("--send", help="Send what is wanted.")] = False,
    topic: Annotated[str | None, typer.Option(help="This topic only.")] = None,
    key: Annotated[str | None, typer.Option(help="Messages with this key only.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"Stored from then on: {TIME_HELP}.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Stored until then, inclusive.")
    ] = None,
    expired: Annotated[
        bool,
        typer.Option(
            "--expired",
            help="Also what is older than all that a broker of its topic still keeps.",
        ),
    ] = False,
    segment_bytes: SegmentBytes = 0,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Tell which messages that truncations cut off the log the cluster does not have, and with
    --send send those again.

    The files are only read, also beside a running broker. Restored messages keep their ids, so that
    a second run does not send them again, and have a property RESTORED_FROM. Exit status 1 if
    anything is damaged, or could not be sent.
    """
    from saturnmq.cli import store_restore
    from saturnmq.runtime.errors import SaturnError
    from saturnmq.store.disk import NativeDisk

    since_ms = None if since is None else time_ms(since, "--since")
    until_ms = None if until is None else time_ms(until, "--until")
    if since_ms is not None and until_ms is not None and since_ms > until_ms:
        fail(f"--since {since} is after --until {until}: no message is stored in between")
    wanted = store_restore.RestoreSelection(topic, key, since_ms, until_ms)
    servers = addresses(nameserver)
    disk, sizes = NativeDisk(), sizes_of(segment_bytes, 0, 0, 0)
    work = store_restore.Restoration(
        disk, store_restore.side_files(disk, list(map(str, paths)), sizes), sizes, wanted
    )
    with bytes_bar("reading what was cut off") as progress:
        work.read(progress)
    problem = store_restore.settle(work, servers, send=send, expired_too=expired)
    if isinstance(problem, SaturnError) and not work.place:
        fail(str(problem))
    if as_json:
        emit({**work.to_json(), "done": send and problem is None})
    else:
        store_restore.show(work, send)
    if isinstance(problem, KeyboardInterrupt | SystemExit):
        raise problem
    if problem is not None and send:
        sent = work.total(lambda tally: tally.sent)
        fail(
            f"stopped at {work.place}, with {sent:,} messages sent: {problem}; run it again, what "
            "was sent is not sent twice"
        )
    if problem is not None:
        fail(f"stopped at {work.place}: {problem}")
    if work.refusals:
        fail(f"{len(work.refusals):,} messages were refused; the first: {work.refusals[0]}")
    raise typer.Exit(1 if any(report.damage for report in work.files) else 0)


def _print_summary(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        emit(found)
        return
    rows = []
    for name, value in found.items():
        if isinstance(value, dict):
            rows += [(name, key, json.dumps(below)) for key, below in value.items()]
        else:
            rows.append((name, "", json.dumps(value)))
    table("", ["", "", ""], rows)


def sizes_of(segment: int, queue_file: int, index_slots: int, index_items: int) -> Sizes:
    from saturnmq.store.inspect.verify import Sizes

    return Sizes(segment, queue_file, index_slots, index_items)
