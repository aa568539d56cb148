"""``python -m blockdraft``: the same as the ``blockdraft`` command."""

import sys

from blockdraft.cli import main

sys.exit(main())
