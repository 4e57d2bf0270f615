"""The requests of clients and operators: which service answers each, and how."""
