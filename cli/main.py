"""The program `saturnmq`: one typer application; each group of commands is a module beside this
one.

Exit status: 0 only on success, 1 when the work could not be done (one line on standard error says
why), 2 for a command line that makes no sense (with the nearest right name).
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from typing import Annotated, Any, NoReturn

import typer
from saturnmq.cli import (
    acls,
    admin,
    bench,
    cluster,
    consuming,
    demo,
    drill,
    finding,
    groups,
    messages,
    nodes,
    pipeline,
    requests,
    store,
    topics,
    users,
)
from saturnmq.cli.launcher import LauncherError
from saturnmq.cli.output import DEFAULT_NAMESERVER, AsJson, drop_output, emit, table

# Typer carries click in itself or beside itself, by its version; what it raises is the same.
ClickException: Any = typer.BadParameter.__mro__[2]

OTHER_NAMESERVER = (
    "; a nameserver is looked for there unless --nameserver or SATURNMQ_NAMESERVER names another "
    "(`saturnmq cluster up` starts one, `saturnmq cluster status` tells where one is)"
)

app = typer.Typer(
    name="saturnmq",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("nameserver")(nodes.nameserver)
app.command("broker")(nodes.broker)
app.command("health")(nodes.health)
app.add_typer(cluster.app, name="cluster")
app.add_typer(topics.topic_app, name="topic")
app.add_typer(groups.group_app, name="group")
app.command("produce")(messages.produce)
app.command("consume")(consuming.consume)
app.command("request")(requests.request)
app.command("reply")(requests.reply)
app.add_typer(finding.message_app, name="message")
app.add_typer(users.user_app, name="user")
app.add_typer(acls.acl_app, name="acl")
app.add_typer(admin.app, name="admin")
app.add_typer(bench.app, name="bench")
app.add_typer(store.app, name="store")
app.add_typer(pipeline.app, name="pipeline")
app.command("demo")(demo.demo)
app.add_typer(drill.app, name="drill")


def _print_version(asked: bool) -> None:
    if asked:
        from saturnmq._version import VERSION

        print(f"saturnmq {VERSION}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """A replicated message queue in Python that speaks RocketMQ's protocols."""


@app.command()
def version(as_json: AsJson = False) -> None:
    """The version, and whether the compiled kernels are in use."""
    facts = version_facts()
    if as_json:
        emit(facts)
        return
    table("", ["", ""], facts.items())
    if not facts["kernels"]:
        print(
            "kernels not compiled: everything works, slower (a C compiler at install builds them)"
        )


def version_facts() -> dict[str, Any]:
    import platform

    from saturnmq._version import VERSION
    from saturnmq.protocol import kernels

    return {
        "saturnmq": VERSION,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "kernels": bool(kernels.COMPILED),
    }


def main() -> None:
    """Console entry: turns every expected error into one line and an exit status."""
    if not __debug__:
        # Assertions guard the store's invariants and must be on; -O and PYTHONOPTIMIZE drop them.
        sys.exit("saturnmq: does not run under python -O or PYTHONOPTIMIZE: it drops assertions")
    from saturnmq.runtime.errors import ConnectFailed, SaturnError

    has_output = sys.stdout is not None
    _open_closed_files()
    _check_texts(sys.argv[1:])
    if isinstance(sys.stdout, io.TextIOWrapper):  # a locale may lack the letters of a message
        sys.stdout.reconfigure(errors="backslashreplace")
    # An end from outside is an orderly one too: offsets committed, clusters of a demo stopped.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # not under nohup
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        status = app(prog_name="saturnmq", standalone_mode=False)
        sys.stdout.flush()
    except ClickException as problem:
        _refuse(problem)
    except ConnectFailed as problem:
        by_default = DEFAULT_NAMESERVER in str(problem)
        sys.exit(f"saturnmq: {problem}{OTHER_NAMESERVER if by_default else ''}")
    except (SaturnError, LauncherError) as problem:
        sys.exit(f"saturnmq: {problem}")
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output left, as `head` does. The interpreter must not raise again when
        # it flushes the rest of the output.
        drop_output()
        sys.exit(1)
    except OSError as problem:
        named = problem.filename is not None and problem.strerror is not None
        text = f"{problem.filename}: {problem.strerror}" if named else str(problem)
        if problem.errno == errno.EBADF and not has_output:
            drop_output()
            text = "standard output is closed: what was to be printed is lost"
        sys.exit(f"saturnmq: {text}")
    sys.exit(status if isinstance(status, int) else 0)


def _open_closed_files() -> None:
    """Open those of the standard files that the caller closed (`>&-`) on the null device. Else a
    socket or a file of a store gets their number, and with it what is printed. Standard output is
    opened for reading, so that a print fails, as on a full disk, and nothing is lost unseen."""
    files = (
        ("stdin", "r", os.O_RDONLY),
        ("stdout", "w", os.O_RDONLY),
        ("stderr", "w", os.O_WRONLY),
    )
    for name, mode, flags in files:
        if getattr(sys, name) is None:
            file = open(os.open(os.devnull, flags), mode)  # noqa: SIM115 - as long as the process
            os.set_inheritable(file.fileno(), True)
            setattr(sys, name, file)


def _check_texts(arguments: list[str]) -> None:
    """Names of files may have any bytes, all other texts are UTF-8."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            if not os.path.exists(argument):
                raw = os.fsencode(argument)
                sys.exit(f"saturnmq: argument {raw!r} is neither UTF-8 nor the name of a file")


def _refuse(problem: Any) -> NoReturn:
    """A command line that makes no sense: one line, or the help where a command was left out."""
    text = problem.format_message()
    if text and "\n" not in text:
        command = problem.ctx.command_path if getattr(problem, "ctx", None) else "saturnmq"
        text = f"saturnmq: {text.rstrip('.')} (see {command} --help)"
    if text:  # typer prints some helps itself
        print(text, file=sys.stderr)
    sys.exit(problem.exit_code)


if __name__ == "__main__":
    main()
