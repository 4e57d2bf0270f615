"""The client of etcd against a real etcd, and against one that answers nonsense."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from etcd_rig import EtcdProcess, make_certificates, running_etcd
from saturnmq.broker.etcd.client import EtcdAccess, GrpcEtcd
from saturnmq.broker.etcd.door import (
    KEYS_MAX,
    VALUE_BYTES_MAX,
    Compacted,
    Delete,
    EtcdDenied,
    EtcdError,
    EtcdMalformed,
    EtcdUnavailable,
    Guard,
    LeaseLost,
    News,
    Put,
)
from saturnmq.broker.etcd.wire import MESSAGES
from saturnmq.cli.free_ports import free_block
from saturnmq.runtime.errors import ConfigError
from saturnmq.runtime.native import NativeRuntime

PREFIX = "/t/"


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdProcess]:
    with running_etcd(tmp_path) as process:
        yield process


def run(access: EtcdAccess, body: Callable[[GrpcEtcd], Awaitable[None]]) -> None:
    async def main() -> None:
        client = GrpcEtcd(access, NativeRuntime())
        try:
            async with asyncio.timeout(60):
                await body(client)
        finally:
            await client.close()

    asyncio.run(main())


class Watching:
    """What a watch told."""

    def __init__(self, client: GrpcEtcd, revision: int) -> None:
        self.changes: list[tuple[str, bytes | None]] = []
        self.began = 0
        self._stream = client.watch(PREFIX, revision)

    async def __aenter__(self) -> Watching:
        self._task = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    async def _read(self) -> None:
        async for news in self._stream:
            assert isinstance(news, News)
            self.began += 1
            for key, item in news.changes:
                self.changes.append((key, None if item is None else item.value))

    async def until(self, condition: Callable[[], bool], seconds: float = 20) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                if self._task.done():
                    self._task.result()
                await asyncio.sleep(0.01)


def test_a_commit_is_done_whole_if_its_guards_hold_and_else_not_at_all(etcd: EtcdProcess) -> None:
    async def body(client: GrpcEtcd) -> None:
        empty = await client.read(PREFIX)
        assert empty.items == {}
        both = [Put("/t/a", b"1"), Put("/t/b", b"2")]
        first = await client.commit([Guard("/t/a", 0)], both)
        assert first.done
        assert (first.cluster, first.revision) == (empty.cluster, empty.revision + 1)
        again = await client.commit([Guard("/t/a", 0), Guard("/t/b", first.revision)], both)
        assert (again.done, again.revision) == (False, first.revision)
        await client.commit([], [Put("/u/c", b"not below the prefix")])
        found = await client.read(PREFIX)
        assert {key: item.value for key, item in found.items.items()} == {
            "/t/a": b"1",
            "/t/b": b"2",
        }
        assert found.items["/t/a"].changed == first.revision
        moved = await client.commit([Guard("/t/a", first.revision)], [Delete("/t/a")])
        assert moved.done
        assert set((await client.read(PREFIX)).items) == {"/t/b"}

    run(EtcdAccess((etcd.endpoint,)), body)


def test_keys_end_with_their_lease_and_a_watch_tells(etcd: EtcdProcess) -> None:
    async def body(client: GrpcEtcd) -> None:
        lease = await client.grant(2)
        assert await client.keep(lease.id) == lease.seconds
        async with Watching(client, 1) as watching:
            await client.commit([], [Put("/t/mine", b"x", lease.id)])
            assert (await client.read(PREFIX)).items["/t/mine"].lease == lease.id
            await watching.until(lambda: len(watching.changes) == 2)  # nobody renews it
            assert watching.changes == [("/t/mine", b"x"), ("/t/mine", None)]
        for call in (client.keep(lease.id), client.commit([], [Put("/t/k", b"", lease.id)])):
            with pytest.raises(LeaseLost):
                await call
        await client.revoke(lease.id)  # it is gone already
        lease = await client.grant(60)
        await client.commit([], [Put("/t/mine", b"y", lease.id)])
        await client.revoke(lease.id)
        assert (await client.read(PREFIX)).items == {}

    run(EtcdAccess((etcd.endpoint,)), body)


def test_endpoints_that_do_not_answer_are_passed_over(etcd: EtcdProcess) -> None:
    async def body(client: GrpcEtcd) -> None:
        assert (await client.read(PREFIX)).items == {}
        lease = await client.grant(5)
        etcd.pause()  # its socket takes what it is sent, and nothing comes
        for call in (client.read(PREFIX), client.keep(lease.id), client.commit([], [])):
            with pytest.raises(EtcdUnavailable) as caught:
                await call
            assert caught.value.outcome == "unknown"
        etcd.go_on()
        async with asyncio.timeout(10):
            while True:
                try:
                    await client.keep(lease.id)
                    return
                except EtcdUnavailable:
                    pass

    run(EtcdAccess((f"127.0.0.1:{free_block('127.0.0.1', 1)}", etcd.endpoint)), body)


def test_a_watch_goes_on_behind_its_last_change_when_etcd_comes_back(etcd: EtcdProcess) -> None:
    async def body(client: GrpcEtcd) -> None:
        await client.commit([], [Put("/t/a", b"1")])
        async with Watching(client, 1) as watching:
            await watching.until(lambda: watching.changes == [("/t/a", b"1")])
            etcd.kill()
            etcd.start()
            other = GrpcEtcd(EtcdAccess((etcd.endpoint,)), NativeRuntime())
            await other.commit([], [Put("/t/a", b"2")])
            await other.commit([], [Delete("/t/a")])
            await other.close()
            await watching.until(lambda: len(watching.changes) >= 3)
            assert watching.changes == [("/t/a", b"1"), ("/t/a", b"2"), ("/t/a", None)]

    run(EtcdAccess((etcd.endpoint,)), body)


def test_a_watch_that_lives_says_so_without_changes(etcd: EtcdProcess) -> None:
    async def body(client: GrpcEtcd) -> None:
        async with Watching(client, 1) as watching:
            await watching.until(lambda: watching.began >= 3)
            assert not watching.changes

    run(EtcdAccess((etcd.endpoint,)), body)


def test_changes_that_etcd_has_compacted_are_told_as_such(etcd: EtcdProcess) -> None:
    async def body(client: GrpcEtcd) -> None:
        for value in (b"1", b"2", b"3"):
            outcome = await client.commit([], [Put("/t/a", value)])
        etcd.compact(outcome.revision)
        async with Watching(client, 1) as watching:
            with pytest.raises(Compacted, match=f"from {outcome.revision} on"):
                await watching.until(lambda: False)
        async with Watching(client, outcome.revision) as watching:
            await watching.until(lambda: watching.changes == [("/t/a", b"3")])

    run(EtcdAccess((etcd.endpoint,)), body)


def test_users_have_to_say_their_password(etcd: EtcdProcess) -> None:
    async def works(client: GrpcEtcd) -> None:
        assert (await client.commit([], [Put("/t/a", b"1")])).done
        async with Watching(client, 1) as watching:
            await watching.until(lambda: len(watching.changes) > 0)
        lease = await client.grant(60)
        assert await client.keep(lease.id) == 60

    async def denied(client: GrpcEtcd) -> None:
        with pytest.raises(EtcdDenied, match="etcdUser"):
            await client.read(PREFIX)

    run(EtcdAccess((etcd.endpoint,), "root", "secret"), works)  # nobody is asked who it is yet
    etcd.want_password("root", "secret")
    run(EtcdAccess((etcd.endpoint,), "root", "secret"), works)
    run(EtcdAccess((etcd.endpoint,), "root", "wrong"), denied)
    run(EtcdAccess((etcd.endpoint,)), denied)


def test_with_certificates_both_sides_prove_who_they_are(tmp_path: Path) -> None:
    files = make_certificates(tmp_path / "certificates")
    mine = {"cert_file": f"{files}/node.pem", "key_file": f"{files}/node.key"}

    async def works(client: GrpcEtcd) -> None:
        assert (await client.commit([], [Put("/t/a", b"1")])).done

    async def fails(client: GrpcEtcd) -> None:
        with pytest.raises(EtcdUnavailable):
            await client.read(PREFIX)

    with running_etcd(tmp_path, files) as etcd:
        run(EtcdAccess((etcd.endpoint,), ca_file=f"{files}/ca.pem", **mine), works)
        run(EtcdAccess((etcd.endpoint,), ca_file=f"{files}/ca.pem"), fails)
        run(EtcdAccess((etcd.endpoint,)), fails)
        other = make_certificates(tmp_path / "others")
        run(EtcdAccess((etcd.endpoint,), ca_file=f"{other}/ca.pem", **mine), fails)


@pytest.mark.parametrize(
    ("access", "words"),
    [
        ({"endpoints": ()}, "at least one"),
        ({"endpoints": ("http://localhost",)}, "host:port"),
        ({"endpoints": ("a:1",), "cert_file": "c"}, "etcdKeyFile"),
        ({"endpoints": ("a:1",), "cert_file": "c", "key_file": "k"}, "etcdCaFile"),
        ({"endpoints": ("a:1",), "user": "u"}, "etcdPassword"),
    ],
)
def test_wrong_settings_name_the_way_out(access: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        EtcdAccess(**access)


def test_a_certificate_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="etcdCaFile /nowhere: No such file"):
        EtcdAccess(("a:1",), ca_file="/nowhere").credentials()


# nonsense


@asynccontextmanager
async def lying(answers: dict[str, object]) -> AsyncIterator[str]:
    """A server that answers every request for a method with the same message."""

    class Any(grpc.GenericRpcHandler):
        def service(self, details):  # type: ignore[no-untyped-def]
            answer = answers[details.method.rpartition("/")[2]]

            async def once(request, context):  # type: ignore[no-untyped-def]
                return answer.SerializeToString()

            async def stream(requests, context):  # type: ignore[no-untyped-def]
                yield answer.SerializeToString()
                await asyncio.sleep(60)

            if details.method.endswith(("KeepAlive", "Watch")):
                return grpc.stream_stream_rpc_method_handler(stream)
            return grpc.unary_unary_rpc_method_handler(once)

    async with serving(Any()) as endpoint:
        yield endpoint


@asynccontextmanager
async def serving(handler: grpc.GenericRpcHandler) -> AsyncIterator[str]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def header(cluster: int = 7, revision: int = 9) -> object:
    return MESSAGES["ResponseHeader"](cluster_id=cluster, revision=revision)


def kv(**fields: object) -> object:
    known = {"key": b"/t/a", "value": b"1", "create_revision": 3, "mod_revision": 4}
    return MESSAGES["KeyValue"](**(known | fields))


def found(head: object | None = None, **fields: object) -> object:
    return MESSAGES["RangeResponse"](header=head or header(), **fields)


NONSENSE = {
    "no cluster": ("Range", found(header(cluster=0))),
    "revision 0": ("Range", found(header(revision=0))),
    "a revision below 0": ("Range", found(header(revision=-5))),
    "a long value": ("Range", found(kvs=[kv(value=bytes(VALUE_BYTES_MAX + 1))])),
    "a name that is no text": ("Range", found(kvs=[kv(key=b"/t/\xff")])),
    "changed before it was made": ("Range", found(kvs=[kv(create_revision=5)])),
    "made at revision 0": ("Range", found(kvs=[kv(create_revision=0)])),
    "more keys than are read": ("Range", found(more=True, kvs=[kv()] * KEYS_MAX)),
    "a lease without an id": ("LeaseGrant", MESSAGES["LeaseGrantResponse"](ID=0, TTL=3)),
    "a lease of no time": ("LeaseGrant", MESSAGES["LeaseGrantResponse"](ID=5, TTL=0)),
    "a lease of 2^62 s": ("LeaseGrant", MESSAGES["LeaseGrantResponse"](ID=5, TTL=1 << 62)),
    "another lease": ("LeaseKeepAlive", MESSAGES["LeaseKeepAliveResponse"](ID=6, TTL=3)),
    "a renewal of 2^62 s": (
        "LeaseKeepAlive",
        MESSAGES["LeaseKeepAliveResponse"](ID=5, TTL=1 << 62),
    ),
    "a change at revision 0": (
        "Watch",
        MESSAGES["WatchResponse"](
            header=header(), events=[MESSAGES["Event"](kv=kv(mod_revision=0))]
        ),
    ),
    "a commit at no revision": ("Txn", MESSAGES["TxnResponse"](header=header(revision=0))),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_is_an_error_and_no_value(name: str) -> None:
    method, answer = NONSENSE[name]

    async def ask(client: GrpcEtcd) -> object:
        if method == "Watch":
            return await anext(aiter(client.watch(PREFIX, 1)))
        return await {
            "Range": lambda: client.read(PREFIX),
            "Txn": lambda: client.commit([], []),
            "LeaseGrant": lambda: client.grant(3),
            "LeaseKeepAlive": lambda: client.keep(5),
        }[method]()

    async def main() -> None:
        async with lying({method: answer}) as endpoint:
            client = GrpcEtcd(EtcdAccess((endpoint,)), NativeRuntime())
            with pytest.raises(EtcdMalformed):
                await ask(client)
            await client.close()

    asyncio.run(main())


def test_a_token_that_etcd_has_forgotten_is_asked_for_again() -> None:
    tokens: list[str] = []

    class Forgets(grpc.GenericRpcHandler):
        def service(self, details):  # type: ignore[no-untyped-def]
            said = dict(details.invocation_metadata).get("token")

            async def once(request, context):  # type: ignore[no-untyped-def]
                if details.method.endswith("Authenticate"):
                    tokens.append(f"token-{len(tokens)}")
                    answer = MESSAGES["AuthenticateResponse"](token=tokens[-1])
                    return answer.SerializeToString()
                if said != "token-1":
                    await context.abort(
                        grpc.StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token"
                    )
                return found().SerializeToString()

            return grpc.unary_unary_rpc_method_handler(once)

    async def main() -> None:
        async with serving(Forgets()) as endpoint:
            client = GrpcEtcd(EtcdAccess((endpoint,), "root", "secret"), NativeRuntime())
            assert (await client.read(PREFIX)).revision == 9
            assert (await client.read(PREFIX)).revision == 9
            await client.close()

    asyncio.run(main())
    assert tokens == ["token-0", "token-1"]


def test_every_error_of_etcd_is_one_of_the_door() -> None:
    assert {error.__name__ for error in EtcdError.__subclasses__()} == {
        "EtcdUnavailable",
        "EtcdDenied",
        "EtcdRefused",
        "LeaseLost",
        "Compacted",
        "EtcdMalformed",
    }
