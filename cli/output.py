"""The parts that all commands share: options that exist everywhere, tables, JSON, progress bars and
the way errors end.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

NAMESERVER_VARIABLE = "SATURNMQ_NAMESERVER"
DEFAULT_NAMESERVER = "127.0.0.1:9876"
FILE_WIDTH = 1_000
WORD_WIDTH = 15  # of an address; a longer word is broken
BAR_AFTER_S = 2.0
MIB = 1 << 20
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code != ord("\t")}

Nameserver = Annotated[
    str,
    typer.Option(
        "--nameserver",
        envvar=NAMESERVER_VARIABLE,
        metavar="HOST:PORT[,...]",
        help="Nameservers to ask for routes.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would happen, do nothing.")]
ClientNamespace = Annotated[
    str, typer.Option("--namespace", help="Topic and group are NAMESPACE%NAME for the brokers.")
]
WriteTraces = Annotated[
    bool, typer.Option("--trace", help="Write a trace of each message, for `message trace`.")
]
TIME_HELP = "ISO 8601 (local time unless it says a zone) or milliseconds since 1970"


def shared_secret() -> dict[str, Any]:
    """The brokers' secret for an Admin; an option would be in the list of
    processes."""
    from saturnmq.protocol.signing import Signing

    signing = Signing.of(os.environ)
    return {
        "replication_secret": signing.secret,
        "replication_secret_required": signing.is_required,
    }


def counted(count: int, noun: str) -> str:
    """The number with its noun: 1 broker, 1,000 brokers."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def fail(text: str, status: int = 1) -> NoReturn:
    """End with this exit status and one line that says why."""
    print(f"saturnmq: {text}", file=sys.stderr)
    raise typer.Exit(status)


def refuse(text: str) -> NoReturn:
    """End with exit status 2: the call makes no sense, and `text` says why."""
    fail(text, 2)


def addresses(text: str, wrong: Callable[[str], NoReturn] = fail) -> list[str]:
    """`a:1,b:2` or RocketMQ's `a:1;b:2` as a list; `wrong` ends what cannot be one."""
    from saturnmq.runtime.door import server_addresses
    from saturnmq.runtime.errors import ConfigError

    if not text.strip(" ,;"):
        wrong(f"no nameserver: pass --nameserver HOST:PORT or set {NAMESERVER_VARIABLE}")
    try:
        return server_addresses(text, "--nameserver")
    except ConfigError as error:
        wrong(str(error))


def pairs(texts: Sequence[str] | None, what: str) -> dict[str, str]:
    """Each NAME=VALUE that was given as `what`."""
    named: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals:
            fail(f"{what} {text!r}: it is NAME=VALUE")
        if named.setdefault(name, value) != value:
            fail(f"{what} {text!r}: {name} is {named[name]!r} already, give one of them")
    return named


def time_ms(text: str, option: str) -> int:
    """Milliseconds since 1970 of a time as `TIME_HELP` says it; 0 for one before 1970, since a
    negative number means the end in requests."""
    from saturnmq.protocol.checked import INT64_MAX

    try:
        if text.isascii() and text.isdigit():
            moment = int(text)
        else:
            moment = round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        fail(f"{option} {text!r} is no time: give {TIME_HELP}, as 2026-01-31T12:00")
    if moment > INT64_MAX:
        fail(f"{option} {text}: times have no more than {INT64_MAX} ms")
    return max(0, moment)


