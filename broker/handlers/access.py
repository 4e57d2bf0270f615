"""Requests about users and access rules: codes 3001 to 3010, of RocketMQ's tools, and 390008.

A change is answered when the table is on disk. A slave passes it on to its master as its user has
signed it, and answers what that answers: RocketMQ's tools send each change to master and slaves,
one after the other. So a change that a slave passes on may have been made already. Only super users
make super users, change them or delete them. A broker that checks nobody has no users to manage.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from saturnmq.broker import bodies
from saturnmq.broker.access.guard import denied
from saturnmq.broker.access.model import Acl, Resource, User, bounded, user_of
from saturnmq.broker.context import Context, answer, answer_failure, check_master
from saturnmq.broker.tables.table_persistence import Saveable, save_all
from saturnmq.protocol import admin_headers, fastjson
from saturnmq.protocol.access_words import PolicyType
from saturnmq.protocol.asking import ask_once
from saturnmq.protocol.credentials import PASSED_ON
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import NoPermission, SystemBusy

PASS_ON_S = 3.0
_user, _changed = bodies.refusing(User.from_json), bodies.refusing(User.changed)
_acl = bodies.refusing(Acl.from_json)


class AccessService:
    def __init__(
        self,
        context: Context,
        master_address: Callable[[], str],
        save: Callable[[Saveable], Awaitable[None]],
    ) -> None:
        """`master_address`: of this slave's master."""
        self._c = context
        self._table = context.access
        self._master_address = master_address
        self._save = save

    # users

    def on_create_user(
        self, endpoint: Endpoint, request: Command, header: admin_headers.UserHeader
    ) -> None:
        self._check_managed()
        user = _user(_user_info(request, header))
        if user.is_super:
            self._check_super(endpoint, request)
        again = header.repeated or header.passed_on
        self._change(endpoint, request, lambda: self._table.create_user(user, again=again))

    def on_update_user(
        self, endpoint: Endpoint, request: Command, header: admin_headers.UserHeader
    ) -> None:
        self._check_managed()
        info, name = _user_info(request, header), header.username
        known = self._table.user(name)
        changed = None if known is None else _changed(known, info)
        if any(each is not None and each.is_super for each in (known, changed)):
            self._check_super(endpoint, request)

        def change() -> None:
            before = self._table.user(name)
            if before is None:
                raise NoPermission(f"there is no user {name}: create it first")
            self._table.alter_user(_changed(before, info))

        self._change(endpoint, request, change)

    def on_delete_user(
        self, endpoint: Endpoint, request: Command, header: admin_headers.UserHeader
    ) -> None:
        self._check_managed()
        known = self._table.user(header.username)
        if known is not None and known.is_super:
            self._check_super(endpoint, request)
        self._change(endpoint, request, lambda: self._table.delete_user(header.username))

    def on_get_user(
        self, endpoint: Endpoint, request: Command, header: admin_headers.UserHeader
    ) -> None:
        self._check_managed()
        user = self._table.user(header.username)
        body = b"" if user is None else fastjson.dumps(self._shown(endpoint, request, user))
        answer(endpoint, request, request.reply(0, body=body))

    def on_list_users(
        self, endpoint: Endpoint, request: Command, header: admin_headers.UserFilterHeader
    ) -> None:
        self._check_managed()
        found = self._table.users(header.part)
        users = [self._shown(endpoint, request, user) for user in found]
        answer(endpoint, request, request.reply(0, body=fastjson.dumps(users) if users else b""))

    # rules

    def on_add_rules(
        self, endpoint: Endpoint, request: Command, header: admin_headers.SubjectHeader
    ) -> None:
        document = bodies.document(request)
        acl = _acl(header.subject, document)
        self._change(endpoint, request, lambda: self._table.add_rules(acl))

    def on_delete_rules(
        self, endpoint: Endpoint, request: Command, header: admin_headers.DeleteAclHeader
    ) -> None:
        policy = PolicyType.read(header.policy_type or PolicyType.CUSTOM, "policyType")
        resource = Resource.read(header.resource) if header.resource else None
        self._change(
            endpoint,
            request,
            lambda: self._table.delete_rules(
                header.subject, policy, resource, again=header.passed_on
            ),
        )

    def on_get_rules(
        self, endpoint: Endpoint, request: Command, header: admin_headers.SubjectHeader
    ) -> None:
        self._check_managed()
        acl = self._table.acl(user_of(header.subject))
        body = b"" if acl is None else fastjson.dumps(acl.to_json())
        answer(endpoint, request, request.reply(0, body=body))

    def on_list_rules(
        self, endpoint: Endpoint, request: Command, header: admin_headers.AclFilterHeader
    ) -> None:
        self._check_managed()
        found = [acl.to_json() for acl in self._table.acls(header.subject, header.resource)]
        answer(endpoint, request, request.reply(0, body=fastjson.dumps(found) if found else b""))

    def on_check(
        self, endpoint: Endpoint, request: Command, _: admin_headers.CheckAccessHeader
    ) -> None:
        """390008: the guard has let it pass."""
        is_checked = "false" if self._c.guard is None else "true"
        answer(endpoint, request, request.reply(0, ext={"saturnGuarded": is_checked}))

    # both

    def _check_managed(self) -> None:
        if self._c.guard is None:
            raise NoPermission(
                "this broker checks no users, and has none to manage: set authenticationEnabled "
                "and initAuthenticationUser, and start it again"
            )

    def _check_super(self, endpoint: Endpoint, request: Command) -> None:
        """AccessDenied: the request is not of a super user."""
        if not self._is_super(endpoint, request):
            raise denied("only super users make super users, change them or delete them")

    def _is_super(self, endpoint: Endpoint, request: Command) -> bool:
        guard = self._c.guard
        return guard is None or guard.user_of(endpoint, request).is_super

    def _shown(self, endpoint: Endpoint, request: Command, user: User) -> dict[str, Any]:
        """A user, without its password if that is a super user's and the asker is none."""
        return user.to_json(hidden=user.is_super and not self._is_super(endpoint, request))

    def _change(self, endpoint: Endpoint, request: Command, change: Callable[[], None]) -> None:
        """Make a change of the table, or have the master make it, and answer."""
        self._check_managed()
        request.body = bytes(request.body)
        work = self._pass_on if self._c.role.is_slave else self._apply
        answered = answer_failure(self._c, endpoint, request, work(endpoint, request, change))
        self._c.runtime.spawn(answered, name="change-access")

    async def _apply(
        self, endpoint: Endpoint, request: Command, change: Callable[[], None]
    ) -> None:
        check_master(self._c)
        change()
        await save_all(self._save, self._table)
        answer(endpoint, request, request.reply(0))

    async def _pass_on(self, endpoint: Endpoint, request: Command, _: Callable[[], None]) -> None:
        c, master = self._c, self._master_address()
        if not master:
            raise SystemBusy("this slave does not know its master; ask that")
        # With the signature of its user, whom the master knows better.
        passed = Command.request(request.code, {**request.ext, PASSED_ON: "true"}, request.body)
        passed.version = request.version
        try:
            await ask_once(c.runtime, master, passed, PASS_ON_S)
        except OSError as error:
            raise SystemBusy(f"the master at {master} does not answer: {error}") from error
        answer(endpoint, request, request.reply(0))


def _user_info(request: Command, header: admin_headers.UserHeader) -> dict[str, object]:
    name = bounded(header.username, "the name of a user")
    return {**bodies.document(request), "username": name}
