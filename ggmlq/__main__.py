"""``python -m ggmlq`` is the command ``ggmlq``."""

import sys

from .cli import main

if __name__ == "__main__":  # workers of mpi4py.futures import this under another name
    sys.exit(main())
