"""First bytes, names and certificates of gRPC's port, without a server."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from saturnmq.gateway import opening
from saturnmq.gateway.certificates import SELF_SIGNED, Certificate, self_signed
from saturnmq.gateway.opening import PREFACE, Opening, judge
from saturnmq.protocol.remoting import Command, encode
from saturnmq.runtime.errors import ConfigError
from tls_rig import client_hello

# the first bytes


def test_an_opening_is_judged_once_it_is_whole() -> None:
    for whole, kind in ((PREFACE, Opening.PLAIN), (client_hello(), Opening.TLS)):
        for end in range(len(whole)):
            assert judge(whole[:end]) is Opening.UNFINISHED
        assert judge(whole) is kind
        assert judge(whole + b"more") is kind


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (b"GET / HTTP/1.1\r\n", Opening.HTTP1),
        (b"POST /x", Opening.HTTP1),
        (b"PUT ", Opening.HTTP1),
        (b"PU", Opening.UNFINISHED),
        (b"PRI * HTTP/2.1", Opening.FOREIGN),
        (b"\x16\x02", Opening.FOREIGN),  # no TLS has this version
        (b"\x16\x03\x01\x00\x03", Opening.FOREIGN),  # shorter than any ClientHello
        (b"\x16\x03\x01\x40\x01", Opening.FOREIGN),  # longer than any record
        (b"\x16\x03\x01\x01\x00\x02", Opening.FOREIGN),  # a ServerHello
        (b"".join(encode(Command(105))), Opening.FOREIGN),  # a request of Remoting
    ],
)
def test_other_openings_are_refused_as_soon_as_they_are_known(start: bytes, kind: Opening) -> None:
    assert judge(start) is kind


def test_no_opening_is_unfinished_at_its_greatest_length() -> None:
    for first in range(256):
        for fill in (0, 1, 3, 255):
            start = bytes((first, 3, 1)) + bytes((fill,)) * opening.OPENING_MAX
            assert judge(start[: opening.OPENING_MAX]) is not Opening.UNFINISHED
    longest = b"\x16\x03\x01\x40\x00\x01" + bytes(opening.OPENING_MAX)
    assert judge(longest[: opening.OPENING_MAX]) is Opening.TLS


# certificates


def test_a_self_signed_certificate_is_made_once_and_is_private(tmp_path: Path) -> None:
    made = self_signed(tmp_path / "tls", ["127.0.0.1", "::1"])
    assert made == tmp_path / "tls" / SELF_SIGNED
    assert (made.stat().st_mode & 0o777, made.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    data = made.read_bytes()
    assert self_signed(tmp_path / "tls", ["127.0.0.1"]).read_bytes() == data
    assert [path.name for path in made.parent.iterdir()] == [SELF_SIGNED]


def test_a_self_signed_certificate_names_hosts_and_addresses(tmp_path: Path) -> None:
    made = self_signed(tmp_path, ["broker.example", "10.0.0.7"])
    command = ["openssl", "x509", "-in", str(made), "-noout", "-ext", "subjectAltName"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert {"DNS:localhost", "DNS:broker.example", "IP Address:10.0.0.7"} <= {
        name.strip() for line in names.splitlines() for name in line.split(",")
    }


def test_without_openssl_there_is_no_self_signed_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="no command openssl"):
        self_signed(tmp_path / "tls", [])
    assert not (tmp_path / "tls").exists()


def test_files_that_are_no_certificate_are_refused_at_the_start(tmp_path: Path) -> None:
    pem = self_signed(tmp_path, ["127.0.0.1"])
    empty, locked = tmp_path / "empty.pem", tmp_path / "locked.pem"
    empty.write_text("")
    arguments = ["openssl", "pkey", "-in", pem, "-aes256", "-passout", "pass:secret"]
    locked.write_bytes(subprocess.run(arguments, capture_output=True, check=True).stdout)
    for certificate, key in ((empty, pem), (pem, empty), (pem, locked), (pem, tmp_path / "none")):
        with pytest.raises(ConfigError, match=r"tlsCertPath .*tlsKeyPath"):
            Certificate(str(certificate), str(key))
    other = self_signed(tmp_path / "other", ["127.0.0.1"])
    with pytest.raises(ConfigError, match="KEY_VALUES_MISMATCH"):
        Certificate(str(pem), str(other))
