"""The simulator: whole clusters in one process, driven by one seed.

Nodes and clients run their real code on a virtual clock (`loop.py`, `runtime.py`), a simulated
network (`network.py`), disk (`disk.py`) and etcd (`etcd.py`). `cluster.py` runs a plan of load and
faults; `verdict.py` judges the history by the promises of its mode. The same seed gives the same
run. docs/simulator.md has the whole of it.
"""
