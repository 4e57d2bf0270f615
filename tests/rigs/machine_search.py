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

GOOD = {*QUIET, "start", "write", "heal", "arrive"}
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
    while quiet := [action for action in world.actions() if action[0] in GOOD]:
        world.act(quiet[0])
    world.budget = allowed
    assert world.promises.shown, "it is not acknowledged"
    return world


def search(world: World, most: int) -> int:
    """How many worlds can come of this one, the nearest first, up to `most`. Broken tells how it
    came to that."""
    world.trace.clear()
    seen = {_key(world)}
    front: deque[tuple[World, tuple[Action, ...]]] = deque([(world, ())])
    while front and len(seen) < most:
        each, path = front.popleft()
        for action in [*each.actions()]:
            following = _copy(each, {})
            _act(following, action, path)
            following.trace.clear()
            if (key := _key(following)) not in seen:
                seen.add(key)
                front.append((following, (*path, action)))
    return len(seen)


def wander(world: World, seed: int, steps: int, chance: float = 0.06) -> None:
    """So many actions, by chance; `chance`: that the next one is trouble."""
    rng, path = random.Random(seed), []
    for _ in range(steps):
        actions = [*world.actions()]
        good = [action for action in actions if action[0] in GOOD]
        bad = [action for action in actions if action[0] not in GOOD]
        if not actions:
            return
        action = rng.choice(bad if bad and (not good or rng.random() < chance) else good)
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
