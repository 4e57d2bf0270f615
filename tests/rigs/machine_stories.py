"""Stories of a world of machines, as text: a command, and below `----` what came of it.

    # A comment.
    world slaves=1

    start a
    ----
    a  Started -> Ask sure
    a = unsure, epoch 0, log 0-0

| command | meaning |
|---|---|
| world NAME=N ... | the nodes: a is the master, b, c, ... are its slaves |
| group NAME=N ... | the same, started and in step, with one message that is acknowledged |
| add NODE ID | one of another group of this name, whose sends wait for nobody |
| configure NODE ID [MASTER] | its brokerId, and haMasterAddress, from its next start on |
| clone NODE FROM | its disk is a copy of the other one's |
| run | all that happens by itself, until nothing is left but timers |
| timers | all that are set are over; then `run` |
| full NODE N | the Nth thing that its disk takes part in fails |
| break_write NODE | a write to its log fails, and leaves a message that its next start finds |
| classic NODE HOST END | a slave of RocketMQ's with a log up to there dials the node |
| nothing_promised | from now on messages that were acknowledged may be lost |
| anything else | the action of the world of this name |

A line is an event at a node and what it wants done then; what it awaits from its disk is part of
that line. Below come the nodes that are another thing now.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import fields
from typing import Any

from machine_node import Node
from machine_search import in_step
from machine_world import QUIET, Action, World
from saturnmq.broker.replication import events as e
from saturnmq.broker.replication.introductions import Hello, Join, MemberState
from saturnmq.store.log.epochs import Epoch

SEPARATOR = "----"
BY_ITSELF = {*QUIET} - {"timer", "idle"}
MOST = 2  # questions of one node in one `run`
UNTOLD_FIELDS = ("link", "request", "seconds", "ha_address", "check", "nameservers", "free_id")
UNTOLD = (e.Say, e.SaveSoon, e.Register, e.MergeBack)


def play(text: str) -> str:
    """The story with what comes of its commands now."""
    story = _Story()
    return "\n".join(map(story.block, text.strip("\n").split("\n\n"))).rstrip("\n") + "\n"


class _Story:
    def __init__(self) -> None:
        self._world = World()
        self._known: dict[str, str] = {}

    def block(self, block: str) -> str:
        """Its comments, its command, and what came of that."""
        told = block.partition(f"\n{SEPARATOR}")[0]
        comments = [line for line in told.splitlines() if line.startswith("#")]
        commands = [line for line in told.splitlines() if not line.startswith("#")]
        if not commands:
            return told + "\n"
        self._world.trace.clear()
        self._world.refused = ""
        for command in commands:
            self._do(command)
        refused = [f"refused: {self._world.refused}"] if self._world.refused else []
        came = [*self._steps(), *refused, *self._changes()]
        return "\n".join([*comments, *commands, SEPARATOR, *came, ""])

    def _do(self, command: str) -> None:
        kind, *rest = command.split()
        world = self._world
        match kind, rest:
            case "world", options:
                named = (option.split("=") for option in options)
                self._world = World(**{name: int(value) for name, value in named})
            case "group", options:
                named = (option.split("=") for option in options)
                self._world = in_step(**{name: int(value) for name, value in named})
                self._world.trace.clear()
            case "add", [name, broker_id]:
                world.add(name, int(broker_id), required=1)
                world.nodes[name].is_foreign = True
            case "configure", [name, broker_id, *master]:
                world.nodes[name].configure(int(broker_id), world.required, "".join(master))
            case "clone", [name, original]:
                world.nodes[name].disk = world.nodes[original].disk
            case "nothing_promised", []:
                world.promises.let_go()
            case "run", []:
                self._run()
            case "timers", []:
                for node in world.nodes.values():
                    for what in sorted(node.timers):
                        world.act(("timer", node.name, what))
                self._run()
            case "full", [name, count]:
                world.budget["fail"] += 1
                world.act(("fail", name, int(count)))
            case "break_write", [name]:
                node = world.nodes[name]
                world.written += 1
                node.failed = "a write failed"
                node.left = node.disk.end, (node.role.log_epoch, world.written)
            case "classic", [name, host, end]:
                world.tell(world.nodes[name], e.JoinedClassic(100, host, int(end)))
            case _:
                kinds = {"give_up": "abandon"}
                if (what := kinds.get(kind, kind)) in world.budget:
                    world.budget[what] += 1
                action = (kind, *(int(x) if x.isdigit() else x for x in rest))
                assert action in [*world.actions()], f"{command} cannot happen now"
                world.act(action)

    def _run(self) -> None:
        """Nobody dials or asks for ever: a second `run` is for that."""
        world, done = self._world, Counter[Action]()
        while True:
            happens = (action for action in world.actions() if action[0] in BY_ITSELF)
            action = next((action for action in happens if done[action] < MOST), None)
            if action is None:
                return
            done[action] += action[0] in ("dial", "hear", "poll")
            world.act(action)

    # -- as text

    def _steps(self) -> list[str]:
        lines: list[tuple[str, str]] = []
        for name, event, out in self._world.trace:
            told = [_short(each) for each in out if not isinstance(each, UNTOLD)]
            if isinstance(event, e.Done):
                told = [*(["FAILS"] if event.error else []), *told]
                before = next(i for i in reversed(range(len(lines))) if lines[i][0] == name)
                lines[before] = name, ", ".join([lines[before][1], *told])
            else:
                lines.append((name, f"{_short(event)} -> {', '.join(told)}"))
        return [f"{name}  {line}" for name, line in lines if not line.endswith("-> ")]

    def _changes(self) -> list[str]:
        now = {name: _state(node) for name, node in self._world.nodes.items()}
        changed = [
            f"{name} = {state}" for name, state in now.items() if self._known.get(name) != state
        ]
        self._known = now
        return changed


def _state(node: Node) -> str:
    disk = node.disk
    epochs = " ".join(f"{number}@{start}" for number, start in disk.epochs)
    log = f"log {disk.start}-{disk.end}" + (f" ({epochs})" if epochs else "")
    if not node.runs:
        return f"down, {log}"
    role = node.role
    part = f"slave {role.broker_id}" if role.state_name == "slave" else role.state_name
    parts = [part, f"epoch {role.promised_epoch}", log, f"confirmed {node.confirmed}"]
    if role.floor:
        parts.append(f"floor {role.floor}")
    if role.lacks:
        parts.append("lacks something")
    if role.state_name == "slave" and not role.caught_up:
        parts.append("may lack something")
    return ", ".join(parts)


def _short(value: Any) -> str:
    """The name of an event or instruction, and its fields that say something."""
    if isinstance(value, Hello | Join | MemberState):
        return _member(value)
    if isinstance(value, tuple) and value and all(isinstance(x, Epoch) for x in value):
        return " ".join(f"{number}@{start}" for number, start in value)
    if isinstance(value, tuple | list):
        return " ".join(map(_short, value))
    if isinstance(value, dict):
        return " ".join(name if said is True else _short(said) for name, said in value.items())
    if not hasattr(value, "__dataclass_fields__"):
        return _text(str(value))
    told = []
    for each in fields(value):
        said = getattr(value, each.name)
        if each.name in UNTOLD_FIELDS:
            continue
        if said is True:
            told.append(each.name)
        elif said is not False and said not in ("", (), {}, -1):
            told.append(_short(said))
    return " ".join([type(value).__name__, *told])


def _member(member: MemberState) -> str:
    told = [f"[{member.address} {member.state}", f"epoch {member.epoch}", f"to {member.end}"]
    if isinstance(member, Join):
        told += [f"from {member.offset}"] if member.offset is not None else []
        told += [name for name in ("asks", "tail", "conflict") if getattr(member, name)]
    return ", ".join(told) + "]"


def _text(text: str) -> str:
    """Its beginning, and short identities."""
    text = re.sub(r"\b0{20,}(\w+)", r"#\1", text)
    return f'"{text[:57]}..."' if len(text) > 60 else (f'"{text}"' if " " in text else text)
