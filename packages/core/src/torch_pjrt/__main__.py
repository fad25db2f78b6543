"""`python -m torch_pjrt`."""

import sys

from torch_pjrt.cli import main

if __name__ == "__main__":
    sys.exit(main())
