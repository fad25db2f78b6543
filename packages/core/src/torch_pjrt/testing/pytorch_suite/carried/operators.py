"""What operators of PyTorch's `op_db` promise and `conformance` does not ask.

Inputs with gaps, forms as methods, forward derivatives, and PyTorch's references in Python (`torch._refs`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any
from unittest import mock

import torch
import torch.autograd.forward_ad as forward_ad
from torch.testing._internal.common_device_type import OpDTypes, instantiate_device_type_tests, ops
from torch.testing._internal.common_methods_invocations import op_db, python_ref_db
from torch.testing._internal.common_utils import TestCase, run_tests
from torch.utils._pytree import tree_leaves, tree_map

from torch_pjrt.testing.conformance.compare import difference
from torch_pjrt.testing.conformance.copies import in_double
from torch_pjrt.testing.pytorch_suite.there_and_here import eighths, moved, not_contiguous, seeded

MOST = 12  # samples of an operator
# What they give was never written, or is drawn by chance in a way that strides decide.
WITHOUT_VALUES = frozenset(
    ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
     "resize_", "resize_as_", "as_strided", "as_strided_copy", "as_strided_scatter",
     "as_strided.partial_views")
)  # fmt: skip
RANDOM = ("rand", "dropout", "bernoulli", "normal", "exponential", "cauchy", "geometric")


def samples(info: Any, dtype: torch.dtype, device: str, requires_grad: bool = False) -> Any:
    torch.manual_seed(0)
    return islice(info.sample_inputs(device, dtype, requires_grad=requires_grad), MOST)


class TestOperators(TestCase):
    @ops(
        [i for i in op_db if i.name not in WITHOUT_VALUES],
        allowed_dtypes=(torch.float32, torch.int64),
    )
    def test_gaps_in_memory(self, device, dtype, op):
        for sample in samples(op, dtype, device):
            args = (sample.input, *sample.args)
            plain = seeded(op, *args, **sample.kwargs)
            gapped_args, gapped_kwargs = not_contiguous((args, sample.kwargs))
            gapped = seeded(op, *gapped_args, **gapped_kwargs)
            self.assertEqual(gapped, plain)

    @ops(
        [i for i in op_db if i.name not in WITHOUT_VALUES],
        allowed_dtypes=(torch.float32, torch.int64),
    )
    def test_as_a_method(self, device, dtype, op):
        forms = [f for f in (op.get_method(), op.get_operator()) if f is not None]
        if not forms:
            self.skipTest("it has no form but the function")
        for sample in samples(op, dtype, device):
            if not isinstance(sample.input, torch.Tensor):
                continue
            expected = seeded(op, sample.input, *sample.args, **sample.kwargs)
            for form in forms:
                if form is op.get_operator() and sample.kwargs:
                    continue
                self.assertEqual(
                    seeded(form, sample.input, *sample.args, **sample.kwargs),
                    expected,
                )

    @ops([i for i in op_db if i.supports_forward_ad], allowed_dtypes=(torch.float64,))
    def test_forward_derivatives(self, device, dtype, op):
        for sample in samples(op, dtype, "cpu", requires_grad=True):
            if not isinstance(sample.input, torch.Tensor):
                continue
            theirs = _pushed_forward(op, sample, "cpu")
            ours = _pushed_forward(op, sample, device)
            try:
                self.assertEqual(ours, theirs, exact_device=False)
            except AssertionError:
                if not _draws(op, sample, theirs):
                    raise
                looks = [tree_map(_look, x) for x in (ours, theirs)]
                self.assertEqual(*looks)

    @ops(python_ref_db, dtypes=OpDTypes.supported, allowed_dtypes=(torch.float32, torch.int64))
    def test_references(self, device, dtype, op):
        for sample in samples(op, dtype, "cpu"):
            args, kwargs = _brought(op, sample, device)
            theirs = seeded(op, sample.input, *sample.args, **sample.kwargs)
            ours = seeded(op, *args, **kwargs)
            if op.name.removeprefix("_refs.") in WITHOUT_VALUES or _is_random(op):
                ours, theirs = (tree_map(_look, x) for x in (ours, theirs))
            self.assertAsOnCPU(ours, theirs, lambda: _in_double(op, sample))  # noqa: B023  called at once

    def assertAsOnCPU(self, ours: Any, theirs: Any, exact: Callable[[], Any]) -> None:
        """Equal, or as near as the CPU's to the exact values: the rule of `conformance`."""
        try:
            self.assertEqual(ours, theirs, exact_device=False)
        except AssertionError:
            if difference(tree_map(_on_cpu, ours), theirs, exact) is not None:
                raise


def _on_cpu(x: Any) -> Any:
    return x.cpu() if isinstance(x, torch.Tensor) else x


def _in_double(op: Any, sample: Any) -> Any:
    """What the CPU gives for wider inputs; integers become the default dtype."""
    args, kwargs = in_double(((sample.input, *sample.args), sample.kwargs))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return op(*args, **kwargs)
    finally:
        torch.set_default_dtype(before)


def _brought(op: Any, sample: Any, device: str) -> Any:
    args, kwargs = moved(((sample.input, *sample.args), sample.kwargs), device)
    # It wants its second argument on the CPU, wherever the first is.
    return ((args[0], *sample.args) if "tensor_split" in op.name else args), kwargs


def _pushed_forward(op: Any, sample: Any, device: str) -> list[Any]:
    args, kwargs = _brought(op, sample, device)
    with forward_ad.dual_level():

        def dual(x: Any) -> Any:
            if isinstance(x, torch.Tensor) and x.requires_grad:
                return forward_ad.make_dual(x.detach(), eighths(x))
            return x

        out = seeded(op.gradcheck_wrapper, op, *tree_map(dual, args), **tree_map(dual, kwargs))
        leaves = tree_leaves(sample.output_process_fn_grad(out))
        return [forward_ad.unpack_dual(x).tangent for x in leaves if isinstance(x, torch.Tensor)]


def _draws(op: Any, sample: Any, drawn: list[Any]) -> bool:
    """Whether the CPU gives something else after another seed: what is drawn here is drawn otherwise."""
    seed_it = torch.manual_seed
    for seed in range(1, 20):  # few elements are often the same by chance
        with mock.patch("torch.manual_seed", lambda _, seed=seed: seed_it(seed)):
            again = _pushed_forward(op, sample, "cpu")
        if difference(again, drawn) is not None:
            return True
    return False


def _is_random(op: Any) -> bool:
    name = op.name.removeprefix("_refs.")
    return any(word in name for word in RANDOM)


def _look(x: Any) -> Any:
    return (x.shape, x.dtype) if isinstance(x, torch.Tensor) else x


instantiate_device_type_tests(TestOperators, globals())

if __name__ == "__main__":
    run_tests()
