"""The table of users and access rules: `config/access.json`, written by the broker alone.

    {"dataVersion":DV,"users":{"<name>":UserInfo},"acls":{"<subject>":AclInfo}}

RocketMQ keeps the same in two databases of RocksDB, which are not read. Passwords are kept as they
are, because a signature is made with them: the file is its owner's alone. A slave takes over its
master's table (broker/replication/table_sync.py). An entry that cannot be read refuses the start:
a rule that forbids must not be left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from saturnmq.broker.access.model import Acl, Resource, User, matching, user_of
from saturnmq.broker.tables.table_persistence import Versioned
from saturnmq.protocol import checked
from saturnmq.protocol.access_words import PolicyType
from saturnmq.protocol.credentials import Credentials
from saturnmq.protocol.route import DataVersion
from saturnmq.runtime.errors import InvalidParameter, MalformedFrame, NoPermission

USERS_MAX = 10_000


class AccessTable(Versioned):
    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._users: dict[str, User] = {}
        self._acls: dict[str, Acl] = {}  # by the name of the user
        self._version = DataVersion()

    def validate(self) -> None:
        """AssertionError: an entry has another key than its name, or rules have no user."""
        for name, user in self._users.items():
            assert name == user.name, f"{user.name} is kept as {name}"
        for name, acl in self._acls.items():
            assert name in self._users, f"there are rules for {name}, who is no user"
            assert acl.subject == self._users[name].subject, f"{acl.subject} is kept as {name}"
            assert all(acl.policies.values()), f"{acl.subject} has a policy without rules"

    # users

    def user(self, name: str) -> User | None:
        return self._users.get(name)

    def users(self, part: str = "") -> list[User]:
        """The users whose names contain this text."""
        return [user for name, user in sorted(self._users.items()) if part in name]

    def create_user(self, user: User, *, again: bool = False) -> None:
        """Add a user; `again`: it may be there already, the same. NoPermission: there is one of
        this name. InvalidParameter: there are too many."""
        known = self._users.get(user.name)
        if known is not None and not (again and known == user):
            raise NoPermission(f"user {user.name} exists: alter it, or choose another name")
        if known is None and len(self._users) >= USERS_MAX:
            raise InvalidParameter(f"there are {len(self._users)} users, no more are taken")
        if known is None:
            self._users[user.name] = user
            self._touch()

    def begin(self, first: User) -> None:
        """Begin with the first user of the configuration; a table that was used is left as it is.
        Only at a master: a slave gets its master's."""
        if not self._version.counter:
            self._users[first.name] = first
            self._touch()

    def alter_user(self, user: User) -> None:
        """Put the user in place of the one of its name, which exists."""
        assert user.name in self._users, f"{user.name} is no user"
        if self._users[user.name] != user:
            self._users[user.name] = user
            self._touch()

    def delete_user(self, name: str) -> None:
        """Forget a user, and its rules."""
        if self._users.pop(name, None) is not None:
            self._acls.pop(name, None)
            self._touch()

    # rules

    def acl(self, name: str) -> Acl | None:
        """The rules of a user."""
        return self._acls.get(name)

    def acls(self, subject: str = "", resource: str = "") -> list[Acl]:
        """The rules whose subject and resource contain these texts."""
        return matching((self._acls[name] for name in sorted(self._acls)), subject, resource)

    def add_rules(self, acl: Acl) -> None:
        """Add rules to those of their user. NoPermission: there is no such user."""
        name = self._known(acl.subject)
        before = self._acls.get(name)
        after = acl if before is None else before.with_rules(acl)
        if after != before:
            self._acls[name] = after
            self._touch()

    def delete_rules(
        self,
        subject: str,
        policy: PolicyType,
        resource: Resource | None,
        *,
        again: bool = False,
    ) -> None:
        """Forget the rule for a resource, or all rules of the user. NoPermission: there is no such
        user, or none of its rules, unless that is as wanted (`again`)."""
        name = self._known(subject)
        before = self._acls.pop(name, None)
        if before is None:
            if again:
                return
            raise NoPermission(f"there are no rules for {subject}")
        after = before.without(policy, resource) if resource is not None else None
        if after is not None and after.policies:
            self._acls[name] = after
        if after != before:
            self._touch()

    def _known(self, subject: str) -> str:
        name = user_of(subject)
        if name not in self._users:
            raise NoPermission(f"there is no user {name}: create it first")
        return name

    # the document

    @property
    def data_version(self) -> dict[str, int]:
        return self._version.to_json()

    def document(self) -> dict[str, Any]:
        return {
            "dataVersion": self.data_version,
            "users": {name: user.to_json() for name, user in self._users.items()},
            "acls": {acl.subject: acl.to_json() for acl in self._acls.values()},
        }

    def load(self, document: Mapping[str, Any]) -> None:
        """Read the file. MalformedFrame: it is no such table, and nothing has changed."""
        users, acls = {}, {}
        try:
            for name, value in checked.table(document, "users").items():
                user = User.from_json(checked.as_table(value, f"user {name!r}"))
                users[user.name] = user
            for subject, value in checked.table(document, "acls").items():
                acl = Acl.from_json(subject, checked.as_table(value, f"the rules of {subject!r}"))
                acls[user_of(subject)] = acl
        except InvalidParameter as error:
            raise MalformedFrame(str(error)) from error
        if len(users) > USERS_MAX:
            raise MalformedFrame(f"there are {len(users)} users, over {USERS_MAX}")
        if strangers := acls.keys() - users.keys():
            raise MalformedFrame(f"there are rules for {min(strangers)!r}, who is no user")
        version = DataVersion.from_json(checked.table(document, "dataVersion"))
        self._users, self._acls, self._version = users, acls, version

    def replace_all(self, document: Mapping[str, Any]) -> None:
        """Take over the master's table, on a slave. MalformedFrame: as `load`."""
        before = self.document()
        self.load(document)
        if self.document() != before:
            self.mark_dirty()

    def _touch(self) -> None:
        self._version = DataVersion(self._version.counter + 1, self._now_ms())
        self.mark_dirty()


def super_user(credentials: Credentials) -> User:
    """The super user that these credentials are of."""
    return User.from_json(
        {
            "username": credentials.access_key,
            "password": credentials.secret_key,
            "userType": "Super",
        }
    )
