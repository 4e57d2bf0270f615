"""Users, access rules, and who may do what."""

from __future__ import annotations

import json
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saturnmq.broker.access.model import RULES_MAX, Acl, Need, Resource, ResourceKind, Rule, User
from saturnmq.protocol import fastjson
from saturnmq.protocol.access_words import Action, Decision, PolicyType, UserStatus, UserType
from saturnmq.runtime.errors import InvalidParameter, MalformedFrame

HOST = "10.1.2.3"
NAMES = st.sampled_from(["orders", "orders-eu", "order", "o", "bills"])
KINDS = st.sampled_from([ResourceKind.TOPIC, ResourceKind.GROUP, ResourceKind.CLUSTER])
ACTIONS = st.lists(st.sampled_from(list(Action)), min_size=1, max_size=3, unique=True)
WRITTEN = st.one_of(
    st.just("*"),
    st.builds(lambda kind: f"{kind}:*", KINDS),
    st.builds(lambda kind, name: f"{kind}:{name}", KINDS, NAMES),
    st.builds(lambda kind, name: f"{kind}:{name}*", KINDS, NAMES),
)


def entry(
    resource: str, actions: list[str], decision: str = "Allow", **more: Any
) -> dict[str, Any]:
    return {"resource": resource, "actions": actions, "decision": decision, **more}


def acl(*entries: dict[str, Any], default: list[dict[str, Any]] | None = None) -> Acl:
    policies: list[dict[str, Any]] = [{"entries": list(entries)}]
    if default:
        policies.append({"policyType": "default", "entries": default})
    return Acl.from_json("User:alice", {"policies": policies})


def decided(rules: Acl, kind: ResourceKind, name: str, *actions: Action, host: str = HOST) -> str:
    rule = rules.decides(Need(kind, name, frozenset(actions)), host)
    return "none" if rule is None else f"{rule.decision} {rule.resource}"


def test_the_most_exact_resource_decides() -> None:
    rules = acl(
        entry("*", ["All"], "Deny"),
        entry("Topic:*", ["Pub"]),
        entry("Topic:ord*", ["Pub"], "Deny"),
        entry("Topic:order*", ["Pub"]),
        entry("Topic:orders", ["Pub"], "Deny"),
    )
    pub = Action.PUB
    assert decided(rules, ResourceKind.TOPIC, "orders", pub) == "Deny Topic:orders"
    assert decided(rules, ResourceKind.TOPIC, "orders2", pub) == "Allow Topic:order*"
    assert decided(rules, ResourceKind.TOPIC, "ordinal", pub) == "Deny Topic:ord*"
    assert decided(rules, ResourceKind.TOPIC, "bills", pub) == "Allow Topic:*"
    assert decided(rules, ResourceKind.GROUP, "orders", pub) == "Deny *"


def test_a_rule_is_for_its_actions_only() -> None:
    rules = acl(entry("Topic:orders", ["Pub", "Get"]), entry("Group:g", ["All"]))
    assert decided(rules, ResourceKind.TOPIC, "orders", Action.SUB) == "none"
    assert (
        decided(rules, ResourceKind.TOPIC, "orders", Action.SUB, Action.GET) == "Allow Topic:orders"
    )
    assert decided(rules, ResourceKind.GROUP, "g", Action.DELETE) == "Allow Group:g"


def test_the_default_policy_is_asked_last() -> None:
    default = [entry("Topic:orders", ["Pub"], "Deny"), entry("Topic:bills", ["Pub"])]
    rules = acl(entry("Topic:*", ["Sub"]), entry("*", ["Pub"]), default=default)
    assert decided(rules, ResourceKind.TOPIC, "orders", Action.PUB) == "Allow *", (
        "it fits, if not exactly"
    )
    rules = acl(entry("Topic:*", ["Sub"]), default=default)
    assert decided(rules, ResourceKind.TOPIC, "orders", Action.PUB) == "Deny Topic:orders"
    assert decided(rules, ResourceKind.TOPIC, "bills", Action.PUB) == "Allow Topic:bills"


