"""The crash simulator of the store (fault-model §6): images of every crash, each one recovered."""
