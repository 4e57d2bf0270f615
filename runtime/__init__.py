"""The door to time, chance, tasks, sockets and threads, and the supervision of loops and tasks.

Logic takes a `Runtime` (`door.py`). `native.py` is the real one, `drills/sim/runtime.py` the
simulated one.
"""
