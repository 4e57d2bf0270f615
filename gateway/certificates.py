"""The certificate of a gRPC port: files of the operator, or one that is made here.

Java's, Go's, C++'s and C#'s clients speak TLS unless they are told otherwise, and check no
certificate. So a node without a certificate makes one at its start (`self_signed`). It proves
nothing to a client, and clients that check certificates refuse it.

Changed files are read for the next connection. Files that do not fit together (a renewal may be
half done) leave the certificate in use as it was.
"""

from __future__ import annotations

import logging
import os
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

from saturnmq.runtime.errors import ConfigError

log = logging.getLogger(__name__)

SELF_SIGNED = "self-signed.pem"  # the key and the certificate in one file
MAKING_S = 20.0
_REQUEST = (
    "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -sha256 -days 3650 "
    "-subj /CN=saturnmq -keyout /dev/stdout -out /dev/stdout"
)


class Certificate:
    """The certificate in two files, or in one that both paths name. Made outside of the loop."""

    def __init__(self, certificate: str, key: str) -> None:
        self._certificate = certificate
        self._key = key
        self._seen = self._state()
        self._context = self._read()

    def current(self) -> ssl.SSLContext:
        """The context for a new connection, with the files as they are now."""
        try:
            state = self._state()
            if state == self._seen:
                return self._context
            self._seen = state
            self._context = self._read()
        except ConfigError as error:
            log.warning("the certificate in use stays: %s", error)
            return self._context
        log.info("new certificate from %s", self._certificate)
        return self._context

    def _state(self) -> list[tuple[int, int, int]]:
        with _problems(self._certificate, self._key):
            states = [os.stat(path) for path in (self._certificate, self._key)]
        return [(state.st_mtime_ns, state.st_size, state.st_ino) for state in states]

    def _read(self) -> ssl.SSLContext:
        with _problems(self._certificate, self._key):
            return _context(self._certificate, self._key)


def _context(certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(certificate, key, password=_no_password)
    return context


@contextmanager
def _problems(certificate: str, key: str) -> Iterator[None]:
    """Turns errors of the two files into ConfigError."""
    files = f"tlsCertPath {certificate}, tlsKeyPath {key}"
    try:
        yield
    except ssl.SSLError as error:
        raise ConfigError(
            f"{files}: {error.reason or error}; they must hold a certificate (PEM), the chain "
            "behind it, and its key without a password"
        ) from error
    except OSError as error:
        raise ConfigError(f"{files}: {error.strerror or error}") from error


def _no_password() -> str:
    return ""  # otherwise OpenSSL asks the terminal


def self_signed(directory: Path, hosts: list[str]) -> Path:
    """The file of the self-signed certificate in `directory`, made now if it is not there, for
    these hosts. Blocking; ConfigError if it cannot be made."""
    path = directory / SELF_SIGNED
    if path.exists():
        return path
    made = _make(hosts)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_private(path, made)
    except OSError as error:
        raise ConfigError(f"no self-signed certificate in {directory}: {error}") from error
    return path


def temporary(hosts: list[str]) -> ssl.SSLContext:
    """The context of a self-signed certificate that no file has. Blocking; ConfigError if it cannot
    be made."""
    made = _make(hosts)
    number = os.memfd_create("certificate")  # ssl reads files only
    try:
        os.write(number, made)
        path = f"/proc/self/fd/{number}"
        return _context(path, path)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"no self-signed certificate: {error}") from error
    finally:
        os.close(number)


def _make(hosts: list[str]) -> bytes:
    """A key and its certificate."""
    names = ",".join(["DNS:localhost", *map(_name, hosts)])
    return _openssl([*_REQUEST.split(), "-addext", f"subjectAltName={names}"])


def _name(host: str) -> str:
    """The host as a name of a certificate."""
    try:
        return f"IP:{ip_address(host)}"
    except ValueError:
        return f"DNS:{host}"


def _openssl(arguments: list[str]) -> bytes:
    try:
        done = subprocess.run(
            ["openssl", *arguments], capture_output=True, timeout=MAKING_S, check=False
        )
    except FileNotFoundError:
        raise ConfigError("no self-signed certificate: there is no command openssl") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"no self-signed certificate: openssl took {MAKING_S:g} s") from None
    if done.returncode:
        text = done.stderr.decode(errors="replace").strip()
        raise ConfigError(f"no self-signed certificate: openssl says {text[-500:]}")
    return done.stdout


def _write_private(path: Path, data: bytes) -> None:
    """Write the file whole or not at all, readable by its owner only."""
    temporary = path.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(number, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(number)
    temporary.replace(path)