@pytest.mark.parametrize(
    ("host", "listed", "fits"),
    [
        (HOST, ["10.1.2.3"], True),
        (HOST, ["10.1.0.0/16"], True),
        (HOST, ["10.1.2.9/16"], True),
        (HOST, ["10.2.0.0/16", "192.168.0.1"], False),
        ("::ffff:10.1.2.3", ["10.0.0.0/8"], True),
        ("[2001:db8::1]", ["2001:db8::/32"], True),
        ("2001:db9::1", ["2001:db8::/32"], False),
        ("", ["0.0.0.0/0"], False),
        ("unknown", ["0.0.0.0/0"], False),
    ],
)
def test_a_rule_is_for_its_addresses_only(host: str, listed: list[str], fits: bool) -> None:
    rules = acl(entry("Topic:orders", ["Pub"], sourceIps=listed))
    told = decided(rules, ResourceKind.TOPIC, "orders", Action.PUB, host=host)
    assert told == ("Allow Topic:orders" if fits else "none")


def test_a_rule_that_denies_is_for_unknown_addresses_too() -> None:
    rules = acl(entry("*", ["All"]), entry("Topic:orders", ["Pub"], "Deny", sourceIps=["10.0.0.1"]))
    assert decided(rules, ResourceKind.TOPIC, "orders", Action.PUB, host="") == "Deny Topic:orders"
    assert decided(rules, ResourceKind.TOPIC, "orders", Action.PUB, host="10.0.0.2") == "Allow *"


@given(address=st.ip_addresses(v=4), network=st.ip_addresses(v=4), bits=st.integers(0, 32))
def test_networks_are_those_of_the_standard_library(address: Any, network: Any, bits: int) -> None:
    rule = Rule.from_json(entry("*", ["All"], sourceIps=[f"{network}/{bits}"]))
    access = Need(ResourceKind.TOPIC, "t", frozenset({Action.PUB}))
    expected = ip_address(address) in ip_network(f"{network}/{bits}", strict=False)
    assert rule.fits(access, str(address)) == expected


@given(WRITTEN)
def test_a_resource_is_written_as_it_was_read(text: str) -> None:
    assert str(Resource.read(text)) == text


@given(
    rules=st.lists(st.tuples(WRITTEN, ACTIONS, st.sampled_from(list(Decision))), min_size=1),
    kind=KINDS,
    name=NAMES,
    actions=ACTIONS,
)
def test_the_deciding_rule_fits_and_none_that_fits_is_more_exact(
    rules: list[tuple[str, list[Action], Decision]],
    kind: ResourceKind,
    name: str,
    actions: list[Action],
) -> None:
    """Against the rule in words: one name, the longest beginning, every name, every resource."""
    mine = acl(*(entry(where, list(what), how) for where, what, how in rules))
    access = Need(kind, name, frozenset(actions))
    found = mine.decides(access, HOST)

    def order(text: str) -> tuple[int, int]:
        if text == "*":
            return 0, 0
        own = text.partition(":")[2]
        if own == "*":
            return 1, 0
        return (2, len(own) - 1) if own.endswith("*") else (3, 0)

    last = {where: (what, how) for where, what, how in rules}  # one rule for each resource
    fitting = [
        where
        for where, (what, _) in last.items()
        if (where == "*" or where.split(":")[0] == kind)
        and (where.endswith("*") or where.split(":")[1] == name)
        and (not where.endswith("*") or name.startswith(where.rpartition(":")[2][:-1]))
        and (Action.ALL in what or set(what) & set(actions))
    ]
    if not fitting:
        assert found is None
        return
    best = max(fitting, key=order)
    assert found is not None
    assert (str(found.resource), found.decision) == (best, last[best][1])


@given(st.lists(st.tuples(WRITTEN, ACTIONS, st.sampled_from(list(Decision))), min_size=1))
def test_rules_are_read_as_they_were_written(
    rules: list[tuple[str, list[Action], Decision]],
) -> None:
    mine = acl(
        *(entry(where, list(what), how, sourceIps=["10.0.0.0/8"]) for where, what, how in rules)
    )
    text = fastjson.dumps(mine.to_json())
    assert Acl.from_json("User:alice", json.loads(text)) == mine


