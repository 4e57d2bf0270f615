"""RocketMQ's protocols: frames, requests, routes, and the connections that carry them."""
