"""etcd, as far as election needs it: `door.py` is what the logic sees, `client.py` the real one
over gRPC (`wire.py`: its messages). The simulator may put a model behind the same door."""
