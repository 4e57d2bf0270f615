"""The public names: which there are, and that type checkers know them.

`tests/data/uses.py` uses each of them right and wrong. pyright comes as basedpyright, whose package
brings the Node.js that it runs on.
"""

import importlib.util
import inspect
import json
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import saturnmq
from saturnmq import aio
from saturnmq.client.consumer.membership import RebalanceMember
from saturnmq.client.server_requests import (
    ConsumerHandler,
    ConsumerRequests,
    ProducerRequests,
)
from saturnmq.runtime import errors

ROOT = Path(__file__).parents[2]
USES = ROOT / "tests/data/uses.py"

NAMES = """
    Admin ConsumeResult Credentials CustomizedRetryPolicy ExponentialRetryPolicy Message
    MessageQueue Producer PullConsumer PushConsumer ReceivedMessage
    Retry SaturnError SendHandle SendResult SendStatus SimpleConsumer Sql Transaction
    TransactionProducer TransactionState deliver_after deliver_at recall_handle
"""
MEMBERS = {
    "Admin": """
        alter_group alter_topic broker_settings broker_status change_nameserver_settings
        change_settings clone_offsets close cluster consume_message_directly create_acl
        create_group create_topic create_user dead_letters delete_acl delete_expired
        delete_group delete_kv_config delete_topic delete_unused delete_user describe_group
        describe_topic drain export find_by_id find_by_key find_by_offset find_by_time
        find_message get_acl get_user group_lag groups_of_topic hand_over kv_config list_acls
        list_groups list_topics list_users member_queues member_stacks message_by_offset_id
        message_trace nameserver_settings offset_by_time offsets preview_clone preview_drain
        preview_hand_over preview_reset probe producers promote put_kv_config queue_entries
        replicas resend_dead_letters reset_offsets route set_request_mode start timeout
        topic_settings topics undrained update_acl update_user
    """,
    "ConsumeResult": """
        CONSUME_SUCCESS RECONSUME_LATER RETRY SUCCESS SUSPEND SUSPEND_CURRENT_QUEUE_A_MOMENT
    """,
    "Credentials": "access_key secret_key security_token",
    "CustomizedRetryPolicy": "wait_ms waits_ms",
    "ExponentialRetryPolicy": "initial_ms max_ms multiplier wait_ms",
    "Message": "body delay_level flag keys properties sharding_key tag topic unique_id",
    "MessageQueue": "broker_name queue_id topic",
    "Producer": """
        close flush group options queues recall reply request send send_async send_batch
        send_batch_async send_encoded send_oneway start
    """,
    "PullConsumer": """
        assign assignment auto_commit close commit committed consume_from group lag pause paused
        poll position resume seek seek_to start subscribe unsubscribe
    """,
    "PushConsumer": """
        broadcasting close consume_from group ordered resume start subscribe suspend unsubscribe
    """,
    "ReceivedMessage": """
        body body_crc born_host born_timestamp broker_name delay_level flag frame frame_size keys
        message_id offset_message_id physical_offset prepared_offset properties queue queue_id
        queue_offset raw_body raw_born_host raw_properties raw_store_host raw_topic reconsume_times
        sharding_key store_host store_timestamp stored_body_size sys_flag tag topic
    """,
    "SaturnError": "code outcome refresh_route retriable",
    "Retry": "delay_level done suspend_s",
    "SendHandle": "add_done_callback batch done exception index message_id result",
    "SendResult": "batch index message_id offset_message_id ok queue queue_offset status",
    "SendStatus": "FLUSH_DISK_TIMEOUT FLUSH_SLAVE_TIMEOUT OK SLAVE_NOT_AVAILABLE",
    "SimpleConsumer": """
        ack change_invisible_duration close consume_from dead_letter group ordered receive start
        subscribe unsubscribe
    """,
    "Sql": "expression matches terms",
    "Transaction": """
        begin commit confirmed end message result rollback state transaction_id
    """,
    "TransactionProducer": """
        close flush group options queues recall reply request send send_async send_batch
        send_batch_async send_encoded send_in_transaction send_oneway start transaction
    """,
    "TransactionState": "COMMIT ROLLBACK UNKNOWN",
}
ONLY_BLOCKING = {"Producer.send_encoded", "TransactionProducer.send_encoded"}
WITH_TWO_FACES = (
    "Admin",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "SimpleConsumer",
    "TransactionProducer",
)
MADE_BY_US = {"SendHandle", "SendResult", "Transaction"}
OURS = {"engine"}  # without a `_`, but for modules of the client


def members(kind: type) -> set[str]:
    """The names of a class of ours and of its bases that do not begin with `_`."""
    own = [each for each in kind.__mro__ if each.__module__.startswith("saturnmq")]
    names = {name for each in own for name in (*vars(each), *vars(each).get("__annotations__", ()))}
    return {name for name in names if not name.startswith("_")} - OURS


def test_both_producers_have_the_same_methods():
    names = [n for n in members(aio.Producer) if inspect.isfunction(getattr(aio.Producer, n, None))]
    here, there = (
        {name: inspect.signature(getattr(kind, name)).parameters for name in names}
        for kind in (saturnmq.Producer, aio.Producer)
    )
    assert here == there


