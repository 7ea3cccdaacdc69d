"""``python -m ggmlq`` is the command ``ggmlq``."""

import sys

from .cli import main

sys.exit(main())
