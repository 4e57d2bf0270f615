"""Users and access rules of brokers, in RocketMQ's words (ACL 2.0): codes of
docs/internals/protocol.md 2.5. 3007 is left out: it does what 3006 does.

    3001 3002 create, update a user    username; body UserInfo
    3003 3004 delete, get a user       username
    3005      list users               filter: a part of the name
    3006      add or replace rules     subject; body AclInfo with one policy
    3008      delete rules             subject, policyType, resource
    3009      get the rules of a user  subject
    3010      list rules               subjectFilter, resourceFilter: parts of them

A change goes to every master at once, and the slaves copy theirs. One that some masters refuse may
be made again: those that have it refuse it, or have it as before. Reads ask one broker.

RocketMQ's brokers pass over an action that they do not know, and take a wrong decision for none. So
the words are checked here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from saturnmq.client.cluster_view import BrokerGroups
from saturnmq.client.core import ClientCore
from saturnmq.protocol import checked, fastjson
from saturnmq.protocol.access_words import (
    SUBJECT,
    Action,
    Decision,
    PolicyType,
    UserStatus,
    UserType,
    Word,
)
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import InvalidParameter, MalformedFrame, RouteNotFound, SaturnError

CUSTOM = PolicyType.CUSTOM.value


@dataclass(frozen=True)
class UserInfo:
    """A user, as brokers keep it."""

    name: str
    kind: str
    """`Normal`, or `Super`, who may do everything."""
    status: str
    """`enable` or `disable`."""
    password: str = field(repr=False)


@dataclass(frozen=True)
class PolicyEntryInfo:
    """A rule: whether a user may do something with a resource."""

    policy: str
    """`Custom`, or `Default`, whose rules are asked if none of `Custom` fits."""
    resource: str
    """`Topic:orders`, `Topic:orders*`, `Topic:*`, the same with `Group` and `Cluster`, or `*`."""
    actions: tuple[str, ...]
    """Words of `All`, `Pub`, `Sub`, `Create`, `Update`, `Delete`, `Get`, `List`."""
    decision: str
    """`Allow` or `Deny`."""
    source_ips: tuple[str, ...]
    """Addresses and networks that it is for; empty: all."""


@dataclass(frozen=True)
class AclInfo:
    """The rules of a user."""

    subject: str
    """`User:NAME`."""
    entries: tuple[PolicyEntryInfo, ...]


def subject_of(user: str) -> str:
    """The subject that a user is; one that is written as a subject stays."""
    return user if user.lower().startswith(SUBJECT.lower()) else f"{SUBJECT}{user}"


class AccessAdmin:
    """Changes the users and rules of brokers, which the caller gives. A change answers with the
    names of the brokers that have it."""

    def __init__(self, core: ClientCore, timeout: float) -> None:
        self._core = core
        self._timeout = timeout

    async def set_user(
        self, code: RequestCode, brokers: BrokerGroups, name: str, changes: Mapping[str, str | None]
    ) -> list[str]:
        """Create a user, or change it; `changes` by RocketMQ's names, and None stays."""
        words: dict[str, type[Word]] = {"userType": UserType, "userStatus": UserStatus}
        info = {
            key: words[key].read(value, key) if key in words else value
            for key, value in changes.items()
            if value is not None
        }
        if not info:
            raise InvalidParameter(
                f"nothing to change of user {name}: give a password, a kind or a status"
            )
        if info.get("password") == "":
            raise InvalidParameter(f"the password of user {name} is empty: give a text")
        body = fastjson.dumps({"username": name, **info})
        # One that is there already, the same, is no error: it may have been made at some masters.
        return await self._change(brokers, code, {"username": name, "saturnRepeated": "true"}, body)

    async def delete_user(self, brokers: BrokerGroups, name: str) -> list[str]:
        """Delete a user, with its rules."""
        return await self._change(brokers, RequestCode.AUTH_DELETE_USER, {"username": name})

    async def user(self, brokers: BrokerGroups, name: str) -> UserInfo | None:
        """The user with this name."""
        answer = await self._ask(brokers, RequestCode.AUTH_GET_USER, {"username": name})
        document = checked.document(answer.body)
        return _user(document) if document else None

    async def users(self, brokers: BrokerGroups, part: str) -> list[UserInfo]:
        """The users whose names contain `part`."""
        answer = await self._ask(brokers, RequestCode.AUTH_LIST_USER, {"filter": part})
        return sorted(map(_user, _documents(answer)), key=lambda user: user.name)

    async def add_rules(
        self,
        brokers: BrokerGroups,
        subject: str,
        resources: Iterable[str],
        actions: Iterable[str],
        decision: str,
        source_ips: Iterable[str],
    ) -> list[str]:
        """Give a user a rule for each of these resources."""
        subject = subject_of(subject)
        entry = {
            "actions": [Action.read(each, "an action") for each in _listed(actions, "actions")],
            "decision": Decision.read(decision, "the decision"),
            "sourceIps": _listed(source_ips, "source_ips"),
        }
        entries = [{"resource": each, **entry} for each in _listed(resources, "resources")]
        if not entries or not entry["actions"]:
            what = "action" if entries else "resource"
            raise InvalidParameter(f"the rule for {subject} has no {what}: give one at least")
        policy = {"policyType": CUSTOM, "entries": entries}
        body = fastjson.dumps({"subject": subject, "policies": [policy]})
        ext = {"subject": subject}
        return await self._change(brokers, RequestCode.AUTH_CREATE_ACL, ext, body)

    async def delete_rules(
        self, brokers: BrokerGroups, subject: str, resource: str | None, policy: str | None
    ) -> list[str]:
        """Delete the rule of a user for a resource, or all its rules."""
        ext = {"subject": subject_of(subject)}
        if policy is not None:
            ext["policyType"] = PolicyType.read(policy, "the policy").value
        if resource is not None:
            ext["resource"] = resource
        return await self._change(brokers, RequestCode.AUTH_DELETE_ACL, ext)

    async def rules(self, brokers: BrokerGroups, subject: str) -> AclInfo | None:
        """The rules of a user."""
        ext = {"subject": subject_of(subject)}
        answer = await self._ask(brokers, RequestCode.AUTH_GET_ACL, ext)
        document = checked.document(answer.body)
        return _acl(document) if document else None

    async def all_rules(self, brokers: BrokerGroups, subject: str, resource: str) -> list[AclInfo]:
        """The rules whose subject and resource contain these texts."""
        ext = {"subjectFilter": subject, "resourceFilter": resource}
        answer = await self._ask(brokers, RequestCode.AUTH_LIST_ACL, ext)
        return sorted(map(_acl, _documents(answer)), key=lambda acl: acl.subject)

    async def _ask(self, brokers: BrokerGroups, code: int, ext: dict[str, str]) -> Command:
        addresses = [*brokers.masters.values(), *brokers.serving.values()]
        if not addresses:
            raise RouteNotFound("no broker is registered: start one")
        return await self._core.invoke(addresses[0], Command.request(code, ext), self._timeout)

    async def _change(
        self, brokers: BrokerGroups, code: int, ext: Mapping[str, str], body: bytes = b""
    ) -> list[str]:
        masters = brokers.to_change(brokers.serving)  # a rule holds everywhere, or is refused
        answers = await self._core.invoke_each(masters.values(), code, ext, body, self._timeout)
        outcomes = {name: answers[address] for name, address in masters.items()}
        done = [name for name, each in outcomes.items() if isinstance(each, Command)]
        for name, outcome in outcomes.items():
            if isinstance(outcome, SaturnError) and len(masters) > 1:
                others = f"done at {', '.join(done)}" if done else "done nowhere"
                outcome.args = (f"{outcome} (at broker {name}; {others})",)
            if isinstance(outcome, BaseException):
                raise outcome
        return done


