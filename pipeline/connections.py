"""The connections of this process to brokers and nameservers, kept from one task to the next.

A Python worker of Spark runs many tasks, and a connection is dearer than a small task. One is taken
by one user at a time and given back, unless something went wrong on it; what nobody has used for
five minutes is closed.
"""

from __future__ import annotations

import threading

from saturnmq.protocol.channel import Channel
from saturnmq.protocol.native import NativeRuntime

IDLE_S = 300.0
TRUSTED_S = 1.0  # a connection idle for longer is looked at: the peer may have closed it
CONNECT_TIMEOUT_S = 3.0

_runtime = NativeRuntime()


class Connections:
    """The idle ones, by address."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[str, list[Channel]] = {}
        self._sweeper: threading.Timer | None = None

    def take(self, address: str) -> Channel:
        """A connection to `address` for the caller alone. ConnectFailed: nobody answers there."""
        while True:
            with self._lock:
                waiting = self._idle.get(address)
                channel = waiting.pop() if waiting else None
            if channel is None:
                return Channel(_runtime, address, CONNECT_TIMEOUT_S)
            if channel.idle_s() < TRUSTED_S or channel.is_alive():
                return channel
            channel.close()

    def give_back(self, channel: Channel) -> None:
        """Nothing is under way on it: whoever comes next may have it."""
        with self._lock:
            self._idle.setdefault(channel.address, []).append(channel)
            self._plan_sweep()

    def close_idle(self, idle_s: float = 0.0) -> int:
        """Close what nobody has used for `idle_s`; how many stay open."""
        with self._lock:
            self._sweeper = None
            for address, channels in list(self._idle.items()):
                stay = [channel for channel in channels if channel.idle_s() < idle_s]
                for channel in channels:
                    if channel not in stay:
                        channel.close()
                self._idle[address] = stay
            left = sum(map(len, self._idle.values()))
            if left:
                self._plan_sweep()
            return left

    def _plan_sweep(self) -> None:
        if self._sweeper is None:
            self._sweeper = threading.Timer(IDLE_S / 5, self.close_idle, (IDLE_S,))
            self._sweeper.daemon = True
            self._sweeper.start()


_OURS = Connections()
take, give_back, close_idle = _OURS.take, _OURS.give_back, _OURS.close_idle
