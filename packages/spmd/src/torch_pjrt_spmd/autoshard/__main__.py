"""The command line: `python -m torch_pjrt_spmd.autoshard COMMAND`, the commands of `commands/`."""

import sys

from torch_pjrt_spmd.autoshard.commands import main

if __name__ == "__main__":
    sys.exit(main())
