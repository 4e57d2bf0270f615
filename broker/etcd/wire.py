"""The messages of etcd's gRPC API that election uses, with etcd's names and field numbers.

Descriptors are built from the table at import, so no code is generated. They use proto2, in which
every field may be absent. On the wire that equals etcd's proto3 with its one-ofs, except that
`version = 0` in a comparison is sent and not left out. The table leaves out fields that this client
does not read; protobuf skips them. Enumerations appear as their numbers on the wire.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_TABLE = """
mvccpb.KeyValue: bytes key=1, int64 create_revision=2, int64 mod_revision=3, int64 version=4, bytes value=5, int64 lease=6
mvccpb.Event: int32 type=1, mvccpb.KeyValue kv=2
etcdserverpb.ResponseHeader: uint64 cluster_id=1, uint64 member_id=2, int64 revision=3, uint64 raft_term=4
etcdserverpb.RangeRequest: bytes key=1, bytes range_end=2, int64 limit=3
etcdserverpb.RangeResponse: etcdserverpb.ResponseHeader header=1, repeated mvccpb.KeyValue kvs=2, bool more=3
etcdserverpb.PutRequest: bytes key=1, bytes value=2, int64 lease=3
etcdserverpb.DeleteRangeRequest: bytes key=1, bytes range_end=2
etcdserverpb.RequestOp: etcdserverpb.PutRequest request_put=2, etcdserverpb.DeleteRangeRequest request_delete_range=3
etcdserverpb.Compare: int32 result=1, int32 target=2, bytes key=3, int64 mod_revision=6
etcdserverpb.TxnRequest: repeated etcdserverpb.Compare compare=1, repeated etcdserverpb.RequestOp success=2
etcdserverpb.TxnResponse: etcdserverpb.ResponseHeader header=1, bool succeeded=2
etcdserverpb.LeaseGrantRequest: int64 TTL=1, int64 ID=2
etcdserverpb.LeaseGrantResponse: etcdserverpb.ResponseHeader header=1, int64 ID=2, int64 TTL=3, string error=4
etcdserverpb.LeaseRevokeRequest: int64 ID=1
etcdserverpb.LeaseRevokeResponse: etcdserverpb.ResponseHeader header=1
etcdserverpb.LeaseKeepAliveRequest: int64 ID=1
etcdserverpb.LeaseKeepAliveResponse: etcdserverpb.ResponseHeader header=1, int64 ID=2, int64 TTL=3
etcdserverpb.WatchCreateRequest: bytes key=1, bytes range_end=2, int64 start_revision=3
etcdserverpb.WatchProgressRequest:
etcdserverpb.WatchRequest: etcdserverpb.WatchCreateRequest create_request=1, etcdserverpb.WatchProgressRequest progress_request=3
etcdserverpb.WatchResponse: etcdserverpb.ResponseHeader header=1, int64 watch_id=2, bool created=3, bool canceled=4, int64 compact_revision=5, string cancel_reason=6, repeated mvccpb.Event events=11
etcdserverpb.AuthenticateRequest: string name=1, string password=2
etcdserverpb.AuthenticateResponse: etcdserverpb.ResponseHeader header=1, string token=2
"""  # noqa: E501

EQUAL = 0  # Compare.result
MOD = 2  # Compare.target: the revision of the last change
DELETED = 1  # Event.type

_Field = descriptor_pb2.FieldDescriptorProto


def _messages() -> dict[str, Any]:
    """The message classes of the table, by their name without the package."""
    # A pool of its own: another etcd client in this process may define the same names.
    pool = descriptor_pool.DescriptorPool()
    files: dict[str, Any] = {}
    for line in _TABLE.strip().splitlines():
        name, _, fields = line.partition(":")
        package, _, short = name.partition(".")
        if package not in files:
            files[package] = descriptor_pb2.FileDescriptorProto(
                name=f"{package}.proto", package=package, dependency=[f"{x}.proto" for x in files]
            )
        message = files[package].message_type.add(name=short)
        for field in filter(None, map(str.strip, fields.split(","))):
            _add_field(message, field)
    for file in files.values():
        pool.Add(file)
    return {
        message.name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{package}.{message.name}")
        )
        for package, file in files.items()
        for message in file.message_type
    }


def _add_field(message: Any, text: str) -> None:
    """`[repeated] TYPE NAME=NUMBER`."""
    *repeated, kind, rest = text.split()
    name, _, number = rest.partition("=")
    assert 0 < int(number) < 16, f"field {name} has the number {number}, which takes one byte"
    assert all(name != known.name for known in message.field), f"two fields are called {name}"
    field = message.field.add(name=name, number=int(number))
    field.label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
    if "." in kind:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{kind}"
    else:
        field.type = _Field.Type.Value(f"TYPE_{kind.upper()}")


MESSAGES = _messages()
