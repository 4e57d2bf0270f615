"""Rules of the source tree that no linter knows (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import saturnmq
from saturnmq import aio

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "runtime", "protocol", "store", "gateway", "nameserver", "broker", "client", "pipeline", "cli",
    "drills",
)  # fmt: skip
# The blocking and the asynchronous class of one name are two faces of one thing.
TWO_FACES = {
    "Admin", "Producer", "PullConsumer", "PushConsumer", "SimpleConsumer", "Transaction",
    "TransactionProducer",
}  # fmt: skip

# Where the public classes are written; of two kernels, the reference.
PUBLIC = {
    "client/admin/admin.py": {"Admin"},
    "client/admin/access_operations.py": {"AccessOperations"},
    "client/admin/cluster_operations.py": {"ClusterOperations"},
    "client/admin/message_operations.py": {"MessageOperations"},
    "client/blocking.py": {"Producer"},
    "client/blocking_faces.py": {"Admin", "PullConsumer", "PushConsumer", "SimpleConsumer"},
    "client/blocking_transactions.py": {"Transaction", "TransactionProducer"},
    "client/consumer/pull_consumer.py": {"PullConsumer"},
    "client/consumer/push_consumer.py": {"PushConsumer"},
    "client/consumer/simple_consumer.py": {"SimpleConsumer"},
    "client/consumer/results.py": {"ConsumeResult", "Retry"},
    "client/producer/batch_reference.py": {"SendHandle", "SendResult"},
    "client/producer/producer.py": {"Producer"},
    "client/producer/results.py": {"SendStatus"},
    "client/producer/timed.py": {"deliver_after", "deliver_at", "recall_handle"},
    "client/producer/transactions.py": {"Transaction", "TransactionProducer", "TransactionState"},
    "protocol/credentials.py": {"Credentials"},
    "protocol/message_queue.py": {"MessageQueue"},
    "protocol/message_reference.py": {"Message"},
    "protocol/received_reference.py": {"ReceivedMessage"},
    "protocol/retry_policy.py": {"CustomizedRetryPolicy", "ExponentialRetryPolicy"},
    "protocol/sql92.py": {"Sql"},
    "runtime/errors.py": {"SaturnError"},
}

LINES_MAX, TEST_LINES_MAX = 500, 600
# Modules that are longer, and how long they may be. The numbers may only shrink.
LONG_MODULES = {
    "protocol/endpoint.py": 660,
    "store/message_store.py": 1020,
    "nameserver/server.py": 510,
    "broker/replication/election.py": 622,
    "broker/replication/events.py": 540,
    "broker/replication/ha_master.py": 680,
    "client/blocking_faces.py": 1143,  # written by a tool: it grows with the API
    "client/producer/sending.py": 650,
    "pipeline/arrow_kernel.pyx": 950,
    "cli/launcher.py": 660,
    "drills/crash/workload.py": 560,
    "drills/sim/cluster.py": 640,
    "drills/sim/disk.py": 580,
    "tests/data/uses.py": 970,  # a table: two lines for each public name
    "tests/rigs/machine_world.py": 900,
    "tests/unit/test_amnesia.py": 1100,
    "tests/unit/test_bad_input.py": 640,
    "tests/unit/test_broker_staging.py": 680,
    "tests/unit/test_client_core.py": 730,
    "tests/unit/test_client_sending.py": 860,
    "tests/unit/test_consumer_clients.py": 680,
    "tests/unit/test_election.py": 620,
    "tests/unit/test_lookup.py": 620,
    "tests/unit/test_registration.py": 620,
    "tests/unit/test_signing.py": 800,
    "tests/unit/test_store_amnesia.py": 700,
    "tests/unit/test_store_recovery.py": 980,
    "tests/unit/test_store_tools.py": 860,
}
# Calls of time.sleep in tests that play an operator or a slow peer, or look at another process.
# The numbers may only shrink: wait for a condition with a deadline, or run on virtual time.
SLEEPS = {
    "cluster/test_compose.py": 3,
    "cluster/test_election.py": 1,
    "cluster/test_kill.py": 2,
    "cluster/test_shared_secret.py": 1,
    "interop/interop_nodes.py": 1,
    "interop/test_interop_ha.py": 1,
    "interop/test_interop_starting.py": 3,
    "rigs/cluster_rig.py": 1,
    "rigs/etcd_rig.py": 2,
    "spark/test_sink_failures.py": 2,
    "spark/test_source_streams.py": 4,
    "unit/test_client_express.py": 1,
    "unit/test_node_log.py": 1,
    "unit/test_producer_sync.py": 2,
    "unit/test_restore_truncated.py": 1,
}
# Sentences that open with a bare "What", "Who" or "Of what". The numbers may only shrink.
BARE_OPENINGS = {
    "gateway": 0,
    "runtime": 0,
    "protocol": 0,
    "store": 0,
    "nameserver": 0,
    "broker": 0,
    "client": 0,
    "pipeline": 0,
    "cli": 0,
    "drills": 0,
    "documents": 0,
}


def modules() -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def test_no_two_classes_have_one_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path)
    assert len(places) > 400
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert twice.keys() == TWO_FACES, {k: v for k, v in twice.items() if k not in TWO_FACES}
    for found in twice.values():
        assert len(found) == 2
        assert any(path.startswith("client/blocking") for path in found)


def test_the_glossary_has_each_term_once_and_names_files_that_exist() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text()
    terms = re.findall(r"^\| ([^|]+?) \| [^|]+ \| [^|]* \|$", text, re.MULTILINE)
    words = [word for term in terms if term != "term" for word in term.split(", ")]
    assert len(words) > 70
    assert sorted(words) == sorted(set(words))
    paths = re.findall(rf"`((?:{'|'.join(PACKAGES)})/[\w/]*(?:\.py)?)`", text)
    assert len(paths) > 50
    assert [path for path in paths if not (ROOT / path).exists()] == []


def lines_of(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_modules_are_short_but_for_those_listed() -> None:
    allowed = dict(LONG_MODULES)
    wrong = {}
    for folder in (*PACKAGES, "tools", "benchmarks", "tests"):
        for file in sorted((ROOT / folder).rglob("*.py*")):
            if file.suffix not in {".py", ".pyi", ".pyx"}:
                continue
            path = str(file.relative_to(ROOT))
            usual = TEST_LINES_MAX if folder == "tests" else LINES_MAX
            lines, limit = lines_of(file), allowed.pop(path, usual)
            if lines > limit:
                wrong[path] = f"{lines} lines, {limit} allowed: split it"
            elif limit > usual >= lines:
                wrong[path] = f"{lines} lines: drop it from LONG_MODULES"
            elif limit > usual and limit > lines + 100:
                wrong[path] = f"{lines} lines: lower its number in LONG_MODULES"
    assert wrong == {}
    assert allowed == {}, "these modules are gone: drop them from LONG_MODULES"


def test_every_module_and_package_says_what_it_is() -> None:
    for path, tree in modules():
        assert not re.search(r"(?:^|_)(?:utils?|helpers?|misc|common)(?:_|$)", Path(path).stem), (
            path
        )
        text = ast.get_docstring(tree)
        assert text is not None, f"{path} has no docstring"
        assert len(text.split()) > 3, f"{path}: {text!r} says too little"


def test_every_public_class_and_each_of_its_members_is_documented() -> None:
    names = {name for homes in PUBLIC.values() for name in homes}
    assert {*saturnmq.__all__, *aio.__all__} - names == {"__version__", "aio", "errors"}
    bare = []
    for path, classes in PUBLIC.items():
        missing = set(classes)
        for node in ast.parse((ROOT / path).read_text()).body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name not in classes:
                continue
            missing.discard(node.name)
            if ast.get_docstring(node) is None:
                bare.append(f"{path}: {node.name}")
            if isinstance(node, ast.FunctionDef):
                continue
            for part in node.body:
                if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                    is_setter = any(".setter" in ast.unparse(by) for by in part.decorator_list)
                    is_private = part.name.startswith("_") or is_setter
                    if not is_private and ast.get_docstring(part) is None:
                        bare.append(f"{path}: {node.name}.{part.name}")
        assert not missing, f"{path} has no {missing}"
    assert bare == []


def test_tests_do_not_sleep_to_wait() -> None:
    found = {}
    for file in sorted((ROOT / "tests").rglob("*.py")):
        calls = [
            node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)
        ]
        sleeps = sum(ast.unparse(call.func) in ("time.sleep", "sleep") for call in calls)
        if sleeps:
            found[str(file.relative_to(ROOT / "tests"))] = sleeps
    assert {path: n for path, n in found.items() if n > SLEEPS.get(path, 0)} == {}
    assert {path: n for path, n in SLEEPS.items() if n > found.get(path, 0)} == {}, "lower SLEEPS"


SENTENCE = re.compile(r"(?<=[.!?:])\s+|\n\s*\n|\n\s*(?:[-*]|\d+\.)\s+")


def bare_openings(text: str) -> list[str]:
    sentences = (sentence.strip() for sentence in SENTENCE.split(text))
    return [
        sentence
        for sentence in sentences
        if re.match(r"(?:What|Who|Of what)\b", sentence) and not sentence.endswith("?")
    ]


def test_sentences_begin_with_their_subject() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path, tree in modules():
        for node in ast.walk(tree):
            match node:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    found[path.split("/")[0]] += bare_openings(text)
    for file in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        found["documents"] += bare_openings(file.read_text())
    assert set(found) <= set(BARE_OPENINGS)
    for place, sentences in found.items():
        assert len(sentences) <= BARE_OPENINGS[place], (place, sentences)


def test_a_bare_opening_is_found() -> None:
    assert bare_openings("It writes. What is read goes first.") == ["What is read goes first."]
    assert bare_openings("Who follows whom, decided once") != []
    assert bare_openings("It asks: What now? The one that answers wins.") == []


def without_reason(text: str) -> list[str]:
    """Lines that silence mypy without a comment behind it or in the line above."""
    found, above = [], ""
    for line in text.splitlines():
        ignored = re.search(r"# type: ignore\b(?:\[[\w, -]+\])?(.*)", line)
        if ignored and "#" not in ignored[1] and not above.lstrip().startswith("#"):
            found.append(line.strip())
        above = line
    return found


def test_mypy_is_silenced_with_a_reason() -> None:
    files = [file for each in PACKAGES for file in sorted((ROOT / each).rglob("*.py"))]
    assert len(files) > 400
    wrong = {
        str(f.relative_to(ROOT)): found for f in files if (found := without_reason(f.read_text()))
    }
    assert wrong == {}
    assert without_reason("x = y()  # type: ignore[attr-defined]") != []
    assert without_reason("# It has one.\nx = y()  # type: ignore[attr-defined]") == []
    assert without_reason("x = y()  # type: ignore[arg-type]  # it may be any") == []
