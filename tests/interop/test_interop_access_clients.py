"""Users and access rules of RocketMQ's broker: our clients sign their requests, and our Admin makes
its users and rules."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import interop_nodes
import pytest
from client_work_rig import WORK
from interop_nodes import ROCKETMQ
from saturnmq import Admin, Credentials, Message, Producer
from saturnmq.cli.free_ports import free_block
from saturnmq.client.admin.access import PolicyEntryInfo
from saturnmq.protocol.credentials import ACCESS_VARIABLE, SECRET_VARIABLE
from saturnmq.runtime.errors import AccessDenied, NoPermission

AUTH = "org.apache.rocketmq.auth"
ROOT_USER = Credentials("root", "secret of root")
CHECKING = {
    "authenticationEnabled": "true",
    "authenticationProvider": f"{AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": (
        f"{AUTH}.authentication.provider.LocalAuthenticationMetadataProvider"
    ),
    "authorizationEnabled": "true",
    "authorizationProvider": f"{AUTH}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": (
        f"{AUTH}.authorization.provider.LocalAuthorizationMetadataProvider"
    ),
    "initAuthenticationUser": '{"username":"root","password":"secret of root"}',
    "timerWheelEnable": "true",  # else it forbids pops
    "innerClientAuthenticationCredentials": ('{"accessKey":"root","secretKey":"secret of root"}'),
}


@pytest.mark.quick
@pytest.mark.timeout(240)
def test_our_clients_are_users_of_rocketmqs_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figures: Counter[str]
) -> None:
    monkeypatch.setenv(ACCESS_VARIABLE, ROOT_USER.access_key)
    monkeypatch.setenv(SECRET_VARIABLE, ROOT_USER.secret_key)
    ann = Credentials("ann", "hunter2")
    with interop_nodes.nodes(tmp_path, interop_nodes.rocketmq_jars()) as nodes:
        port = free_block("127.0.0.1", 4)
        nodes.broker(ROCKETMQ, tmp_path / "store", port, CHECKING)
        nameserver = nodes.nameserver(ROCKETMQ)

        def send(body: bytes) -> None:
            with Producer("p", nameserver, credentials=ann) as producer:
                producer.send(Message("sent", body))

        with Admin(nameserver) as admin:
            admin.create_topic("sent")
            assert admin.create_user("ann", "hunter2") == [interop_nodes.BROKER]
            with pytest.raises(NoPermission):
                admin.create_user("ann", "hunter3")
            found = admin.get_user("ann")
            assert found is not None
            assert (found.kind, found.status, found.password) == ("Normal", "enable", "hunter2")
            assert [user.name for user in admin.list_users()] == ["ann", "root"]
            assert admin.get_user("bob") is None
            with pytest.raises(AccessDenied):
                send(b"1")
            admin.create_acl(
                "ann", ["Topic:sent", "Group:*"], ["pub", "sub"], "allow", ["127.0.0.1"]
            )
            send(b"2")
            rules = admin.get_acl("ann")
            assert rules is not None
            assert admin.list_acls("ann") == [rules]
            only = PolicyEntryInfo("Custom", "Topic:sent", ("Pub", "Sub"), "Allow", ("127.0.0.1",))
            assert only in rules.entries
            admin.delete_acl("ann", "Group:*")
            rules = admin.get_acl("ann")
            assert rules is not None
            assert rules.entries == (only,)
            admin.update_acl("ann", ["Topic:sent"], ["pub"], "deny")
            with pytest.raises(AccessDenied):
                send(b"3")
            admin.update_user("ann", kind="Super")
            assert admin.list_users("an")[0].kind == "Super"
        for work in WORK:
            work(nameserver, credentials=ann)
            figures["kinds of our clients with users"] += 1
        with Admin(nameserver) as admin:
            admin.delete_user("ann")
            assert [user.name for user in admin.list_users()] == ["root"]
            monkeypatch.delenv(ACCESS_VARIABLE)
            monkeypatch.delenv(SECRET_VARIABLE)
        with Admin(nameserver) as admin, pytest.raises(AccessDenied):
            admin.list_users()
