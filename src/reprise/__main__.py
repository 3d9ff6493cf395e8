"""`python -m reprise` is the same as `reprise`."""

import sys

from reprise.cli import main

sys.exit(main())
