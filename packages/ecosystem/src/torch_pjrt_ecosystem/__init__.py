"""Libraries that train models, on the device `pjrt`: Accelerate, Transformers and Lightning.

Importing this package is not needed: once it is installed, `import torch` has each library changed when it is
imported. What a library lets one register is registered; what it does not is in one table, `table.PATCHES`.
The variable TORCH_PJRT_ECOSYSTEM switches patches off (`settings.py`).

    is_at_hand()    whether libraries that choose a device by themselves choose `pjrt`
    PadToBuckets    a collator: batches of few lengths, each of which is a program
    statuses()      each row of the table: applied, waiting for its library, switched off, or failed, and why

`python -m torch_pjrt_ecosystem` prints the table.
"""

from __future__ import annotations

from torch_pjrt_ecosystem.applying import Status, statuses
from torch_pjrt_ecosystem.at_hand import is_at_hand
from torch_pjrt_ecosystem.collating import PadToBuckets
from torch_pjrt_ecosystem.table import PATCHES, Patch

__version__ = "0.1.0"
__all__ = ["PATCHES", "PadToBuckets", "Patch", "Status", "__version__", "is_at_hand", "statuses"]
