"""``python -m remora.cli``: the command without its script."""

from remora.cli import main

main()
