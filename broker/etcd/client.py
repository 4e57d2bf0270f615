"""etcd over its gRPC API (v3, etcd 3.4 or newer).

The client uses one endpoint at a time, the first that answers. If an endpoint does not answer, or
says that it has no leader, the client uses the next one. It repeats there at once every request
that may be sent twice. It never repeats a commit, because the first one may have been done.

A renewal opens a stream, asks once and closes it: one answer describes the lease, and its deadline
is ours. A watch is one stream that moves from endpoint to endpoint; it goes on at the revision
behind the last change that it reported. It asks for a sign of life every PROGRESS_S, because a
connection that brings nothing counts as lost. (In etcd before 3.4.25 such a sign may overtake
changes, so a watch never goes on from its revision.)

With a user, the client first asks each endpoint for a token, and asks again when etcd does not know
the token any more. It reads certificate files once, at the start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from saturnmq.broker.etcd.door import (
    KEYS_MAX,
    LEASE_S_MAX,
    REVISION_MAX,
    VALUE_BYTES_MAX,
    Compacted,
    Delete,
    EtcdDenied,
    EtcdError,
    EtcdMalformed,
    EtcdRefused,
    EtcdUnavailable,
    Guard,
    KeyValue,
    Lease,
    LeaseLost,
    News,
    Put,
    Snapshot,
    TxnOutcome,
)
from saturnmq.broker.etcd.wire import DELETED, EQUAL, MESSAGES, MOD
from saturnmq.runtime.door import Runtime, split_address
from saturnmq.runtime.errors import ConfigError

T = TypeVar("T")
log = logging.getLogger(__name__)

TRY_S = 1.0  # within which one endpoint has to answer
TOKEN_S = 5.0  # passwords are slow to compare on purpose
PROGRESS_S = 2.0  # between two signs of life of a watch
AGAIN_S = 0.2  # before a watch that broke is opened again
ANSWER_BYTES_MAX = 8 << 20
_CHANNEL = (
    ("grpc.max_receive_message_length", ANSWER_BYTES_MAX),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),  # two clients of one process share no connection
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


@dataclass(frozen=True)
class EtcdAccess:
    """The way to reach etcd. Files are paths; empty: not used."""

    endpoints: tuple[str, ...]  # HOST:PORT
    user: str = ""
    password: str = ""
    ca_file: str = ""  # the authority that signed the servers' certificates: turns TLS on
    cert_file: str = ""  # this client's certificate and key
    key_file: str = ""

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise ConfigError("etcdEndpoints is empty: name at least one HOST:PORT")
        for endpoint in self.endpoints:
            try:
                split_address(endpoint)
            except ValueError as error:
                raise ConfigError(f"etcdEndpoints: {error}; no http:// before it") from None
        if bool(self.cert_file) != bool(self.key_file):
            raise ConfigError("etcdCertFile and etcdKeyFile belong together: set both, or none")
        if self.cert_file and not self.ca_file:
            raise ConfigError("etcdCertFile without etcdCaFile: TLS needs the servers' authority")
        if bool(self.user) != bool(self.password):
            raise ConfigError("etcdUser and etcdPassword belong together: set both, or none")

    def credentials(self) -> grpc.ChannelCredentials | None:
        """The credentials of the channels; None: no TLS. Blocking."""
        if not self.ca_file:
            return None
        return grpc.ssl_channel_credentials(
            _file("etcdCaFile", self.ca_file),
            _file("etcdKeyFile", self.key_file) if self.key_file else None,
            _file("etcdCertFile", self.cert_file) if self.cert_file else None,
        )


class GrpcEtcd:
    """The door over gRPC. Make it and use it on one event loop."""

    def __init__(self, access: EtcdAccess, runtime: Runtime) -> None:
        self._access = access
        self._runtime = runtime
        self._credentials = access.credentials()
        self._at = 0  # the index of the endpoint in use
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._token: str | None = None  # None: it must be asked for

    # the calls

    async def read(self, prefix: str) -> Snapshot:
        request = MESSAGES["RangeRequest"](
            key=prefix.encode(), range_end=_behind(prefix), limit=KEYS_MAX
        )
        answer = await self._ask("KV/Range", request, "RangeResponse")
        if answer.more:
            raise EtcdMalformed(f"etcd has more than {KEYS_MAX} keys below {prefix}: remove some")
        items = {_key(kv): _item(kv) for kv in answer.kvs}
        return Snapshot(*_header(answer), items)

    async def commit(self, guards: Sequence[Guard], writes: Sequence[Put | Delete]) -> TxnOutcome:
        request = MESSAGES["TxnRequest"](
            compare=[
                MESSAGES["Compare"](
                    result=EQUAL, target=MOD, key=guard.key.encode(), mod_revision=guard.changed
                )
                for guard in guards
            ],
            success=[_operation(write) for write in writes],
        )
        answer = await self._ask("KV/Txn", request, "TxnResponse", twice=False)
        return TxnOutcome(answer.succeeded, *_header(answer))

    async def grant(self, seconds: int) -> Lease:
        assert seconds > 0, f"a lease of {seconds} s"
        request = MESSAGES["LeaseGrantRequest"](TTL=seconds)
        answer = await self._ask("Lease/LeaseGrant", request, "LeaseGrantResponse")
        if answer.error:
            raise EtcdRefused(f"etcd gives no lease of {seconds} s: {answer.error}")
        if not answer.ID or not 0 < answer.TTL <= LEASE_S_MAX:
            raise EtcdMalformed(f"etcd gives lease {answer.ID} of {answer.TTL} s")
        return Lease(answer.ID, answer.TTL)

    async def keep(self, lease: int) -> int:
        assert lease, "there is no lease 0"
        request = MESSAGES["LeaseKeepAliveRequest"](ID=lease)
        answer = await self._each(lambda: self._renew(request))
        if answer.TTL <= 0:
            raise LeaseLost(f"lease {lease:x} has expired")
        if lease != answer.ID or answer.TTL > LEASE_S_MAX:
            raise EtcdMalformed(f"asked for lease {lease:x}: {answer.ID:x} has {answer.TTL} s")
        return int(answer.TTL)

    async def _renew(self, request: Any) -> Any:
        metadata = await self._metadata()
        call = self._channel().stream_stream(
            "/etcdserverpb.Lease/LeaseKeepAlive",
            request_serializer=_to_bytes,
            response_deserializer=MESSAGES["LeaseKeepAliveResponse"].FromString,
        )(metadata=metadata, timeout=TRY_S)
        try:
            await call.write(request)
            answer = await call.read()
        except asyncio.InvalidStateError:  # it ended while it was written to
            raise EtcdUnavailable(f"{self._endpoint} ends a renewal") from None
        finally:
            call.cancel()
        if answer is grpc.aio.EOF:
            raise EtcdUnavailable(f"{self._endpoint} ends a renewal without an answer")
        return answer

    async def revoke(self, lease: int) -> None:
        request = MESSAGES["LeaseRevokeRequest"](ID=lease)
        with contextlib.suppress(LeaseLost):
            await self._ask("Lease/LeaseRevoke", request, "LeaseRevokeResponse")

    # the watch

    async def watch(self, prefix: str, revision: int) -> AsyncIterator[News]:
        following = revision
        while True:
            endpoint = self._endpoint
            try:
                async for news in self._stream(prefix, following):
                    if news.changes:
                        following = max(following, news.revision + 1)
                    yield news
            except (EtcdUnavailable, EtcdDenied) as error:
                log.debug("watching %s: %s", prefix, error)
                self._token = None if isinstance(error, EtcdDenied) else self._token
                self._pass_over(endpoint)
            await self._runtime.sleep(AGAIN_S)

    async def _stream(self, prefix: str, revision: int) -> AsyncIterator[News]:
        """The changes from one endpoint, until it is silent or gone."""
        call: Any = None
        asking: asyncio.Task[None] | None = None
        try:
            metadata = await self._metadata()
            call = self._channel().stream_stream(
                "/etcdserverpb.Watch/Watch",
                request_serializer=_to_bytes,
                response_deserializer=MESSAGES["WatchResponse"].FromString,
            )(metadata=metadata)
            create = MESSAGES["WatchCreateRequest"](
                key=prefix.encode(), range_end=_behind(prefix), start_revision=revision
            )
            await call.write(MESSAGES["WatchRequest"](create_request=create))
            asking = self._runtime.spawn(self._ask_for_life(call), name="etcd-watch-progress")
            while True:
                async with asyncio.timeout(PROGRESS_S + TRY_S):
                    answer = await call.read()
                if answer is grpc.aio.EOF:
                    raise EtcdUnavailable(f"{self._endpoint} has ended the watch")
                if answer.canceled:
                    raise _cancelled(answer, revision)
                yield News(*_header(answer), tuple(map(_change, answer.events)))
        except TimeoutError:
            raise EtcdUnavailable(f"nothing comes from {self._endpoint}") from None
        except grpc.aio.AioRpcError as error:
            raise self._typed(error) from None
        except asyncio.InvalidStateError:  # it ended while it was written to
            raise EtcdUnavailable(f"{self._endpoint} has ended the watch") from None
        finally:
            if asking is not None:
                asking.cancel()
            if call is not None:
                call.cancel()

    async def _ask_for_life(self, call: Any) -> None:
        request = MESSAGES["WatchRequest"](progress_request=MESSAGES["WatchProgressRequest"]())
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                await self._runtime.sleep(PROGRESS_S)
                await call.write(request)

    # endpoints

    @property
    def _endpoint(self) -> str:
        return self._access.endpoints[self._at]

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()

    def _pass_over(self, endpoint: str) -> None:
        """Use the next endpoint, because this one does not answer, unless another call has already
        moved on."""
        if endpoint == self._endpoint:
            self._at = (self._at + 1) % len(self._access.endpoints)
            assert 0 <= self._at < len(self._access.endpoints), f"the endpoint {self._at}"

    def _channel(self) -> grpc.aio.Channel:
        """The channel to the endpoint in use. No channel is closed before the end: other calls may
        wait on it."""
        endpoint = self._endpoint
        if endpoint not in self._channels:
            self._channels[endpoint] = (
                grpc.aio.insecure_channel(endpoint, options=_CHANNEL)
                if self._credentials is None
                else grpc.aio.secure_channel(endpoint, self._credentials, options=_CHANNEL)
            )
        return self._channels[endpoint]

    async def _metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata of a call. `hasleader`: an endpoint that is cut off from the others reports
        it instead of hanging."""
        always = (("hasleader", "true"),)
        if not self._access.user:
            return always
        if self._token is None:
            request = MESSAGES["AuthenticateRequest"](
                name=self._access.user, password=self._access.password
            )
            try:
                answer = await self._call(
                    "Auth/Authenticate", request, "AuthenticateResponse", always, TOKEN_S
                )
            except EtcdRefused as error:
                if "authentication is not enabled" not in str(error):
                    raise
                self._token = ""
            else:
                self._token = answer.token
        return (*always, ("token", self._token)) if self._token else always

    async def _ask(self, method: str, request: Any, answer: str, *, twice: bool = True) -> Any:
        async def call() -> Any:
            return await self._call(method, request, answer, await self._metadata())

        return await self._each(call, twice=twice)

    async def _each(self, call: Callable[[], Any], *, twice: bool = True) -> Any:
        """The answer of the first endpoint that gives one; after a stale token the endpoint is
        asked again."""
        endpoints, failed = len(self._access.endpoints), []
        renewed = False
        while True:
            endpoint = self._endpoint
            try:
                return await call()
            except grpc.aio.AioRpcError as error:
                problem = self._typed(error)
            except EtcdError as error:
                problem = error
            if isinstance(problem, _StaleToken) and not renewed:
                self._token, renewed = None, True
                continue
            if not isinstance(problem, EtcdUnavailable):
                raise copy(problem)  # whose traceback has no frame that names it
            failed.append(str(problem))
            self._pass_over(endpoint)
            if not twice or len(failed) >= endpoints:
                raise EtcdUnavailable("; ".join(failed))

    async def _call(
        self,
        method: str,
        request: Any,
        answer: str,
        metadata: tuple[tuple[str, str], ...],
        timeout_s: float = TRY_S,
    ) -> Any:
        call = self._channel().unary_unary(
            f"/etcdserverpb.{method}",
            request_serializer=_to_bytes,
            response_deserializer=MESSAGES[answer].FromString,
        )
        try:
            return await call(request, metadata=metadata, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise self._typed(error) from None

    def _typed(self, error: grpc.aio.AioRpcError) -> EtcdError:
        """The typed error for a gRPC error, by its text: codes alone are not precise enough. etcd's
        texts begin with `etcdserver: `."""
        code, text = error.code(), f"etcd at {self._endpoint}: {error.details()}"
        if "lease not found" in text:
            return LeaseLost(text)
        if "invalid auth token" in text or "auth store is old" in text:
            return _StaleToken(text)
        if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED) or any(
            part in text for part in ("authentication failed", "user name is empty")
        ):
            return EtcdDenied(f"{text}; check etcdUser, etcdPassword and the user's permissions")
        if code in _UNAVAILABLE:
            return EtcdUnavailable(text)
        return EtcdRefused(f"{text} ({code.name})")