def _listed(values: Iterable[str], what: str) -> list[str]:
    if isinstance(values, str):  # its characters would be taken
        raise InvalidParameter(f"{what} is the text {values!r}: give a list of texts")
    return list(values)


def _documents(answer: Command) -> list[dict[Any, Any]]:
    found = fastjson.loads(answer.body) if answer.body else None
    if found is not None and not isinstance(found, list):
        raise MalformedFrame(f"the body is a JSON {type(found).__name__}, a list is wanted")
    return [checked.as_table(each, "an entry") for each in found or ()]


def _user(document: Mapping[str, Any]) -> UserInfo:
    return UserInfo(
        checked.text(document, "username"),
        checked.text(document, "userType", UserType.NORMAL.value),
        checked.text(document, "userStatus", UserStatus.ENABLED.value),
        checked.text(document, "password", ""),
    )


def _acl(document: Mapping[str, Any]) -> AclInfo:
    policies = [checked.as_table(each, "a policy") for each in checked.items(document, "policies")]
    entries = [
        _entry(checked.text(policy, "policyType", CUSTOM), checked.as_table(each, "a rule"))
        for policy in policies
        for each in checked.items(policy, "entries")
    ]
    return AclInfo(checked.text(document, "subject"), tuple(entries))


def _entry(policy: str, document: Mapping[str, Any]) -> PolicyEntryInfo:
    return PolicyEntryInfo(
        policy,
        checked.text(document, "resource"),
        tuple(checked.texts(document, "actions")),
        checked.text(document, "decision"),
        tuple(checked.texts(document, "sourceIps")),
    )
