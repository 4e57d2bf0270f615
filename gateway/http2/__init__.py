"""gRPC over HTTP/2 on the event loop of a node."""
