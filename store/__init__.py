"""The store: RocketMQ's files, their writers and readers. Starts at `message_store`."""
