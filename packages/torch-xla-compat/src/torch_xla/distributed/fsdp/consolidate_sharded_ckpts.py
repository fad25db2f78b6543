"""`python -m torch_xla.distributed.fsdp.consolidate_sharded_ckpts`: one file of those of all ranks."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from torch_xla.distributed.fsdp.consolidation import consolidate_sharded_model_checkpoints


def main(arguments: Sequence[str] | None = None) -> None:
    """Consolidate the files that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ckpt_prefix", required=True, help="how paths of the ranks' files begin")
    parser.add_argument("--ckpt_suffix", default="*.pth", help="how they end: a pattern")
    parser.add_argument("--save_path", default="", help="where to write the whole one")
    given = parser.parse_args(arguments)
    _, path = consolidate_sharded_model_checkpoints(
        given.ckpt_prefix, given.ckpt_suffix, given.save_path
    )
    print(f"written: {path}")


if __name__ == "__main__":
    main()
