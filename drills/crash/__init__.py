"""The crash simulator of the store (docs/guarantees.md 8.2): images of every crash, each one
recovered."""
