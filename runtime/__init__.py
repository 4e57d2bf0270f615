"""The door to time, chance, tasks, sockets and threads, and what keeps loops and tasks alive.

Logic takes a `Runtime` (`door.py`). `native.py` is the real one, `drills/sim/runtime.py` the
simulated one.
"""
