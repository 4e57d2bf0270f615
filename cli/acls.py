"""`saturnmq acl`: the rules that say what users may do (RocketMQ's ACL 2.0)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

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
)
from saturnmq.cli.topics import admin
from saturnmq.cli.users import known_user, rule_rows, rules_of, show_rules

acl_app = typer.Typer(
    help="Allow and deny users to do something; list and delete rules.", no_args_is_help=True
)

Subject = Annotated[str, typer.Argument(metavar="USER", help="NAME, or User:NAME.")]
Resources = Annotated[
    list[str],
    typer.Argument(
        metavar="RESOURCE...",
        help="Topic:NAME, Group:NAME or Cluster:NAME; NAME* is all that begin so, * everything.",
    ),
]
Actions = Annotated[
    str,
    typer.Option(help="pub, sub, create, update, delete, get, list or all, separated by commas."),
]
From = Annotated[
    list[str] | None,
    typer.Option(
        "--from", metavar="IP", help="Only from this address or network. Repeat for more."
    ),
]


@acl_app.command("allow")
def allow(
    user: Subject,
    resources: Resources,
    actions: Actions,
    source_ips: From = None,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Allow a user actions on resources, on every master.

    A rule for the same resource is replaced.
    """
    _add("Allow", user, resources, actions, source_ips, nameserver, as_json)


@acl_app.command("deny")
def deny(
    user: Subject,
    resources: Resources,
    actions: Actions,
    source_ips: From = None,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Deny a user actions on resources, on every master.

    Anything that no rule allows is denied already: this is for exceptions from a wider rule. A rule
    for the same resource is replaced.
    """
    _add("Deny", user, resources, actions, source_ips, nameserver, as_json)


def _add(
    decision: str,
    user: str,
    resources: Sequence[str],
    actions: str,
    source_ips: Sequence[str] | None,
    nameserver: str,
    as_json: bool,
) -> None:
    named = [each.strip() for each in actions.split(",") if each.strip()]
    with admin(nameserver) as client:
        known_user(client, _name(user))
        brokers = client.create_acl(user, resources, named, decision, source_ips or ())
    facts = {
        "user": _name(user),
        "resources": resources,
        "actions": named,
        "decision": decision,
        "from": source_ips or [],
        "brokers": brokers,
    }
    if as_json:
        emit(facts)
        return
    done = "allowed" if decision == "Allow" else "denied"
    where = f" from {', '.join(source_ips)}" if source_ips else ""
    print(
        f"{done} {_name(user)} {', '.join(named)} on {', '.join(resources)}{where}, "
        f"at {', '.join(brokers)}"
    )


@acl_app.command("list")
def list_acls(
    user: Annotated[str, typer.Option(help="Only users whose names contain this.")] = "",
    resource: Annotated[str, typer.Option(help="Only resources that contain this.")] = "",
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """List the rules of all users."""
    with admin(nameserver) as client:
        found = client.list_acls(user, resource)
    rows = [
        {"user": _name(acl.subject), **row}
        for acl in found
        if user in _name(acl.subject)  # the broker looks for it in User:NAME
        for row in rule_rows(acl)
    ]
    if as_json:
        emit({"rules": rows})
        return
    show_rules("", rows)


@acl_app.command("show")
def show(
    user: Subject, nameserver: Nameserver = DEFAULT_NAMESERVER, as_json: AsJson = False
) -> None:
    """Show the rules of a user."""
    with admin(nameserver) as client:
        known_user(client, _name(user))
        rows = rules_of(client, user)
    if as_json:
        emit({"user": _name(user), "rules": rows})
    else:
        show_rules(_name(user), rows)


@acl_app.command("delete")
def delete(
    user: Subject,
    resource: Annotated[
        str | None, typer.Argument(help="Of the rule to delete. Default: all rules of the user.")
    ] = None,
    policy: Annotated[str, typer.Option(help="Custom | Default, where the rule is.")] = "Custom",
    yes: Yes = False,
    dry_run: DryRun = False,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Delete the rule of a user for a resource, or all its rules, on every master."""
    name = _name(user)
    with admin(nameserver) as client:
        known_user(client, name)
        rules = rules_of(client, user)
        if resource is not None:
            where = policy.lower(), resource
            rules = [row for row in rules if (row["policy"].lower(), row["resource"]) == where]
        if not rules:
            fail(f"user {name} has no rule" + (f" for {resource} in {policy}" if resource else ""))
        facts = {"user": name, "rules": rules}
        if not may_destroy(
            facts,
            lambda: show_rules(f"these rules of {name} go", rules),
            f"Delete these rules of {name}?",
            yes=yes,
            dry_run=dry_run,
            as_json=as_json,
        ):
            return
        brokers = client.delete_acl(user, resource, policy)
    if as_json:
        emit({**facts, "brokers": brokers, "done": True})
    else:
        what = ", ".join(row["resource"] for row in rules)
        print(f"deleted the rules of {name} for {what}, at {', '.join(brokers)}")


def _name(subject: str) -> str:
    kind, _, name = subject.partition(":")
    return name if kind.lower() == "user" else subject
