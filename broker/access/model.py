"""Users, access rules, and the decision whether a user may do something. Pure.

A rule has a resource, actions, addresses and a decision. Resources are written as RocketMQ writes
them: `Topic:orders` is one topic, `Topic:orders*` all that begin so, `Topic:*` every topic, `*`
every resource; likewise `Group:` and `Cluster:`. The rules of a user are in two policies. Those of
`Custom` go first: the ones of `Default` are asked only if none of `Custom` fits. Of several that
fit, the one with the most exact resource decides (one name, then the longest beginning, then every
name, then every resource). If none fits, the answer is no. A super user may do everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Any

from saturnmq.protocol import checked
from saturnmq.protocol.access_words import (
    SUBJECT,
    Action,
    Decision,
    PolicyType,
    UserStatus,
    UserType,
    Word,
)
from saturnmq.runtime.errors import InvalidParameter

NAME_MAX = 255  # characters of a user's name, a password, a resource
RULES_MAX = 1000  # of one user in one policy
ADDRESSES_MAX = 100  # of one rule
EVERYTHING = "*"


class ResourceKind(Word):
    """The kind of a resource."""

    ANY = "Any"
    CLUSTER = "Cluster"
    TOPIC = "Topic"
    GROUP = "Group"


@dataclass(frozen=True)
class User:
    name: str
    password: str = field(repr=False)
    kind: UserType = UserType.NORMAL
    status: UserStatus = UserStatus.ENABLED

    @property
    def is_super(self) -> bool:
        return self.kind is UserType.SUPER

    @property
    def subject(self) -> str:
        return f"{SUBJECT}{self.name}"

    def to_json(self, *, hidden: bool = False) -> dict[str, Any]:
        """RocketMQ's UserInfo; `hidden`: without the password."""
        return {
            "username": self.name,
            "password": "" if hidden else self.password,
            "userType": self.kind,
            "userStatus": self.status,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> User:
        """Read a UserInfo. InvalidParameter, MalformedFrame: it is none."""
        user = cls(
            bounded(checked.text(document, "username", ""), "the name of a user"),
            bounded(checked.text(document, "password", ""), "a password"),
        )
        return user.changed(document)

    def changed(self, document: Mapping[str, Any]) -> User:
        """The user with what a UserInfo says; what it leaves out stays."""
        changes: dict[str, Any] = {}
        if password := checked.text(document, "password", ""):
            changes["password"] = bounded(password, "a password")
        if kind := checked.text(document, "userType", ""):
            changes["kind"] = UserType.read(kind, "userType")
        if status := checked.text(document, "userStatus", ""):
            changes["status"] = UserStatus.read(status, "userStatus")
        return replace(self, **changes)


def user_of(subject: str) -> str:
    """The name of the user that a subject names. InvalidParameter: it names none."""
    kind, _, name = subject.partition(":")
    if kind.lower() != "user":
        raise InvalidParameter(f"the subject is {subject!r}; write User:NAME")
    return bounded(name, "the name of a user")


def bounded(text: str, what: str) -> str:
    """`text` itself. InvalidParameter: it is empty, or too long."""
    if not text.strip() or len(text) > NAME_MAX:
        raise InvalidParameter(f"{what} has {len(text)} characters; give it 1 to {NAME_MAX}")
    return text


@dataclass(frozen=True)
class Resource:
    """One name, all that begin with it, or all names (`name` is None) of a kind."""

    kind: ResourceKind
    name: str | None
    is_prefix: bool = False

    @classmethod
    def read(cls, text: str) -> Resource:
        """The resource that is written so. InvalidParameter: none is."""
        if text == EVERYTHING:
            return cls(ResourceKind.ANY, None)
        kind, colon, name = text.partition(":")
        if not colon or not name or len(name) > NAME_MAX:
            raise InvalidParameter(
                f"the resource is {text[: NAME_MAX + 20]!r}; write Topic:NAME, Group:NAME or "
                "Cluster:NAME, where NAME may end in *, or * alone"
            )
        found = ResourceKind.read(kind, "the kind of a resource")
        if found is ResourceKind.ANY:
            raise InvalidParameter(f"the resource is {text!r}; write * for every resource")
        if name == EVERYTHING:
            return cls(found, None)
        is_prefix = name.endswith(EVERYTHING)
        return cls(found, name.removesuffix(EVERYTHING), is_prefix)

    def __str__(self) -> str:
        if self.name is None:
            return EVERYTHING if self.kind is ResourceKind.ANY else f"{self.kind}:{EVERYTHING}"
        return f"{self.kind}:{self.name}{EVERYTHING if self.is_prefix else ''}"

    def covers(self, kind: ResourceKind, name: str) -> bool:
        if self.kind is ResourceKind.ANY:
            return True
        if self.kind is not kind:
            return False
        if self.name is None:
            return True
        return name.startswith(self.name) if self.is_prefix else name == self.name

    @property
    def exactness(self) -> tuple[int, int]:
        """Of two resources that cover a name, the one with the greater exactness decides."""
        if self.name is None:
            return (0 if self.kind is ResourceKind.ANY else 1), 0
        return (2, len(self.name)) if self.is_prefix else (3, 0)


@dataclass(frozen=True)
class Need:
    """The need of a request: one of these actions on a resource with this name."""

    kind: ResourceKind
    name: str
    actions: frozenset[Action]

    def __str__(self) -> str:
        return f"{'/'.join(sorted(self.actions))} of {self.kind}:{self.name}"


@dataclass(frozen=True)
class Rule:
    resource: Resource
    actions: tuple[Action, ...]
    decision: Decision
    source_ips: tuple[str, ...] = ()
    """Addresses and networks (CIDR) that it is for; none: all."""

    def fits(self, need: Need, host: str) -> bool:
        """Whether it says something of this need, from this address."""
        if not self.resource.covers(need.kind, need.name):
            return False
        if Action.ALL not in self.actions and need.actions.isdisjoint(self.actions):
            return False
        if not self.source_ips:
            return True
        address = _address_of(host)
        if address is None:  # it may be one of these
            return self.decision is Decision.DENY
        return any(address in _network_of(each) for each in self.source_ips)

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's PolicyEntryInfo."""
        found: dict[str, Any] = {
            "resource": str(self.resource),
            "actions": list(self.actions),
            "decision": self.decision,
        }
        if self.source_ips:
            found["sourceIps"] = list(self.source_ips)
        return found

    @classmethod
    def from_json(cls, value: object) -> Rule:
        """Read a PolicyEntryInfo. InvalidParameter, MalformedFrame: it is none."""
        data = checked.as_table(value, "a rule")
        actions = [Action.read(each, "an action") for each in checked.texts(data, "actions")]
        if not actions:
            raise InvalidParameter("a rule has no actions: name one, Pub or Sub for example")
        addresses = checked.texts(data, "sourceIps") if data.get("sourceIps") else []
        if len(addresses) > ADDRESSES_MAX:
            raise InvalidParameter(f"a rule has {len(addresses)} addresses, over {ADDRESSES_MAX}")
        return cls(
            Resource.read(checked.text(data, "resource", "")),
            tuple(dict.fromkeys(actions)),
            Decision.read(checked.text(data, "decision", ""), "the decision"),
            tuple(_network(each) for each in addresses),
        )


@dataclass(frozen=True)
class Acl:
    """The rules of one user, by policy and resource: a resource has one rule in a policy."""

    subject: str
    policies: Mapping[PolicyType, Mapping[Resource, Rule]]

    def __iter__(self) -> Iterator[tuple[PolicyType, Rule]]:
        for policy, rules in self.policies.items():
            for rule in rules.values():
                yield policy, rule

    def with_rules(self, other: Acl) -> Acl:
        """The rules of both; of two for one resource that of `other`. InvalidParameter: they are
        too many."""
        policies = dict(self.policies)
        for policy, rules in other.policies.items():
            policies[policy] = {**policies.get(policy, {}), **rules}
            if len(policies[policy]) > RULES_MAX:
                raise InvalidParameter(
                    f"{self.subject} would have {len(policies[policy])} rules in {policy}, the "
                    f"limit is {RULES_MAX}: use resources that end in *"
                )
        return Acl(self.subject, policies)

    def without(self, policy: PolicyType, resource: Resource) -> Acl:
        """The rules but the one for this resource in this policy."""
        rules = dict(self.policies.get(policy, {}))
        rules.pop(resource, None)
        others = {name: each for name, each in self.policies.items() if name is not policy}
        return Acl(self.subject, {**others, policy: rules} if rules else others)

    def decides(self, need: Need, host: str) -> Rule | None:
        """The rule that decides on a need; None if none fits."""
        for policy in (PolicyType.CUSTOM, PolicyType.DEFAULT):
            rules = self.policies.get(policy, {}).values()
            fitting = [rule for rule in rules if rule.fits(need, host)]
            if fitting:
                return max(fitting, key=lambda rule: rule.resource.exactness)
        return None

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's AclInfo."""
        policies = [
            {"policyType": policy, "entries": [rule.to_json() for rule in rules.values()]}
            for policy, rules in self.policies.items()
        ]
        return {"subject": self.subject, "policies": policies}

    @classmethod
    def from_json(cls, subject: str, document: Mapping[str, Any]) -> Acl:
        """Read an AclInfo. InvalidParameter, MalformedFrame: it is none, or has no rule."""
        policies: dict[PolicyType, dict[Resource, Rule]] = {}
        for value in checked.items(document, "policies", len(PolicyType)):
            data = checked.as_table(value, "a policy")
            named = checked.text(data, "policyType", PolicyType.CUSTOM)
            policy = PolicyType.read(named, "policyType")
            rules = policies.setdefault(policy, {})
            for entry in checked.items(data, "entries", RULES_MAX):
                rule = Rule.from_json(entry)
                rules[rule.resource] = rule
        if not any(policies.values()):
            raise InvalidParameter(f"there is no rule for {subject}: give one at least")
        return cls(f"{SUBJECT}{user_of(subject)}", {k: v for k, v in policies.items() if v})


def matching(acls: Iterable[Acl], subject: str, resource: str) -> list[Acl]:
    """The rules whose subject and resource contain these texts."""
    found = []
    for acl in acls:
        if subject not in acl.subject:
            continue
        policies = {
            policy: {each: rule for each, rule in rules.items() if resource in str(each)}
            for policy, rules in acl.policies.items()
        }
        if any(policies.values()):
            found.append(Acl(acl.subject, {k: v for k, v in policies.items() if v}))
    return found


def _network(text: str) -> str:
    try:
        _network_of(text)
    except ValueError as error:
        raise InvalidParameter(
            f"sourceIps has {text[:100]!r}: give an address or a network, 10.0.0.0/8 for example"
        ) from error
    return text


def _address_of(host: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


@lru_cache(1024)
def _network_of(text: str) -> IPv4Network | IPv6Network:
    return ip_network(text, strict=False)