def test_new_rules_take_the_place_of_those_for_the_same_resource() -> None:
    before = acl(entry("Topic:a", ["Pub"]), entry("Topic:b", ["Pub"]))
    after = before.with_rules(acl(entry("Topic:b", ["Sub"], "Deny"), entry("Topic:c", ["Sub"])))
    told = [(str(rule.resource), rule.actions, rule.decision) for _, rule in after]
    assert told == [
        ("Topic:a", ("Pub",), "Allow"),
        ("Topic:b", ("Sub",), "Deny"),
        ("Topic:c", ("Sub",), "Allow"),
    ]
    without = after.without(PolicyType.CUSTOM, Resource.read("Topic:b"))
    assert [str(rule.resource) for _, rule in without] == ["Topic:a", "Topic:c"]
    assert [str(rule.resource) for _, rule in before] == ["Topic:a", "Topic:b"], "it is unchanged"


def test_the_last_rule_takes_its_policy_along() -> None:
    mine = acl(entry("Topic:a", ["Pub"]))
    assert mine.without(PolicyType.CUSTOM, Resource.read("Topic:a")).policies == {}
    assert mine.without(PolicyType.DEFAULT, Resource.read("Topic:a")) == mine


def test_rules_of_one_user_are_bounded() -> None:
    many = acl(*(entry(f"Topic:t{i}", ["Pub"]) for i in range(RULES_MAX)))
    with pytest.raises(InvalidParameter, match=f"{RULES_MAX + 1} rules in Custom"):
        many.with_rules(acl(entry("Topic:more", ["Pub"])))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"resource": "orders"}, "write Topic:NAME"),
        ({"resource": "Topic:"}, "write Topic:NAME"),
        ({"resource": f"Topic:{'x' * 256}"}, "write Topic:NAME"),
        ({"resource": "Topics:orders"}, "did you mean 'Topic'"),
        ({"resource": "Namespace:x"}, "must be one of"),
        ({"resource": "Any:orders"}, "write [*] for every resource"),
        ({"actions": []}, "has no actions"),
        ({"actions": ["Any"]}, "an action is 'Any'"),
        ({"actions": ["Publish"]}, "an action is 'Publish'"),
        ({"decision": "maybe"}, "the decision is 'maybe'"),
        ({"decision": None}, "the decision is ''"),
        ({"sourceIps": ["10.0.0.0/40"]}, "sourceIps has '10.0.0.0/40'"),
        ({"sourceIps": [""]}, "sourceIps has ''"),
        ({"sourceIps": ["10.0.0.1"] * 101}, "101 addresses, over 100"),
    ],
)
def test_a_rule_that_would_say_something_else_is_refused(change: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidParameter, match=told):
        acl({**entry("Topic:orders", ["Pub"]), **change})


@pytest.mark.parametrize(
    "document",
    [
        {"policies": [3]},
        {"policies": {}},
        {"policies": [{"entries": [[]]}]},
        {"policies": [{}] * 3},
    ],
)
def test_a_document_of_another_shape_is_malformed(document: dict[str, Any]) -> None:
    with pytest.raises(MalformedFrame):
        Acl.from_json("User:alice", document)


@pytest.mark.parametrize("subject", ["alice", "Group:alice", "User:", f"User:{'x' * 256}"])
def test_rules_are_a_users(subject: str) -> None:
    with pytest.raises(InvalidParameter):
        Acl.from_json(subject, {"policies": [{"entries": [entry("*", ["All"])]}]})


def test_words_are_read_in_any_case_and_written_as_rocketmq_does() -> None:
    user = User.from_json(
        {"username": "alice", "password": "p", "userType": "SUPER", "userStatus": "Disable"}
    )
    assert user == User("alice", "p", UserType.SUPER, UserStatus.DISABLED)
    assert json.loads(fastjson.dumps(user.to_json())) == {
        "username": "alice",
        "password": "p",
        "userType": "Super",
        "userStatus": "disable",
    }
    assert "secret word" not in repr(User("alice", "secret word"))


def test_a_change_of_a_user_leaves_what_it_does_not_name() -> None:
    user = User("alice", "p", UserType.SUPER)
    assert user.changed({"username": "alice"}) == user
    assert user.changed({"userStatus": "disable"}).status is UserStatus.DISABLED
    assert user.changed({"password": "q", "userType": "Normal"}) == User("alice", "q")
