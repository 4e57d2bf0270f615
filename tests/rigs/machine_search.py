"""Every order of events of a small world, and long random ones.

A world is copied before each action, and compared by what can still make a difference.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from enum import Enum
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

from machine_promises import Broken
from machine_world import QUIET, Action, World

Path = tuple[Action, ...]
REPAIRS = ("start", "heal", "arrive")
GOOD = {*QUIET, *REPAIRS}
LAST = (*REPAIRS, "dial", "hear", "timer", "idle")
LOSSES = ("wipe", "lose_log", "lose_front", "damage", "power", "copy", "restore")
# Says nothing of what may still happen: what never changes, what went before, and how it is saved.
_PAST = {
    *("_config", "_floor_at", "_floor_noted", "_log", "_me", "_now", "_out", "_written"),
    *("alive_at", "changes", "config", "draw", "me", "on_pause", "opened", "refused", "side"),
    "trace",
}


def in_step(**options: Any) -> World:
    """A master and its slaves have one message, which is acknowledged, and nothing else to do."""
    world = World(**options)
    allowed, world.budget = world.budget, dict.fromkeys(world.budget, 0) | {"write": 1}
    for name in world.nodes:
        world.act(("start", name))
    while actions := [x for x in world.actions() if x[0] in GOOD or x[0] == "write"]:
        world.act(actions[0])
    world.budget = allowed
    assert world.promises.shown, "it is not acknowledged"
    return world


def search(world: World, most: int, delays: int = 1) -> int:
    """How many worlds can come of this one, the nearest first, up to `most`: whatever goes wrong
    may do so at any time, and so often something that happens by itself waits for something else.
    Broken tells how it came to that."""
    world.trace.clear()
    seen = {(_key(world), delays)}
    front: deque[tuple[World, int, Path]] = deque([(world, delays, ())])
    while front and len(seen) < most:
        each, left, path = front.popleft()
        for action, costs in _choices(each, left):
            following = _copy(each, {})
            _act(following, action, path)
            following.trace.clear()
            key = _key(following), left - costs
            if key not in seen:
                seen.add(key)
                front.append((following, left - costs, (*path, action)))
    return len(seen)


def _choices(world: World, delays: int) -> Iterator[tuple[Action, int]]:
    """What may come next, and whether that is a delay."""
    actions = [*world.actions()]
    by_itself = sorted((action for action in actions if action[0] in GOOD), key=_rank)
    for position, action in enumerate(by_itself):
        if not position or delays:
            yield action, min(position, 1)
    yield from ((action, 0) for action in actions if action[0] not in GOOD)


def _rank(action: Action) -> int:
    """What may go on for ever comes last."""
    return LAST.index(action[0]) if action[0] in LAST else -1


def wander(world: World, seed: int, steps: int) -> None:
    """So many actions, by chance. Some worlds have more trouble than others, and a node that has
    lost something is not back at once."""
    rng = random.Random(seed)
    trouble = rng.choice((0.02, 0.06, 0.15))
    path: list[Action] = []
    for _ in range(steps):
        actions = [*world.actions()]
        if not actions:
            return
        kinds: dict[str, list[Action]] = {}
        for action in actions:
            kinds.setdefault(action[0], []).append(action)
        good = [action for action in actions if action[0] in QUIET or action[0] == "write"]
        repairs = [action for action in actions if action[0] in REPAIRS]
        bad = [kind for kind in kinds if kind not in GOOD and kind != "write"]
        losses = [kind for kind in bad if kind in LOSSES]
        if bad and (rng.random() < trouble or not good + repairs):
            action = rng.choice(kinds[rng.choice(losses or bad)])
        elif repairs and (rng.random() < 3 * trouble or not good):
            action = rng.choice(repairs)
        else:
            action = rng.choice(good)
        _act(world, action, path)
        path.append(action)


def _act(world: World, action: Action, path: Any) -> None:
    try:
        world.act(action)
    except Broken as broken:
        told = "\n".join(map(str, (*path, action)))
        raise Broken(f"{broken}, after\n{told}") from broken


# -- copies


def _is_frozen(kind: type) -> bool:
    parameters = getattr(kind, "__dataclass_params__", None)
    return parameters is not None and bool(parameters.frozen)


def _copy(value: Any, known: dict[int, Any]) -> Any:
    """What may change is copied, and shared where it was."""
    kind = type(value)
    if kind in (str, int, bool, float, tuple, frozenset, type(None)):
        return value
    if id(value) in known:
        return known[id(value)]
    copied: Any
    if kind is list:
        copied = known[id(value)] = [_copy(each, known) for each in value]
    elif kind is dict:
        copied = known[id(value)] = {key: _copy(each, known) for key, each in value.items()}
    elif kind is set:
        copied = known[id(value)] = set(value)
    elif kind is MethodType:
        copied = MethodType(value.__func__, _copy(value.__self__, known))
    elif kind is partial:
        copied = partial(_copy(value.func, known), *(_copy(each, known) for each in value.args))
    elif kind is FunctionType:
        copied = _copy_function(value, known)
    elif isinstance(value, Enum) or _is_frozen(kind):
        copied = value
    else:
        copied = known[id(value)] = kind.__new__(kind)
        for name, each in vars(value).items():
            copied.__dict__[name] = _copy(each, known)
    return copied


def _copy_function(value: Any, known: dict[int, Any]) -> Any:
    cells = tuple(CellType(_copy(cell.cell_contents, known)) for cell in value.__closure__ or ())
    code, name = value.__code__, value.__name__
    return FunctionType(code, value.__globals__, name, value.__defaults__, cells)


# -- comparison


def _key(world: World) -> int:
    """Equal for worlds between which nothing can tell."""
    return hash(tuple(_parts(world, set())))


def _parts(value: Any, seen: set[int]) -> Iterator[Any]:
    kind = type(value)
    if kind in (str, int, bool, float, type(None)):
        yield value
    elif kind in (tuple, list):
        yield len(value)
        for each in value:
            yield from _parts(each, seen)
    elif kind in (set, frozenset):
        yield frozenset(value)
    elif kind is dict:
        yield len(value)
        for name in sorted(value):
            yield name
            yield from _parts(value[name], seen)
    elif isinstance(value, Enum):
        yield value.name
    elif kind is partial:
        yield from _parts(value.func, seen)
        yield from _parts(value.args, seen)
    elif kind in (FunctionType, MethodType):  # an outcome is awaited
        yield value.__qualname__
        for cell in getattr(value, "__closure__", None) or ():
            yield from _parts(cell.cell_contents, seen)
    elif hasattr(value, "__dict__") and id(value) not in seen:
        seen.add(id(value))
        yield kind.__name__
        for name, each in vars(value).items():
            if name not in _PAST:
                yield from _parts(each, seen)
