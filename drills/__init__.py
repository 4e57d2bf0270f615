"""Drills: each makes something fail on purpose and judges what the system promised meanwhile.

`sim` and `crash` run on simulated clocks, networks and disks from one seed; `fuzz` and `hostile`
send input that is wrong or malicious; `failover`, `pipeline` and `kernel` run real processes under
faults, Spark's jobs among them, and real file systems through power cuts. docs/drills.md says how
to run them.
"""
