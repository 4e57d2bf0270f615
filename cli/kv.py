"""`saturnmq admin kv`: the key-value configuration of the nameservers."""

from __future__ import annotations

from typing import Annotated, NoReturn

import typer
from saturnmq.cli.output import DEFAULT_NAMESERVER, AsJson, Nameserver, emit, fail, table
from saturnmq.cli.topics import admin, kv_entries

kv_app = typer.Typer(
    help="The key-value configuration of nameservers, where the order of topics is.",
    no_args_is_help=True,
)

Namespace = Annotated[str, typer.Argument(help="As ORDER_TOPIC_CONFIG; not that of clients.")]


@kv_app.command("get")
def get(
    namespace: Namespace,
    key: Annotated[str | None, typer.Argument(help="Only this key. Default: all.")] = None,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Show the entries in a namespace, or the value of one key."""
    with admin(nameserver) as client:
        entries = client.kv_config(namespace)
    if key is not None and key not in entries:
        _fail_unknown(namespace, key)
    if as_json:
        emit(entries if key is None else {key: entries[key]})
    elif key is not None:
        print(entries[key])
    else:
        table(namespace, ["key", "value"], sorted(entries.items()))


def _fail_unknown(namespace: str, key: str) -> NoReturn:
    fail(f"there is no key {key!r} in namespace {namespace!r}")


@kv_app.command("put")
def put(
    namespace: Namespace,
    key: str,
    value: str,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Write an entry at every nameserver that is given."""
    with admin(nameserver) as client:
        client.put_kv_config(namespace, key, value)
    if as_json:
        emit({"namespace": namespace, "key": key, "value": value})
    else:
        print(f"wrote {key} in {namespace}")


@kv_app.command("delete")
def delete(
    namespace: Namespace,
    key: str,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Delete an entry at every nameserver that is given.

    Exit status 1 when there is none.
    """
    asked = kv_entries(namespace, key, nameserver)
    if all(value is None for value in asked.found.values()):
        asked.end()  # one that does not answer may have it
        _fail_unknown(namespace, key)
    with admin(nameserver) as client:
        client.delete_kv_config(namespace, key)
    if as_json:
        emit({"namespace": namespace, "deleted": key})
    else:
        print(f"deleted {key} in {namespace}")
