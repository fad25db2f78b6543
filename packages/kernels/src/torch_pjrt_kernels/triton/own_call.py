"""`triton_call`: a kernel in Triton on the device, with what other devices compute, heuristics and tuning."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch.library import wrap_triton

from torch_pjrt.errors import LoweringError
from torch_pjrt_kernels import table
from torch_pjrt_kernels.triton.call import capability, refused
from torch_pjrt_kernels.triton.configurations import described, entry_of, function_of, trying
from torch_pjrt_kernels.triton.operators import set_fallback
from torch_pjrt_kernels.tuning.timing import least_s


def triton_call(kernel: Any, *, fallback: Callable[..., Any] | None = None) -> TritonCall:
    """A kernel of `@triton.jit`, also with `@triton.autotune` and `@triton.heuristics`, for the device.

    fallback   what devices compute that are none of NVIDIA's cards: a function of JAX's, which is called with
               the kernel's arguments by name, and gives the new content of each array that the kernel writes,
               in the kernel's order. It stands for the kernel wherever that is called. None: an error there.

    It is called as in Triton, outside of a `triton_op` or in one: `triton_call(kernel)[grid](x, y)`. Raises
    `LoweringError` for what is no kernel.

        def doubled(x_ptr, **rest):
            return x_ptr * 2

        triton_call(double_kernel, fallback=doubled)[(triton.cdiv(n, 64),)](x, out, n, BLOCK=64)
    """
    return TritonCall(kernel, fallback)


class TritonCall:
    """A kernel that is launched by `call[grid](...)`."""

    def __init__(self, kernel: Any, fallback: Callable[..., Any] | None) -> None:
        triton = import_module("triton")
        if not isinstance(function_of(kernel), triton.JITFunction):
            raise LoweringError(
                "Only kernels of `@triton.jit` run on `pjrt`, autotuned or not.",
                saw=type(kernel).__name__,
            )
        self.kernel = kernel
        if fallback is not None:
            set_fallback(function_of(kernel), fallback)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        """A function of the kernel's arguments. The grid is a tuple, or a function of these by name."""

        def launch(*arguments: Any, **named: Any) -> None:
            kernel, given = self._with_heuristics(arguments, named)
            wrap_triton(kernel)[grid](**given)

        return launch

    def tune(self, grid: Any, *arguments: Any, repetitions: int = 3, **named: Any) -> Any:
        """Time the configurations of an autotuned kernel on the card at hand: the fastest, which is kept.

        Calls that are like it have that one from then on, in other processes too; programs that are compiled
        already stay as they are. What is written are copies of the arguments. Raises `LoweringError` where
        there is no card, and for a kernel without configurations.
        """
        if capability() is None:
            raise refused()
        kernel, given = self._with_heuristics(arguments, named)
        configurations = getattr(kernel, "configs", None)
        if not configurations:
            raise LoweringError(
                f"The kernel `{function_of(kernel).__name__}` has no configurations."
            )

        def step(number: int) -> Callable[[], Any]:
            def run() -> Any:
                copies = {
                    name: x.clone() if isinstance(x, torch.Tensor) else x
                    for name, x in given.items()
                }
                with trying(number):
                    wrap_triton(kernel)[grid](**copies)
                return copies

            return run

        steps = {str(i): step(i) for i in range(len(configurations))}
        took = least_s(steps, repetitions)
        best = configurations[int(min(took, key=lambda i: took[i]))]
        table.keep({entry_of(kernel, given): described(best)})
        return best

    def _with_heuristics(
        self, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """The kernel without heuristics around it, and its arguments by name with what these say."""
        given = {**dict(zip(function_of(self.kernel).arg_names, arguments, strict=False)), **named}
        kernel = self.kernel
        while hasattr(kernel, "values") and hasattr(kernel, "fn"):
            for name, value in kernel.values.items():
                given[name] = value({**given})
            kernel = kernel.fn
        return kernel, given
