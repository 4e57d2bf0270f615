"""Master and slaves: roles, the log's way to other nodes, promotions and elections.

`machine.py` decides, without I/O: events in, instructions out. `executor.py` carries the
instructions out; `ha_master.py` and `ha_slave.py` move the log.
"""
