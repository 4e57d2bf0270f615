"""The services beside the API, over loopback by grpcio's client: health, and reflection."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import pytest
from broker_rig import run
from gateway_door_rig import opened
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from saturnmq.gateway import health, v2
from saturnmq.gateway.descriptors import message_class
from saturnmq.gateway.reflection import PACKAGES, SERVICES
from saturnmq.runtime.native import NativeRuntime

Request = message_class("grpc.health.v1.HealthCheckRequest")
SERVING, NOT_SERVING, UNKNOWN = 1, 2, 3


def test_messages_of_health_have_the_bytes_of_grpc() -> None:
    assert Request(service="a").SerializeToString() == b"\x0a\x01a"
    assert health.Response(status="SERVING").SerializeToString() == b"\x08\x01"
    listed = health.ListResponse(statuses={"a": health.Response(status="NOT_SERVING")})
    assert listed.SerializeToString() == b"\x0a\x07\x0a\x01a\x12\x02\x08\x02"


def test_a_node_that_serves_is_healthy(tmp_path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with opened(runtime, tmp_path) as node:
            for name in ("", v2.SERVICE):
                answer = await node.method("Check", health.SERVICE)(
                    Request(service=name), timeout=5
                )
                assert answer.status == SERVING
            listed = await node.method("List", health.SERVICE)(
                message_class("grpc.health.v1.HealthListRequest")(), timeout=5
            )
            states = {name: each.status for name, each in listed.statuses.items()}
            assert states == {"": SERVING, v2.SERVICE: SERVING}
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await node.method("Check", health.SERVICE)(Request(service="other"), timeout=5)
            assert caught.value.code() == grpc.StatusCode.NOT_FOUND

    run(body)


def test_who_watches_is_told_that_the_node_ends(tmp_path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with opened(runtime, tmp_path) as node:
            known = node.method("Watch", health.SERVICE)(Request(), timeout=20)
            unknown = node.method("Watch", health.SERVICE)(Request(service="other"), timeout=20)
            assert (await known.read()).status == SERVING
            assert (await unknown.read()).status == UNKNOWN
            await node.gateway.health.end()
            await node.door.close()  # what was said before gets through
            assert (await known.read()).status == NOT_SERVING
            assert await known.read() == grpc.aio.EOF
            assert await known.code() == grpc.StatusCode.OK

    run(body)


@pytest.mark.parametrize("package", PACKAGES)
def test_reflection_tells_all_that_a_call_needs(tmp_path, package) -> None:
    asked = message_class(f"{package}.ServerReflectionRequest")

    async def body(runtime: NativeRuntime) -> None:
        async with opened(runtime, tmp_path) as node:
            stream = node.method("ServerReflectionInfo", f"{package}.ServerReflection")(timeout=20)

            async def ask(**question: Any) -> Any:
                await stream.write(asked(host="h", **question))
                answer = await stream.read()
                assert (answer.valid_host, answer.original_request) == (
                    "h",
                    asked(host="h", **question),
                )
                return answer

            listed = (await ask(list_services="")).list_services_response.service
            assert {each.name for each in listed} >= {v2.SERVICE, health.SERVICE, *SERVICES}
            pool = DescriptorPool()

            async def learn(**question: Any) -> None:
                """Take a file, behind those that it needs, as grpcurl does."""
                answer = await ask(**question)
                (data,) = answer.file_descriptor_response.file_descriptor_proto
                file = FileDescriptorProto.FromString(data)
                for name in file.dependency:
                    try:
                        pool.FindFileByName(name)
                    except KeyError:
                        await learn(file_by_filename=name)
                pool.Add(file)

            await learn(file_containing_symbol=v2.SERVICE)
            service = pool.FindServiceByName(v2.SERVICE)
            assert {method.name for method in service.methods} == v2.RPCS.keys()
            assert pool.FindMessageTypeByName("apache.rocketmq.v2.Message").fields_by_name["body"]
            method_of = await ask(file_containing_symbol=f"{v2.SERVICE}.QueryRoute")
            assert method_of.file_descriptor_response.file_descriptor_proto
            for wrong in (
                {"file_by_filename": "no.proto"},
                *({"file_containing_symbol": name} for name in ("no.Symbol", "", ".", "é\0", "..")),
                {"file_containing_symbol": f"{v2.SERVICE}.Other"},
                {"all_extension_numbers_of_type": "apache.rocketmq.v2.Message"},
            ):
                assert (await ask(**wrong)).error_response.error_code == 5, wrong
            assert (await ask()).error_response.error_code == 3
            await stream.done_writing()
            assert await stream.read() == grpc.aio.EOF
            assert await stream.code() == grpc.StatusCode.OK

    run(body)


def test_a_call_of_no_service_is_unimplemented(tmp_path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with opened(runtime, tmp_path) as node:
            for path in ("/grpc.health.v1.Health/Other", f"/{v2.SERVICE}", "/a/b"):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await node.channel.unary_unary(path)(b"", timeout=5)
                assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED

    run(body)
