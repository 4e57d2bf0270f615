"""etcd, as far as election needs it: `door.py` is the interface that the logic sees, `client.py` is
its implementation over gRPC (`wire.py`: its messages). The simulator puts a model behind the same
door."""
