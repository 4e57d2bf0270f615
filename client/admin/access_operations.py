"""The part of Admin about users and access rules."""

from __future__ import annotations

from collections.abc import Iterable

from saturnmq.client.admin.access import AclInfo, UserInfo
from saturnmq.client.admin.operations import Operations
from saturnmq.protocol.codes import RequestCode


class AccessOperations(Operations):
    """The operations of an Admin on users and access rules.

    Changes are made at every master, and answer with the names of those brokers. RouteNotFound, and
    nothing changed: a broker has no master now. Any other error of a broker is raised when all were
    asked, and says where the change was made.
    """

    async def create_user(self, name: str, password: str, *, kind: str = "Normal") -> list[str]:
        """Create a user. `kind` is "Normal", or "Super" for one who may do everything.
        NoPermission: there is another one of this name."""
        changes = {"password": password, "userType": kind}
        return await self._access.set_user(
            RequestCode.AUTH_CREATE_USER, await self._broker_groups(), name, changes
        )

    async def update_user(
        self,
        name: str,
        *,
        password: str | None = None,
        kind: str | None = None,
        status: str | None = None,
    ) -> list[str]:
        """Change a user; what is None stays. `status` is "enable" or "disable". NoPermission: there
        is no such user."""
        changes = {"password": password, "userType": kind, "userStatus": status}
        return await self._access.set_user(
            RequestCode.AUTH_UPDATE_USER, await self._broker_groups(), name, changes
        )

    async def delete_user(self, name: str) -> list[str]:
        """Delete a user and its rules, if there is one."""
        return await self._access.delete_user(await self._broker_groups(), name)

    async def get_user(self, name: str) -> UserInfo | None:
        """A user, as one broker knows it; None if it does not."""
        return await self._access.user(await self._broker_groups(), name)

    async def list_users(self, filter: str = "") -> list[UserInfo]:
        """The users whose names contain `filter`, as one broker knows them."""
        return await self._access.users(await self._broker_groups(), filter)

    async def create_acl(
        self,
        subject: str,
        resources: Iterable[str],
        actions: Iterable[str],
        decision: str,
        source_ips: Iterable[str] = (),
    ) -> list[str]:
        """Give a user a rule for each resource, in place of the one that it has for it; other rules
        stay. NoPermission: there is no such user.

        subject: the user, by its name or as User:NAME
        resources: each "Topic:NAME", "Group:NAME" or "Cluster:NAME", a NAME that ends in * for all
            that begin so; or "*" for everything
        actions: of "All", "Pub", "Sub", "Create", "Update", "Delete", "Get" and "List"
        decision: "Allow" or "Deny"
        source_ips: addresses and networks of clients that the rule is for; empty for all
        """
        brokers = await self._broker_groups()
        return await self._access.add_rules(
            brokers, subject, resources, actions, decision, source_ips
        )

    update_acl = create_acl

    async def delete_acl(
        self, subject: str, resource: str | None = None, policy_type: str | None = None
    ) -> list[str]:
        """Delete the rule of a user for a resource, in the policy "Custom" or "Default" (None is
        "Custom"); without a resource all its rules. NoPermission: it has none."""
        return await self._access.delete_rules(
            await self._broker_groups(), subject, resource, policy_type
        )

    async def get_acl(self, subject: str) -> AclInfo | None:
        """The rules of a user, as one broker knows them; None if it has none."""
        return await self._access.rules(await self._broker_groups(), subject)

    async def list_acls(self, subject: str = "", resource: str = "") -> list[AclInfo]:
        """The rules whose subject and resource contain these texts, as one broker knows them, by
        user."""
        return await self._access.all_rules(await self._broker_groups(), subject, resource)