@pytest.mark.parametrize("name", ["Producer", "TransactionProducer"])
def test_faces_that_are_written_by_hand_take_the_same_parameters(name):
    here, there = (
        inspect.signature(getattr(module, name)).parameters for module in (saturnmq, aio)
    )
    assert dict(here) == {each: there[each] for each in there if each not in ("core", "runtime")}


def used_names() -> set[str]:
    """What uses.py has to use: constructors, and the members of all but the enumerations."""
    found = {*MEMBERS} - MADE_BY_US
    for name in MEMBERS.keys() - {"ConsumeResult", "SendStatus", "TransactionState"}:
        found |= {f"{name}.{member}" for member in MEMBERS[name].split()}
    both = {name for name in found - ONLY_BLOCKING if name.startswith(WITH_TWO_FACES)}
    return found | {f"aio.{name}" for name in both}


def marked(kind: str) -> dict[int, str]:
    """The lines of uses.py that end in `# kind: NAME`, with the name."""
    lines = enumerate(USES.read_text().splitlines(), 1)
    found = ((number, re.search(rf"  # {kind}: ([\w.]+)$", line)) for number, line in lines)
    return {number: match[1] for number, match in found if match}


def test_the_public_names_of_both_modules_are_these():
    assert set(saturnmq.__all__) == {*NAMES.split(), "__version__", "aio", "errors"}
    assert set(aio.__all__) == set(NAMES.split())
    assert {*NAMES.split(), "aio", "errors"} <= set(dir(saturnmq))
    assert import_module("saturnmq.errors") is saturnmq.errors is errors


@pytest.mark.parametrize("name", sorted(MEMBERS))
def test_the_public_members_of_a_class_are_these(name):
    assert members(getattr(saturnmq, name)) == set(MEMBERS[name].split())


@pytest.mark.parametrize("name", WITH_TWO_FACES)
def test_the_asynchronous_classes_have_the_same_members(name):
    protocols = (ConsumerHandler, ConsumerRequests, ProducerRequests, RebalanceMember)
    called_by_us = set().union(*map(members, protocols))
    here = {member for member in MEMBERS[name].split() if f"{name}.{member}" not in ONLY_BLOCKING}
    assert members(getattr(aio, name)) - (called_by_us - here) == here


@pytest.mark.parametrize("name", WITH_TWO_FACES)
def test_help_explains_every_member_and_parameter(name):
    kind = getattr(saturnmq, name)
    unexplained = [each for each in MEMBERS[name].split() if not _explained(kind, each)]
    assert unexplained == []
    explained = inspect.getdoc(kind.__init__) + " group"  # what each class is about
    missing = [each for each in inspect.signature(kind).parameters if each not in explained]
    assert missing == []


def _explained(kind: type, member: str) -> bool:
    found = getattr(kind, member, None)
    if found is None:  # an attribute that the class body annotates
        return any(member in vars(each).get("__annotations__", ()) for each in kind.__mro__)
    return bool(inspect.getdoc(found))


def test_every_public_name_is_used_right_and_wrong():
    assert set(marked("right").values()) == used_names()
    assert set(marked("wrong").values()) == used_names()


def mypy(folder: Path) -> dict[int, str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir=cache"]
    done = subprocess.run(
        [*command, str(USES)], cwd=folder, capture_output=True, text=True, check=False
    )
    found = re.findall(rf"{re.escape(USES.name)}:(\d+): error: (.*)", done.stdout)
    assert len(found) == done.stdout.count(" error: "), done.stdout + done.stderr
    return {int(number): text for number, text in found}


def pyright(folder: Path) -> dict[int, str]:
    if importlib.util.find_spec("basedpyright") is None:
        pytest.skip("basedpyright is not installed: it is in the extra 'dev'")
    shutil.copy(USES, folder)
    rules = {"typeCheckingMode": "strict", "reportAny": "error", "include": [USES.name]}
    (folder / "pyrightconfig.json").write_text(json.dumps(rules))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    return {each["range"]["start"]["line"] + 1: each["message"] for each in found}


@pytest.mark.parametrize("errors_of", [mypy, pyright])
def test_a_type_checker_finds_each_wrong_use_and_nothing_else(errors_of, tmp_path):
    errors, wrong = errors_of(tmp_path), marked("wrong")
    assert {line: wrong[line] for line in sorted(wrong.keys() - errors.keys())} == {}
    assert {line: errors[line] for line in sorted(errors.keys() - wrong.keys())} == {}


def write_faces(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "tools/blocking_faces.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_synchronous_classes_are_what_the_tool_writes():
    done = write_faces(ROOT, "--check")
    assert done.returncode == 0, done.stderr


def test_the_tool_notices_a_method_that_changed_and_writes_it(tmp_path):
    for folder in ("client", "tools"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.so"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    source = tmp_path / "client/consumer/pull_consumer.py"
    text = source.read_text()
    source.write_text(
        text.replace("    async def poll(self, ", "    async def poll(self, sip: int, ")
    )
    done = write_faces(tmp_path, "--check")
    assert done.returncode == 1
    assert "out of date" in done.stderr
    assert write_faces(tmp_path).returncode == 0
    assert write_faces(tmp_path, "--check").returncode == 0
    written = (tmp_path / "client/blocking_faces.py").read_text()
    assert re.search(r"def poll\(\s+self, sip: int,", written)
    assert "self._target.poll(sip, timeout_s, max_messages)" in written
