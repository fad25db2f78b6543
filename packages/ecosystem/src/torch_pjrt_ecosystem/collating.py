"""Batches whose lengths are few: each length is a program.

`PadToBuckets` stands around a collator, or in the place of one:

    collator = PadToBuckets(tokenizer.pad_token_id)
    collator = PadToBuckets(tokenizer.pad_token_id, around=DataCollatorWithPadding(tokenizer))
    Trainer(model, arguments, data_collator=collator, train_dataset=rows)

A batch gets the first length of `buckets` that holds its longest row. What is longer than all of them raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

_NAMES = {"labels": -100, "attention_mask": 0, "token_type_ids": 0, "special_tokens_mask": 1}


def powers(least: int = 64, most: int = 8192) -> tuple[int, ...]:
    """Lengths between two, each a half longer than the one before, in turn a third: 64, 96, 128, 192, ..."""
    found, n = [], least
    while n < most:
        found += [n, n * 3 // 2]
        n *= 2
    return (*(n for n in found if n < most), most)


@dataclass(frozen=True)
class PadToBuckets:
    """A collator: rows of tokens, or what another collator has made of them, filled up to one of few lengths.

    pad_token_id    for `input_ids`.
    buckets         lengths, each longer than the one before.
    around          another collator, which sees the rows first; None where rows only have to be put together.
    pads            what further names are filled up with, over labels -100, masks 0. What has not the tokens'
                    length, or is not named here, stays as it is.
    side            where it is filled up, "right" or "left".
    """

    pad_token_id: int
    buckets: Sequence[int] = field(default_factory=powers)
    around: Callable[[list[Any]], Mapping[str, Any]] | None = None
    pads: Mapping[str, int | float] = field(default_factory=dict)
    side: str = "right"

    def __call__(self, rows: list[Any]) -> dict[str, Any]:
        """The batch; with an `attention_mask`, whether or not rows have one."""
        batch = dict(self.around(rows)) if self.around else self._together(rows)
        ids = batch["input_ids"]
        if batch.get("attention_mask") is None:
            batch["attention_mask"] = torch.ones_like(ids)
        return self._filled_up(batch, ids.shape[1])

    def _together(self, rows: list[Any]) -> dict[str, Any]:
        batch: dict[str, Any] = {}
        longest = max(len(row["input_ids"]) for row in rows)
        if "attention_mask" not in rows[0]:
            rows = [{**row, "attention_mask": [1] * len(row["input_ids"])} for row in rows]
        for name in rows[0]:
            parts = [torch.as_tensor(row[name]) for row in rows]
            if all(
                part.ndim == 1 and len(part) == len(row["input_ids"])
                for part, row in zip(parts, rows, strict=True)
            ):
                parts = [self._pad(name, part, longest) for part in parts]
            batch[name] = torch.stack(parts)
        return batch

    def _filled_up(self, batch: dict[str, Any], longest: int) -> dict[str, Any]:
        size = next((n for n in self.buckets if n >= longest), None)
        if size is None:
            raise ValueError(
                "A batch is longer than every bucket.\n"
                f"  saw: {longest} tokens\n"
                f"  expected: at most {max(self.buckets)}\n"
                "  hint: cut the rows, or give `buckets` up to what the model takes"
            )
        known = {"input_ids", *_NAMES, *self.pads}
        return {
            name: self._pad(name, x, size)
            if name in known and isinstance(x, Tensor) and x.ndim > 1 and x.shape[1] == longest
            else x
            for name, x in batch.items()
        }

    def _pad(self, name: str, x: Tensor, size: int) -> Tensor:
        """In the last dim of a row, or the second of a batch."""
        value = {"input_ids": self.pad_token_id, **_NAMES, **self.pads}.get(name, 0)
        dim = min(1, x.ndim - 1)
        n = size - x.shape[dim]
        widths = [0, 0] * (x.ndim - 1 - dim) + ([0, n] if self.side == "right" else [n, 0])
        return torch.nn.functional.pad(x, widths, value=value)
