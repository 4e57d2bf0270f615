"""Pop consumption: the broker keeps the place of a group, and which of its messages are out."""
