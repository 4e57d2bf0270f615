"""The client library: producer, consumers and admin over the Remoting protocol.

The asynchronous classes (producer.py, push_consumer.py, pull_consumer.py, admin.py) run on one
event loop and sit on a ClientCore (core.py). The synchronous ones run such a loop in a thread: the
producer in blocking.py, the others in blocking_faces.py, which a tool of that name writes. Users
import the names from `saturnmq` and `saturnmq.aio`. Sources and sinks of the pipeline, which have
no loop, ask brokers over the connections of channels.py.
"""
