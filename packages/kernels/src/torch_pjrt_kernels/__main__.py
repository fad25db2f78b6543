"""`python -m torch_pjrt_kernels`."""

import sys

from torch_pjrt_kernels.tuning.cli import main

if __name__ == "__main__":
    sys.exit(main())
