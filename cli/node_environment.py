"""The environment of a local cluster's brokers."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import fields


def without(keys: Iterable[str]) -> dict[str, str]:
    """This process's environment, less the variables of these keys of a broker's configuration, and
    those of options that the cluster decides: they would go before it, and a shell may have them
    for another broker."""
    from saturnmq.broker.config import BrokerConfig
    from saturnmq.store.config import StoreConfig

    given = frozenset(keys)
    left_out = {"SATURNMQ_PROCESSES", "SATURNMQ_TLS"} | {
        f"SATURNMQ_{each.name.upper()}"
        for each in (*fields(BrokerConfig), *fields(StoreConfig))
        if given & {each.name, each.metadata.get("key")}
    }
    return {name: value for name, value in os.environ.items() if name not in left_out}


def variable_of_secret(name: str) -> str | None:
    """The variable for a setting of a broker that nobody may see, in any spelling of its key; None:
    it is none of these."""
    from saturnmq.broker.config import BrokerConfig

    wanted = name.replace("_", "").replace("-", "").lower()
    for each in fields(BrokerConfig):
        is_it = wanted in (str(each.metadata.get("key")).lower(), each.name.replace("_", ""))
        if is_it and not each.repr:
            return f"SATURNMQ_{each.name.upper()}"
    return None
