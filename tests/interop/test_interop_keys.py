"""The keys of a broker.conf: ours are those of RocketMQ's own classes, none is forgotten."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from saturnmq.broker.config import BrokerConfig
from saturnmq.runtime.errors import ConfigError

pytestmark = pytest.mark.quick

CLASSES = [
    "org.apache.rocketmq.common.BrokerConfig",
    "org.apache.rocketmq.store.config.MessageStoreConfig",
    "org.apache.rocketmq.remoting.netty.NettyServerConfig",
    "org.apache.rocketmq.remoting.netty.NettyClientConfig",
    "org.apache.rocketmq.auth.config.AuthConfig",
]
SETTER = re.compile(r"public void set(\w)(\w*)\([^,)]+\);")


def keys_of(jars: Path) -> set[str]:
    """As MixAll.properties2Object finds them: a setter of one argument each."""
    classpath = ":".join(str(jar) for jar in sorted(jars.glob("*.jar")))
    command = ["javap", "-public", "-cp", classpath, *CLASSES]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    return {first.lower() + rest for first, rest in SETTER.findall(shown.stdout)}


def test_no_key_of_rocketmq_is_unknown_here(jars: Path, figures: Counter[str]) -> None:
    keys = keys_of(jars)
    assert len(keys) > 400
    unknown = []
    for key in sorted(keys):
        try:
            BrokerConfig.load(f"{key}=no such value\n", path="broker.conf")
        except ConfigError as problem:
            if "unknown key" in str(problem):
                unknown.append(key)
    assert unknown == []
    figures["keys of broker.conf"] += len(keys)
