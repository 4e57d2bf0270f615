"""`saturnmq user` and `saturnmq acl` over a real broker, as its super user."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from saturnmq import Admin, Credentials, SaturnError
from saturnmq.cli.main import app
from saturnmq.protocol.credentials import ACCESS_VARIABLE, SECRET_VARIABLE
from served_rig import served
from typer.testing import CliRunner

runner = CliRunner()
ROOT_USER = Credentials("root", "secret of root")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def nameserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("broker")
    first = '{"username":"root","password":"secret of root"}'
    with served(root, authentication=True, authorization=True, init_user=first) as address:
        yield address


@pytest.fixture
def environment(nameserver: str) -> dict[str, str]:
    return {
        "SATURNMQ_NAMESERVER": nameserver,
        ACCESS_VARIABLE: ROOT_USER.access_key,
        SECRET_VARIABLE: ROOT_USER.secret_key,
        "COLUMNS": "200",
        "TERM": "dumb",
    }


@pytest.fixture
def run(environment: dict[str, str]) -> Run:
    """A command; its exit status, what it prints and what it says of errors."""

    def run_one(*arguments: str, input: str | None = None) -> tuple[int, str, str]:
        done = runner.invoke(app, list(arguments), env=environment, input=input)
        if isinstance(done.exception, SaturnError):  # which the program's main tells
            return 1, done.stdout, f"saturnmq: {done.exception}\n"
        return done.exit_code, done.stdout, done.stderr

    return run_one


@pytest.fixture
def admin(nameserver: str) -> Iterator[Admin]:
    with Admin(nameserver, credentials=ROOT_USER) as client:
        yield client
        for user in client.list_users():
            if user.name != "root":
                client.delete_user(user.name)


@pytest.fixture
def ann(admin: Admin) -> str:
    admin.create_user("ann", "hunter2")
    return "ann"


def answer_of(done: tuple[int, str, str]) -> Any:
    assert done[0] == 0, done
    return json.loads(done[1])


def password(admin: Admin, name: str) -> str:
    found = admin.get_user(name)
    assert found is not None
    return found.password


def test_the_password_of_a_new_user_comes_from_a_file_or_standard_input(
    run: Run, admin: Admin, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2 \n")
    done = run("user", "create", "ann", "--password-file", str(secret))
    assert done == (0, "created user ann (Normal) on broker-a\n", "")
    assert password(admin, "ann") == "hunter2 "
    made = answer_of(run("user", "create", "bob", "--super", "--json", input="hunter3\r\n"))
    assert made == {"name": "bob", "kind": "Super", "brokers": ["broker-a"]}
    assert password(admin, "bob") == "hunter3"
    again = run("user", "create", "ann", "--password-file", str(secret))
    assert again == done, "as after a failure at one of several masters"
    status, _, told = run("user", "create", "ann", input="another\n")
    assert status == 1
    assert "user ann exists" in told


@pytest.mark.parametrize("text", ["", "\n", "one\ntwo\n"])
def test_a_password_is_one_line(run: Run, admin: Admin, tmp_path: Path, text: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text(text)
    for arguments in (("--password-file", str(secret)), ("--password-file", "-"), ()):
        status, shown, told = run("user", "create", "ann", *arguments, input=text)
        assert (status, shown) == (1, "")
        assert told.startswith("saturnmq: " + (arguments[1] if "secret" in told else "standard"))
        assert "the password is wanted there, one line" in told
    status, _, told = run("user", "create", "ann", "--password-file", str(tmp_path / "none"))
    assert (status, told) == (
        1,
        f"saturnmq: --password-file {tmp_path / 'none'}: No such file or directory\n",
    )
    secret.write_bytes(b"\xff\n")
    assert "it is no text" in run("user", "create", "ann", "--password-file", str(secret))[2]
    assert admin.get_user("ann") is None


def test_a_password_is_asked_for_at_a_terminal_and_not_shown(
    admin: Admin, environment: dict[str, str]
) -> None:
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "saturnmq.cli.main", "user", "create", "ann"]
    process = subprocess.Popen(
        command, stdin=child, stdout=child, stderr=child, env={**os.environ, **environment}
    )
    os.close(child)
    shown = b""
    try:
        for question in (b"Password of ann: ", b"Repeat for confirmation: "):
            while not shown.endswith(question):
                shown += os.read(parent, 1)
            os.write(parent, b"hunter2\n")
        while b"broker-a" not in shown:
            shown += os.read(parent, 1)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(parent)
    assert b"hunter2" not in shown
    assert password(admin, "ann") == "hunter2"


def test_users_are_listed_shown_and_altered_without_their_passwords(
    run: Run, admin: Admin, ann: str
) -> None:
    row = {"name": "ann", "kind": "Normal", "status": "enable"}
    root = {"name": "root", "kind": "Super", "status": "enable"}
    assert answer_of(run("user", "list", "--json")) == {"users": [row, root]}
    assert answer_of(run("user", "list", "oo", "--json")) == {"users": [root]}
    assert answer_of(run("user", "show", "ann", "--json")) == {**row, "rules": []}
    done = run("user", "alter", "ann", "--disable", "--password-file", "-", input="hunter3")
    assert done == (0, "altered user ann (Normal, disable) on broker-a\n", "")
    assert password(admin, "ann") == "hunter3"
    altered = answer_of(run("user", "alter", "ann", "--enable", "--kind", "super", "--json"))
    assert altered == {**row, "kind": "Super", "brokers": ["broker-a"]}
    shown = run("user", "list")[1] + run("user", "show", "ann")[1]
    assert "ann" in shown
    assert "Super" in shown
    assert "hunter3" not in shown
    assert "secret of root" not in shown
    status, _, told = run("user", "alter", "ann")
    assert (status, told.partition(":")[2]) == (
        1,
        " nothing to change: give --password-file, --kind, --enable or --disable\n",
    )
    assert "did you mean 'Super'" in run("user", "alter", "ann", "--kind", "supper")[2]


def test_a_user_changes_the_own_password(
    run: Run, admin: Admin, environment: dict[str, str]
) -> None:
    admin.create_user("ann", "hunter2", kind="Super")
    environment |= {ACCESS_VARIABLE: "ann", SECRET_VARIABLE: "hunter2"}
    done = run("user", "alter", "ann", "--password-file", "-", input="hunter3")
    assert done == (0, "altered user ann (Super, enable) on broker-a\n", "")
    assert password(admin, "ann") == "hunter3"
    assert "access denied: " in run("user", "list")[2]


@pytest.mark.parametrize(
    "command",
    [
        ("alter", "root", "--disable"),
        ("alter", "root", "--kind", "normal"),
        ("delete", "root", "--yes"),
        ("delete", "root", "--dry-run"),
    ],
)
def test_the_last_super_user_stays_unless_it_is_forced(
    run: Run, admin: Admin, command: tuple[str, ...]
) -> None:
    admin.create_user("gone", "hunter2", kind="Super")
    admin.update_user("gone", status="disable")
    status, shown, told = run("user", *command)
    assert (status, shown) == (1, "")
    assert told.startswith("saturnmq: root is the only super user whom brokers let in: ")
    assert "user create NAME --super" in told
    assert [user.status for user in admin.list_users("root")] == ["enable"]


def test_a_super_user_beside_whom_there_is_another_one_can_go(run: Run, admin: Admin) -> None:
    for name in ("one", "two"):
        admin.create_user(name, "hunter2", kind="Super")
    assert run("user", "alter", "one", "--disable")[0] == 0
    assert run("user", "alter", "two", "--kind", "Normal")[0] == 0
    assert run("user", "delete", "one", "--yes")[0] == 0


@pytest.mark.parametrize("command", [("alter", "root", "--disable"), ("delete", "root", "--yes")])
def test_the_last_super_user_goes_by_force(
    tmp_path: Path, run: Run, command: tuple[str, ...]
) -> None:
    first = '{"username":"root","password":"secret of root"}'
    with served(tmp_path, authentication=True, init_user=first) as nameserver:
        where = ("--nameserver", nameserver)
        assert run("user", *command, "--force", *where)[0] == 0
        assert "access denied" in run("user", "list", *where)[2]


@pytest.mark.parametrize(
    "command",
    [
        ("user", "show"),
        ("user", "alter", "--disable"),
        ("user", "delete", "--yes"),
        ("acl", "show"),
        ("acl", "delete", "--yes"),
        ("acl", "allow", "--actions", "pub"),
    ],
)
def test_an_unknown_user_is_answered_with_the_nearest_one(
    run: Run, ann: str, command: tuple[str, ...]
) -> None:
    more = ["Topic:a"] if command[1] == "allow" else []
    status, shown, told = run(*command, "anna", *more)
    assert (status, shown) == (1, "")
    assert told == "saturnmq: there is no user 'anna'; did you mean 'ann'?\n"


def test_rules_are_given_listed_and_shown(run: Run, admin: Admin, ann: str) -> None:
    topics, from_ = ["Topic:orders", "Topic:bills*"], ["10.0.0.0/8", "::1"]
    done = run(
        "acl",
        "allow",
        "ann",
        *topics,
        "--actions",
        "pub, Sub",
        "--from",
        "10.0.0.0/8",
        "--from",
        "::1",
    )
    told = "allowed ann pub, Sub on Topic:orders, Topic:bills* from 10.0.0.0/8, ::1, at broker-a\n"
    assert done == (0, told, "")
    done = run("acl", "deny", "User:ann", "Topic:bills-old", "--actions", "all", "--json")
    assert answer_of(done) == {
        "user": "ann",
        "resources": ["Topic:bills-old"],
        "actions": ["all"],
        "decision": "Deny",
        "from": [],
        "brokers": ["broker-a"],
    }
    rules = [
        {
            "resource": resource,
            "actions": ["Pub", "Sub"],
            "decision": "Allow",
            "from": from_,
            "policy": "Custom",
        }
        for resource in topics
    ] + [
        {
            "resource": "Topic:bills-old",
            "actions": ["All"],
            "decision": "Deny",
            "from": [],
            "policy": "Custom",
        }
    ]
    for subject in ("ann", "User:ann", "user:ann"):
        assert answer_of(run("acl", "show", subject, "--json")) == {"user": "ann", "rules": rules}
    assert answer_of(run("user", "show", "ann", "--json"))["rules"] == rules
    listed = answer_of(run("acl", "list", "--resource", "old", "--json"))
    assert listed == {"rules": [{"user": "ann", **rules[2]}]}
    assert len(answer_of(run("acl", "list", "--user", "an", "--json"))["rules"]) == 3
    assert answer_of(run("acl", "list", "--user", "User", "--json")) == {"rules": []}
    for command in (("acl", "list"), ("acl", "show", "ann"), ("user", "show", "ann")):
        shown = run(*command)[1]
        assert "Pub, Sub" in shown
        assert "10.0.0.0/8, ::1" in shown
    assert "did you mean 'Pub'" in run("acl", "allow", "ann", "*", "--actions", "pubs")[2]
    assert "sourceIps" in run("acl", "allow", "ann", "*", "--actions", "pub", "--from", "x")[2]
    assert run("acl", "allow", "ann", "orders", "--actions", "pub")[0] == 1


def test_rules_and_users_are_deleted_when_it_was_said_what_goes(
    run: Run, admin: Admin, ann: str
) -> None:
    admin.create_acl("ann", ["Topic:a", "Topic:b"], ["Pub"], "Allow")
    (rule_a, rule_b) = answer_of(run("acl", "show", "ann", "--json"))["rules"]
    preview = {"user": "ann", "rules": [rule_a], "done": False}
    assert answer_of(run("acl", "delete", "ann", "Topic:a", "--dry-run", "--json")) == preview
    refusal = "saturnmq: there is no terminal to ask at: pass --yes to do it\n"
    status, shown, told = run("acl", "delete", "ann", "Topic:a")
    assert (status, told) == (1, refusal)
    assert "Topic:a" in shown
    done = run("acl", "delete", "ann", "Topic:a", "--yes", "--json")
    assert answer_of(done) == {**preview, "brokers": ["broker-a"], "done": True}
    status, _, told = run("acl", "delete", "ann", "Topic:a", "--yes")
    assert (status, told) == (1, "saturnmq: user ann has no rule for Topic:a in Custom\n")
    status, _, told = run("acl", "delete", "ann", "Topic:b", "--policy", "default", "--yes")
    assert (status, told) == (1, "saturnmq: user ann has no rule for Topic:b in default\n")
    status, shown, _ = run("acl", "delete", "ann", "--yes")
    assert (status, shown.splitlines()[-1]) == (
        0,
        "deleted the rules of ann for Topic:b, at broker-a",
    )
    assert admin.get_acl("ann") is None
    assert run("acl", "delete", "ann", "--yes")[2] == "saturnmq: user ann has no rule\n"

    admin.create_acl("ann", ["Topic:b"], ["Pub"], "Allow")
    facts = {"name": "ann", "kind": "Normal", "status": "enable", "rules": [rule_b]}
    preview = {**facts, "done": False}
    assert answer_of(run("user", "delete", "ann", "--dry-run", "--json")) == preview
    status, shown, told = run("user", "delete", "ann")
    assert (status, told) == (1, refusal)
    assert "Topic:b" in shown
    assert admin.get_user("ann") is not None
    done = run("user", "delete", "ann", "--yes", "--json")
    assert answer_of(done) == {**facts, "brokers": ["broker-a"], "done": True}
    assert admin.get_user("ann") is None
    admin.create_user("ann", "hunter2")
    assert run("user", "delete", "ann", "--yes")[1].endswith("deleted user ann on broker-a\n")


def test_a_command_without_a_user_says_that_it_is_denied(
    run: Run, environment: dict[str, str]
) -> None:
    del environment[ACCESS_VARIABLE], environment[SECRET_VARIABLE]
    status, shown, told = run("user", "list")
    assert (status, shown) == (1, "")
    assert "access denied: " in told
