"""The environment of a local cluster's brokers."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import fields


def without(keys: Iterable[str]) -> dict[str, str]:
    """This process's environment, less the variables of these keys of a broker's configuration, and
    those of options that the cluster decides: they would go before it, and a shell may have them
    for another broker."""
    from saturnmq.broker.config import field_of

    left_out = {f"SATURNMQ_{field_of(key) or key}".upper() for key in keys}
    left_out |= {"SATURNMQ_PROCESSES", "SATURNMQ_TLS"}
    return {name: value for name, value in os.environ.items() if name not in left_out}


def variable_of_secret(name: str) -> str | None:
    """The variable for a setting of a broker that nobody may see, in any spelling of its key; None:
    it is none of these."""
    from saturnmq.broker.config import BrokerConfig, field_of

    secrets = {each.name for each in fields(BrokerConfig) if not each.repr}
    found = field_of(name)
    return f"SATURNMQ_{found}".upper() if found in secrets else None
