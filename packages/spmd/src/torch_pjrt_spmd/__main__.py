"""`python -m torch_pjrt_spmd`: the commands of `commands/`."""

import sys

from torch_pjrt_spmd.commands import main

if __name__ == "__main__":
    sys.exit(main())
