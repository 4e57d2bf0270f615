"""Delayed delivery: levels, how long a message has waited, and its way to its own topic."""
