"""`python -m mmdata` is the `mmdata` command."""

from mmdata.cli import main

main()
