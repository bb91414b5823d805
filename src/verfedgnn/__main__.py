"""`python -m verfedgnn`."""

from verfedgnn.cli.main import main

main()
