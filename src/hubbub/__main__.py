"""Run the command line as `python -m hubbub`."""

from hubbub.cli import main

main()