class _StaleToken(EtcdDenied):
    """etcd has forgotten a token, or its users have changed since."""


_UNAVAILABLE = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)


# values


def _file(name: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"{name} {path}: {error.strerror}") from error


def _to_bytes(message: Any) -> bytes:
    return bytes(message.SerializeToString())


def _behind(prefix: str) -> bytes:
    """The first key behind all keys with this prefix."""
    assert prefix, "the first key behind all keys"
    key = prefix.encode()
    return key[:-1] + bytes([key[-1] + 1])  # UTF-8 has no byte 255


def _operation(write: Put | Delete) -> Any:
    if isinstance(write, Put):
        put = MESSAGES["PutRequest"](key=write.key.encode(), value=write.value, lease=write.lease)
        return MESSAGES["RequestOp"](request_put=put)
    delete = MESSAGES["DeleteRangeRequest"](key=write.key.encode())
    return MESSAGES["RequestOp"](request_delete_range=delete)


def _header(answer: Any) -> tuple[int, int]:
    """The cluster's id and the revision of an answer."""
    cluster, revision = answer.header.cluster_id, answer.header.revision
    if not cluster or revision < 1:
        raise EtcdMalformed(f"etcd answers as cluster {cluster:x} at revision {revision}")
    return cluster, revision


def _key(kv: Any) -> str:
    try:
        return bytes(kv.key).decode()
    except UnicodeDecodeError:
        raise EtcdMalformed(f"the name of a key is no text: {kv.key!r}") from None


