"""The messages of the gRPC API on the wire, compared with the classes of the official Python
client. Both register the same names, in pools of their own, in this process.
"""

import random

import pytest
from rocketmq.grpc_protocol import definition_pb2, service_pb2
from saturnmq.gateway import v2

OFFICIAL = {
    name: getattr(module, name)
    for module in (definition_pb2, service_pb2)
    for name in module.DESCRIPTOR.message_types_by_name
}
# Added to the protocol after the client that this was compared with.
NEWER_FIELDS = {"Settings": {"client_properties"}}
NEWER_VALUES = {"Code": {"INVALID_CLIENT_PROPERTIES"}}


def fill(message, chance, known):
    """Set every field of `known` in a message, of oneofs the one that chance takes."""
    taken = {}
    for field in message.DESCRIPTOR.fields:
        oneof = field.containing_oneof
        if oneof is not None and len(oneof.fields) > 1:
            taken.setdefault(oneof.name, chance.choice(oneof.fields).name)
    for field in message.DESCRIPTOR.fields:
        oneof = field.containing_oneof
        if field.name not in known(message.DESCRIPTOR) or (
            oneof is not None and taken.get(oneof.name, field.name) != field.name
        ):
            continue
        target = getattr(message, field.name)
        if field.message_type is None:
            value = value_of(field, chance)
            if hasattr(target, "append"):
                target.extend([value, value_of(field, chance)])
            else:
                setattr(message, field.name, value)
        elif field.message_type.GetOptions().map_entry:
            target.update({f"key {n}": text(chance) for n in range(3)})
        elif hasattr(target, "add"):
            for _ in range(2):
                fill(target.add(), chance, known)
        else:
            target.SetInParent()
            fill(target, chance, known)
    return message


def text(chance):
    return "".join(chance.choices("aZ09 %é漢\x01", k=chance.randrange(1, 12)))


def value_of(field, chance):
    if field.enum_type is not None:
        return chance.choice([value.number for value in field.enum_type.values])
    kinds = {
        field.TYPE_STRING: lambda: text(chance),
        field.TYPE_BYTES: lambda: chance.randbytes(20),
        field.TYPE_BOOL: lambda: True,
        field.TYPE_INT32: lambda: chance.randrange(-(2**31), 2**31),
        field.TYPE_INT64: lambda: chance.randrange(-(2**63), 2**63),
        field.TYPE_FLOAT: lambda: chance.randrange(1, 100) / 4,
    }
    return kinds[field.type]()


def common(descriptor):
    """The fields that both sides know."""
    newer = NEWER_FIELDS.get(descriptor.name, ())
    return {field.name for field in descriptor.fields if field.name not in newer}


@pytest.mark.parametrize("name", sorted(OFFICIAL))
@pytest.mark.parametrize("seed", range(5))
def test_a_message_of_the_official_client_is_read_and_written_field_for_field(name, seed):
    theirs = fill(OFFICIAL[name](), random.Random(seed), common)
    ours = getattr(v2, name).FromString(theirs.SerializeToString(deterministic=True))
    assert str(ours) == str(theirs)  # names and values of all fields, none unknown
    assert not theirs.DESCRIPTOR.fields or str(ours)
    back = OFFICIAL[name].FromString(ours.SerializeToString(deterministic=True))
    assert back == theirs


@pytest.mark.parametrize("name", sorted(OFFICIAL))
def test_fields_have_the_numbers_types_and_presence_of_the_official_ones(name):
    def facts(descriptor):
        return {
            field.name: (field.number, field.type, field.has_presence)
            for field in descriptor.fields
            if field.name not in NEWER_FIELDS.get(name, ())
        }

    assert facts(getattr(v2, name).DESCRIPTOR) == facts(OFFICIAL[name].DESCRIPTOR)


@pytest.mark.parametrize("name", sorted(definition_pb2.DESCRIPTOR.enum_types_by_name))
def test_enums_have_the_official_values(name):
    official = definition_pb2.DESCRIPTOR.enum_types_by_name[name]
    ours = {value.name: value.value for value in getattr(v2, name)}
    for newer in NEWER_VALUES.get(name, ()):
        del ours[newer]
    assert ours == {value.name: value.number for value in official.values}


def test_the_calls_are_the_official_ones():
    (service,) = service_pb2.DESCRIPTOR.services_by_name.values()
    assert service.full_name == v2.SERVICE
    for method in service.methods:
        rpc = v2.RPCS[method.name]
        assert rpc.request.DESCRIPTOR.full_name == method.input_type.full_name
        assert rpc.response.DESCRIPTOR.full_name == method.output_type.full_name
        assert rpc.takes_stream == method.client_streaming
        assert rpc.gives_stream == method.server_streaming
    assert v2.RPCS.keys() == {method.name for method in service.methods}


def test_a_newer_field_survives_a_message_class_that_does_not_know_it():
    ours = v2.Settings(client_properties={"a": "b"})
    through = OFFICIAL["Settings"].FromString(ours.SerializeToString()).SerializeToString()
    assert v2.Settings.FromString(through) == ours


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no Nonsense"):
        _ = v2.Nonsense
