"""`saturnmq user`: the users whom brokers know.

A password is never an argument, which the list of processes shows, and is never printed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from saturnmq.cli.output import (
    DEFAULT_NAMESERVER,
    AsJson,
    DryRun,
    Nameserver,
    Yes,
    emit,
    fail,
    may_destroy,
    table,
)
from saturnmq.cli.topics import admin
from saturnmq.runtime.errors import nearest

user_app = typer.Typer(
    help="Create, list, alter and delete users; `saturnmq acl` has their rules.",
    no_args_is_help=True,
)

STANDARD_INPUT = "-"
PASSWORD_HELP = (
    "A file with the password, or - for standard input; there it is asked for at a terminal."
)
Force = Annotated[
    bool, typer.Option("--force", help="Also the last super user, without whom nobody is let in.")
]
USER_COLUMNS = ["name", "kind", "status"]
RULE_COLUMNS = ["resource", "actions", "decision", "from", "policy"]


@user_app.command("create")
def create(
    name: str,
    is_super: Annotated[
        bool, typer.Option("--super", help="The user may do everything, whatever the rules say.")
    ] = False,
    password_file: Annotated[
        str, typer.Option(metavar="FILE", help=PASSWORD_HELP)
    ] = STANDARD_INPUT,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Create a user on every master."""
    password = read_password(name, password_file)
    kind = "Super" if is_super else "Normal"
    with admin(nameserver) as client:
        brokers = client.create_user(name, password, kind=kind)
    _tell("created", name, brokers, {"kind": kind}, as_json)


@user_app.command("alter")
def alter(
    name: str,
    password_file: Annotated[
        str | None, typer.Option(metavar="FILE", help=f"A new password. {PASSWORD_HELP}")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="Normal | Super")] = None,
    enabled: Annotated[
        bool | None, typer.Option("--enable/--disable", help="Whether brokers let the user in.")
    ] = None,
    force: Force = False,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Change a user on every master; what is not given stays."""
    if password_file is None and kind is None and enabled is None:
        fail("nothing to change: give --password-file, --kind, --enable or --disable")
    password = None if password_file is None else read_password(name, password_file)
    status = None if enabled is None else "enable" if enabled else "disable"
    with admin(nameserver) as client:
        before = known_user(client, name)
        if not force and (status == "disable" or (kind or "super").lower() != "super"):
            _keep_last_super(client, name)
        brokers = client.update_user(name, password=password, kind=kind, status=status)
    # It is not read again: who alters the own user is not let in with the old password any more.
    now = {"kind": (kind or before.kind).capitalize(), "status": status or before.status}
    _tell("altered", name, brokers, now, as_json)


@user_app.command("list")
def list_users(
    part: Annotated[str, typer.Argument(help="Only names that contain this.")] = "",
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """List the users, without their passwords."""
    with admin(nameserver) as client:
        rows = [_shown(user) for user in client.list_users(part)]
    if as_json:
        emit({"users": rows})
    else:
        table("", USER_COLUMNS, [list(row.values()) for row in rows])


@user_app.command("show")
def show(name: str, nameserver: Nameserver = DEFAULT_NAMESERVER, as_json: AsJson = False) -> None:
    """Show a user, and what it may do."""
    with admin(nameserver) as client:
        user = known_user(client, name)
        rules = rules_of(client, name)
    if as_json:
        emit({**_shown(user), "rules": rules})
        return
    table("", USER_COLUMNS, [list(_shown(user).values())])
    show_rules("rules", rules)


@user_app.command("delete")
def delete(
    name: str,
    yes: Yes = False,
    dry_run: DryRun = False,
    force: Force = False,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Delete a user and its rules on every master."""
    with admin(nameserver) as client:
        user = known_user(client, name)
        if not force:
            _keep_last_super(client, name)
        rules = rules_of(client, name)
        facts = {**_shown(user), "rules": rules}
        if not may_destroy(
            facts,
            lambda: show_rules(f"user {name} and these rules go", rules),
            f"Delete user {name}?",
            yes=yes,
            dry_run=dry_run,
            as_json=as_json,
        ):
            return
        brokers = client.delete_user(name)
    if as_json:
        emit({**facts, "brokers": brokers, "done": True})
    else:
        print(f"deleted user {name} on {', '.join(brokers)}")


def read_password(name: str, path: str) -> str:
    """The one line of a file or of standard input; asked for, twice, at a terminal."""
    if path == STANDARD_INPUT and sys.stdin.isatty():
        asked = typer.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True)
        return str(asked)
    try:
        if path == STANDARD_INPUT:
            text = sys.stdin.read()
        else:
            with open(path, encoding="utf-8") as file:
                text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"--password-file {path}: {getattr(error, 'strerror', None) or 'it is no text'}")
    lines = text.splitlines()
    if len(lines) != 1 or not lines[0]:
        place = "standard input" if path == STANDARD_INPUT else path
        fail(f"{place} has {len(lines)} lines: the password is wanted there, one line")
    return lines[0]


def known_user(client: Any, name: str) -> Any:
    """The user with this name; a name that there is not is answered with the nearest one."""
    found = client.get_user(name)
    if found is None:
        names = [user.name for user in client.list_users()]
        fail(f"there is no user {name!r}{nearest(name, names)}")
    return found


def _keep_last_super(client: Any, name: str) -> None:
    """Refuse a change after which no super user is let in: nobody could alter users any more."""
    supers = [
        user.name
        for user in client.list_users()
        if user.kind.lower() == "super" and user.status.lower() == "enable"
    ]
    if supers == [name]:
        fail(
            f"{name} is the only super user whom brokers let in: without one nobody can alter "
            "users. Make another one first (`saturnmq user create NAME --super`), or pass --force; "
            "then only the brokers' own user (innerClientAuthenticationCredentials) can make one"
        )


def rules_of(client: Any, user: str) -> list[dict[str, Any]]:
    """The rules of a user, or of a subject, for JSON."""
    found = client.get_acl(user)
    return [] if found is None else rule_rows(found)


def rule_rows(acl: Any) -> list[dict[str, Any]]:
    """The rules of a user for JSON; the names are those of the commands' options."""
    return [
        {
            "resource": entry.resource,
            "actions": list(entry.actions),
            "decision": entry.decision,
            "from": list(entry.source_ips),
            "policy": entry.policy,
        }
        for entry in acl.entries
    ]


def show_rules(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Rules as a table, with the columns that the rows have."""
    cells = [
        [", ".join(value) if isinstance(value, list) else value for value in row.values()]
        for row in rows
    ]
    table(title, list(rows[0]) if rows else RULE_COLUMNS, cells)


def _shown(user: Any) -> dict[str, Any]:
    return {"name": user.name, "kind": user.kind, "status": user.status}


def _tell(
    done: str, name: str, brokers: Sequence[str], facts: dict[str, Any], as_json: bool
) -> None:
    if as_json:
        emit({"name": name, **facts, "brokers": brokers})
    else:
        print(f"{done} user {name} ({', '.join(facts.values())}) on {', '.join(brokers)}")
