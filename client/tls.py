"""TLS of a client: whether its connections are encrypted, and whom they trust.

An application says so with `tls`, and without that the environment does (`SATURNMQ_CLIENT_TLS`), as
the property `tls.enable` does for RocketMQ's clients:

| value | connections |
|---|---|
| empty or `off` | plain text |
| `on` | TLS; certificates are checked with the authorities that the system trusts |
| a path | TLS; certificates are checked with the authorities in this file (PEM) |
| `unverified` | TLS that trusts everybody, as RocketMQ's clients do by default |
"""

from __future__ import annotations

import os
import ssl

from saturnmq.runtime.errors import ConfigError

VARIABLE = "SATURNMQ_CLIENT_TLS"

Tls = bool | ssl.SSLContext | None
"""True checks certificates with the authorities that the system trusts, a context as it is set, and
False is plain text. None: what the environment says."""


def context_of(tls: Tls) -> ssl.SSLContext | None:
    """The context of a client's connections; None: plain text. ConfigError: there is no such."""
    if isinstance(tls, ssl.SSLContext):
        return tls
    if tls is None:
        return _named(os.environ.get(VARIABLE, "").strip())
    if not isinstance(tls, bool):
        raise ConfigError(f"tls is {tls!r}: give True, False or an ssl.SSLContext")
    return ssl.create_default_context() if tls else None


def trusting() -> ssl.SSLContext:
    """TLS with whom it may be."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _named(value: str) -> ssl.SSLContext | None:
    if value in ("", "off"):
        return None
    if value == "on":
        return ssl.create_default_context()
    if value == "unverified":
        return trusting()
    try:
        return ssl.create_default_context(cafile=value)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{VARIABLE}={value}: {why}; give on, off, unverified, or a file with the "
            "certificates of the authorities to trust (PEM)"
        ) from error
