"""Drills: a real cluster under load meets faults, and a checker of its history decides."""
