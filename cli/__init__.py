"""The command line: `launcher` runs local clusters, `main` is the program, the other modules its
commands.
"""