def _item(kv: Any) -> KeyValue:
    if len(kv.value) > VALUE_BYTES_MAX:
        raise EtcdMalformed(
            f"{_key(kv)} has {len(kv.value)} bytes, at most {VALUE_BYTES_MAX} are read: remove it"
        )
    if not 0 < kv.create_revision <= kv.mod_revision <= REVISION_MAX:
        raise EtcdMalformed(
            f"{_key(kv)} was made at revision {kv.create_revision}, changed at {kv.mod_revision}"
        )
    return KeyValue(bytes(kv.value), kv.create_revision, kv.mod_revision, kv.lease)


def _change(event: Any) -> tuple[str, KeyValue | None]:
    return _key(event.kv), None if event.type == DELETED else _item(event.kv)


def _cancelled(answer: Any, revision: int) -> EtcdError:
    if answer.compact_revision:
        return Compacted(
            f"the watch wants changes from revision {revision} on, etcd keeps those from "
            f"{answer.compact_revision} on"
        )
    if "no leader" in answer.cancel_reason:
        return EtcdUnavailable(f"the watch was ended: {answer.cancel_reason}")
    if "permission" in answer.cancel_reason:
        return EtcdDenied(f"the watch was refused: {answer.cancel_reason}")
    return EtcdUnavailable(f"the watch was ended: {answer.cancel_reason or 'no reason given'}")
