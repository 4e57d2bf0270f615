"""The client library: producer, consumers and admin over the Remoting protocol.

The asynchronous classes (producer.py, push_consumer.py, pull_consumer.py, admin.py) run on one
event loop and sit on a ClientCore (core.py); blocking.py puts synchronous faces on them. Users
import the names from `saturnmq` and `saturnmq.aio`. Sources and sinks of the pipeline, which have
no loop, ask brokers over the connections of channels.py.
"""
