"""The identity of a group, in every file of its nodes: role.json, epoch file and checkpoint.

It is drawn once, when the first log of the group begins; slaves take it over with the log. A file
without it (of RocketMQ, or of before) gets it from the others. A node with an empty log belongs to
no group yet, whatever its files say: a replaced node that began one by mistake has nothing to lose.
"""

from __future__ import annotations

from saturnmq.broker.context import Context
from saturnmq.runtime.errors import StoreDamaged


def draw(c: Context) -> str:
    """Draw an identity that no other group has: 128 random bits as hexadecimal digits."""
    return f"{c.runtime.random.getrandbits(128):032x}"


def known(c: Context) -> str:
    """The identity of this node's group; empty if it is not known, or if the log is empty."""
    return c.role.identity if c.store.watermarks.appended else ""


def agree(c: Context) -> None:
    """Let all files of this node have the identity that any of them has. StoreDamaged: they
    differ."""
    told = {
        "config/role.json": c.role.identity,
        "epochFileCheckpoint": c.epochs.identity,
        "checkpoint": c.store.identity,
    }
    known = {name: identity for name, identity in told.items() if identity}
    if len(set(known.values())) > 1:
        raise StoreDamaged(
            "the files of this node are of several groups: "
            + ", ".join(f"{name} of {identity}" for name, identity in known.items())
            + "; put back the files that belong together, or start with an empty store"
        )
    for identity in set(known.values()):
        belong(c, identity)


def belong(c: Context, identity: str) -> None:
    """Make this node a member of that group, as `adopt`, and note it in role.json, which is written
    later."""
    assert identity, "the identity of no group"
    adopt(c, identity)
    c.role.belongs(identity)


def adopt(c: Context, identity: str) -> None:
    """Note the group of this log, if it is known: durably in the epoch file before this returns, in
    the checkpoint when it is written next. Blocking."""
    if identity and identity != c.epochs.identity:
        if not c.store.watermarks.appended:
            c.epochs.identity = ""
        c.epochs.adopt(identity)
        assert c.epochs.identity == identity, f"it is of {c.epochs.identity}, not of {identity}"
        c.store.identity = identity
