"""`python -m torch_pjrt_ecosystem`: the table, and what of it is on."""

from __future__ import annotations

from torch_pjrt_ecosystem import statuses
from torch_pjrt_ecosystem.at_hand import is_at_hand
from torch_pjrt_ecosystem.table import LIBRARIES


def main() -> None:
    """Print libraries with versions, and the rows."""
    print(f"pjrt is {'' if is_at_hand() else 'not '}the accelerator at hand")
    for name, library in LIBRARIES.items():
        installed = library.installed() or "not installed"
        print(f"\n{name}: {installed}; tested with {', '.join(library.tested)}")
        for status in statuses():
            if status.patch.library == name:
                off = "" if status.is_on else " (switched off)"
                print(f"  {status.patch.name}{off}: {status.patch.changes}")


if __name__ == "__main__":
    main()
