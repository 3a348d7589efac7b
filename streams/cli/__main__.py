"""``python -m streams.cli``: the command line without an entry point, as ``dev`` and ``demo`` start workers.

Nothing else stands here, so that both ways of starting it are one.
"""

import sys

from streams.cli import main

if __name__ == "__main__":
    sys.exit(main())
