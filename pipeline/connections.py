"""The connections of this process to brokers and nameservers, kept from one task to the next.

A Python worker of Spark runs many tasks, and a connection is dearer than a small task.
"""

from __future__ import annotations

from saturnmq.client.channels import Channels

channels = Channels()
