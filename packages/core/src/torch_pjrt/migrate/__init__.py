"""Scripts written for torch_xla, rewritten for torch-pjrt.

`migrated` takes the text of a script. What a name of torch_xla becomes is a row of `names.py`; where a script
uses one is found by `uses.py`, by its imports; `imports.py` makes the new imports; `edits.py` puts the pieces
of text together. Nothing is imported, neither the script nor torch_xla, and text that is not about torch_xla
stays as it is, to the byte.
"""

from torch_pjrt.migrate.script import Migrated, Remark, has_several_processes, migrated

__all__ = ["Migrated", "Remark", "has_several_processes", "migrated"]
