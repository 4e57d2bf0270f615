"""The program `saturnmq`: one typer application; each group of commands is a module beside this
one.

Exit status: 0 only on success, 1 when the work could not be done (one line on standard error says
why), 2 for a command line that makes no sense (with the nearest right name).
"""

from __future__ import annotations

import sys
from typing import Any

import typer
from saturnmq.cli import bench, cluster, demo, messages, nodes, topics
from saturnmq.cli.launcher import LauncherError
from saturnmq.cli.output import AsJson, emit, table

app = typer.Typer(
    name="saturnmq",
    help="A replicated message queue in Python that speaks RocketMQ's protocols.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("nameserver")(nodes.nameserver)
app.command("broker")(nodes.broker)
app.add_typer(cluster.app, name="cluster")
app.add_typer(topics.topic_app, name="topic")
app.add_typer(topics.group_app, name="group")
app.command("produce")(messages.produce)
app.command("consume")(messages.consume)
app.add_typer(messages.message_app, name="message")
app.add_typer(bench.app, name="bench")
app.command("demo")(demo.demo)


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
    from saturnmq.protocol.errors import SaturnError

    try:
        app()
    except (SaturnError, LauncherError) as problem:
        sys.exit(f"saturnmq: {problem}")
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)  # the reader of our output left, as `head` does
    except OSError as problem:
        sys.exit(f"saturnmq: {problem}")


if __name__ == "__main__":
    main()
