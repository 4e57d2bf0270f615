"""Consuming: members of a group share queues, pull messages, call listeners and commit offsets."""
