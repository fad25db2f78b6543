"""Shapes that tests, benchmarks and the tuner share: of calls that differ in what matters to a kernel."""

from __future__ import annotations

from torch_pjrt_kernels.attention.choice import Problem

#   what it is like        batch heads key_heads queries  keys  width value_width
SHAPES = {
    "whole blocks":        Problem(1, 2, 2,   64,    64,    8,   8),
    "parts of blocks":     Problem(2, 2, 2,   50,    39,    8,   5),
    "shared key heads":    Problem(2, 4, 2,   40,    56,    8,   8),
    "more queries":        Problem(1, 2, 1,   70,    20,    8,   8),
}  # fmt: skip

LONG = {
    "one layer of a GPT-2":      Problem(8, 12, 12, 1024, 1024, 64, 64),
    "Llama 3 8B":                Problem(1, 32, 8, 8192, 8192, 128, 128),
    "16K":                       Problem(1, 4, 4, 16384, 16384, 64, 64),
    "32K":                       Problem(1, 4, 4, 32768, 32768, 64, 64),
}  # fmt: skip
