"""`python -m saturnmq` is the program `saturnmq`."""

from saturnmq.cli.main import main

main()
