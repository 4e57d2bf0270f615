"""`python -m saturnmq` is the program `saturnmq`."""

from runpy import run_module

# By name: the client's folder, where this file lies, must not import the commands.
run_module("saturnmq.cli.main", run_name="__main__", alter_sys=True)