def local_time(timestamp_ms: int) -> str:
    """A time for people, to the millisecond; one that calendars lack as it is."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000).astimezone()
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"
    return moment.isoformat(" ", "milliseconds")


def may_destroy(
    facts: dict[str, Any],
    show: Callable[[], None],
    question: str,
    *,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> bool:
    """Tell what would go, and find out whether it may: --yes says so, --dry-run that it may not;
    else who sits at the terminal is asked, and without one it is refused with exit status 1.

    With --json `facts` are printed unless it may go on: then the caller prints what it did.
    """
    going_on = yes and not dry_run
    asked = not going_on and not dry_run and sys.stdin.isatty()
    if not as_json:
        show()
    elif not going_on and not asked:
        emit({**facts, "done": False})
    if going_on or dry_run:
        return going_on
    if not asked:
        fail("there is no terminal to ask at: pass --yes to do it")
    return typer.confirm(question, abort=True, err=True)


def emit(value: Any) -> None:
    """Print one JSON document on standard output."""
    print(json.dumps(value, default=str))


def drop_output() -> None:
    """Send the rest of standard output nowhere, since a print has failed. The interpreter must not
    raise again when it flushes it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write_file(path: Path, text: str) -> None:
    """Write a file that others read or the user named, whole or not at all: what was there stays
    until the new text is. An OSError names the file."""
    target = path.resolve()  # of a link, the file that it leads to
    if target.exists() and not target.is_file():  # a pipe, or a terminal
        target.write_text(text, encoding="utf-8")
        return
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        if target.exists():
            shutil.copymode(target, part)
        part.replace(target)
    except OSError as problem:
        part.unlink(missing_ok=True)
        raise OSError(problem.errno, problem.strerror, str(path)) from problem


def tell_names(what: str, names: Sequence[str], as_json: bool) -> None:
    """A name a line, or as JSON the list under `what`."""
    if as_json:
        emit({what: names})
        return
    for name in names:
        print(name)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table on standard output; numbers are set to the right, nothing is cut off. On a terminal
    that is too narrow for it each row is a list, with a line for each column."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text  # a plain text may name a style or an emoji

    listed = [list(row) for row in rows]
    shown = [[_cell(value) for value in row] for row in listed]
    if title:
        print(title)
    console = Console()
    if not console.is_terminal:
        console.width = FILE_WIDTH  # rich takes a file or a pipe for 80 columns
    if shown and _least_width(columns, shown) > console.width:
        _print_lists(columns, shown)
        return
    result = Table()
    for index, column in enumerate(columns):
        cells = [row[index] for row in listed if row[index] not in (None, "")]
        numeric = bool(cells) and all(isinstance(cell, int | float) for cell in cells)
        result.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in shown:
        result.add_row(*map(Text, row))
    console.print(result)


def _least_width(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """The width of a table that breaks no word but long ones."""
    from rich.cells import cell_len

    words = [" ".join(texts).split() for texts in zip(columns, *rows, strict=True)]
    widths = (max(map(cell_len, each), default=0) for each in words)
    return 1 + sum(min(width, WORD_WIDTH) + len("|  ") for width in widths)


def _print_lists(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widest = max(map(len, columns))
    for row in rows:
        for column, text in zip(columns, row, strict=True):
            print(f"{column.ljust(widest)}  {text}".rstrip())
        print()


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return "\n".join(map(visible, str(value).split("\n")))


def visible(text: str) -> str:
    """Text of others as a terminal may show it: what would steer the terminal is spelled out."""
    return text.translate(_CONTROLS)


def progress_bar() -> Any:
    """A bar with count and speed on standard error, silent when that is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )


@contextlib.contextmanager
def late_bar(what: str, unit: int = 1) -> Iterator[Callable[[int, int], None]]:
    """A progress bar for what takes longer than a moment; `show(done, total)` draws it."""
    begin = time.monotonic()
    with contextlib.ExitStack() as stack:
        bar: Any = None
        task: Any = None

        def show(done: int, total: int) -> None:
            nonlocal bar, task
            if bar is None:
                if time.monotonic() - begin < BAR_AFTER_S:
                    return
                bar = stack.enter_context(progress_bar())
                task = bar.add_task(what, total=total // unit)
            bar.update(task, completed=done // unit, total=total // unit)

        yield show


def bytes_bar(what: str) -> contextlib.AbstractContextManager[Callable[[int, int], None]]:
    """A bar as `late_bar`, in MiB of bytes."""
    return late_bar(f"{what}, MiB", MIB)


def finding_line(finding: Any) -> str:
    """A `Finding` of `store/inspect/verify_report.py` for people."""
    times = f" ({finding.count:,} times, first)" if finding.count > 1 else ""
    offset = "" if finding.offset is None else f", log offset {finding.offset:,}"
    return f"{finding.what}{times}: {finding.path} at {finding.position:,}{offset}"
