"""Sources for `GlobalStream` that need a few words of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class RayRows:
    """The rows of a `ray.data.Dataset` as dicts, in the order of the dataset, for `GlobalStream`.

    dataset  its steps run in Ray's own processes; use it with `num_workers=0`. It is read from its beginning
             each time, also to resume: Ray has no position to go on from. Rows come in order, since
             `preserve_order` of the dataset's execution options is set; steps that draw random numbers
             (`random_shuffle`) need a seed.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.dataset.context.execution_options.preserve_order = True
        return iter(self.dataset.iter_rows())
