"""The fields of the requests that nameservers serve. Those of requests that brokers have as well,
or that have no fields, are in `headers.py`."""

from __future__ import annotations

from .codes import RequestCode
from .header_fields import Header, flag, header, identity, name, number, text


@header
class BrokerHeader(Header):
    cluster: str = name("clusterName")
    broker_name: str = name("brokerName")
    address: str = name("brokerAddr")


@header
class RegisterBrokerHeader(BrokerHeader):
    """REGISTER_BROKER 103."""

    broker_id: int = number("brokerId")
    ha_address: str = name("haServerAddr", default="")
    timeout_ms: int = number("heartbeatTimeoutMillis", default=0)
    enable_acting_master: bool = flag("enableActingMaster", default=False)
    compressed: bool = flag("compressed", default=False)
    body_crc: int = number("bodyCrc32", default=0)
    whole: bool = flag("saturnWhole", default=False)
    identity: str = identity("saturnIdentity")


@header
class UnregisterBrokerHeader(BrokerHeader):
    """UNREGISTER_BROKER 104."""

    broker_id: int = number("brokerId")


@header
class QueryVersionHeader(BrokerHeader):
    """QUERY_DATA_VERSION 322."""

    broker_id: int = number("brokerId", default=0)


@header
class RouteHeader(Header):
    """GET_ROUTEINFO_BY_TOPIC 105."""

    topic: str = name("topic")
    watch: bool = flag("saturnWatch", default=False)


@header
class MemberGroupHeader(Header):
    """GET_BROKER_MEMBER_GROUP 901."""

    cluster: str = name("clusterName")
    broker_name: str = name("brokerName")


@header
class ClusterHeader(Header):
    cluster: str = name("cluster")


@header
class DeleteRoutesHeader(Header):
    """DELETE_TOPIC_IN_NAMESRV 216."""

    topic: str = name("topic")
    cluster: str | None = name("clusterName", default=None)


@header
class BrokerNameHeader(Header):
    broker_name: str = name("brokerName")


@header
class NamespaceHeader(Header):
    namespace: str = name("namespace")


@header
class KeyHeader(NamespaceHeader):
    key: str = name("key")


@header
class PutKeyHeader(KeyHeader):
    """PUT_KV_CONFIG 100."""

    value: str = text("value")


@header
class ElectMasterHeader(Header):
    """CONTROLLER_ELECT_MASTER 1002."""

    broker_name: str = name("brokerName")
    cluster: str = name("clusterName", default="")
    broker_id: int = number("brokerId", default=-1, least=-1)
    designated: bool = flag("designateElect", default=False)


_C = RequestCode
NAMESERVER_HEADERS: dict[RequestCode, type[Header]] = {
    _C.REGISTER_BROKER: RegisterBrokerHeader,
    _C.UNREGISTER_BROKER: UnregisterBrokerHeader,
    _C.BROKER_HEARTBEAT: BrokerHeader,
    _C.QUERY_DATA_VERSION: QueryVersionHeader,
    _C.GET_ROUTEINFO_BY_TOPIC: RouteHeader,
    _C.GET_BROKER_MEMBER_GROUP: MemberGroupHeader,
    _C.PUT_KV_CONFIG: PutKeyHeader,
    _C.GET_KV_CONFIG: KeyHeader,
    _C.DELETE_KV_CONFIG: KeyHeader,
    _C.GET_KVLIST_BY_NAMESPACE: NamespaceHeader,
    _C.WIPE_WRITE_PERM_OF_BROKER: BrokerNameHeader,
    _C.ADD_WRITE_PERM_OF_BROKER: BrokerNameHeader,
    _C.GET_TOPICS_BY_CLUSTER: ClusterHeader,
    _C.DELETE_TOPIC_IN_NAMESRV: DeleteRoutesHeader,
    _C.CONTROLLER_ELECT_MASTER: ElectMasterHeader,
}
