"""Timed messages: where they wait, by which clock, their delivery, and their recall."""
