"""Exactly-once for sinks: partitions are staged, and published once under a marker."""
