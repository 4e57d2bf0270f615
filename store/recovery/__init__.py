"""The start of a store: what is intact, cut off or missing, and how damage is repaired."""
