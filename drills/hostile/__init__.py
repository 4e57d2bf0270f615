"""Clients that attack, and what a well-behaved one beside them sees:
`saturnmq drill run hostile-clients`.
"""

NAME = "hostile-clients"
TEXT = "floods, dribbles, silence and lies, and a well-behaved client beside them"
