"""`python -m playground`: the experiments without a browser."""

from playground.cli import main

main()
