"""The tables of a broker (topics, groups, offsets, clients), and how they are saved."""
