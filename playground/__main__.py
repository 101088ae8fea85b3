"""`python -m playground`: the experiments without a browser."""

from playground.commands import main

main()
