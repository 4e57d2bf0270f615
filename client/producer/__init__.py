"""Sending: batches, queues, acknowledgements, retries, and the exactly-once stages of sinks."""
