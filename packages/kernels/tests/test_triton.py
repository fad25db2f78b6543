"""Without Triton a kernel is refused with what to do instead; a rule for the operator around it is that."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from torch_pjrt.errors import LoweringError
from torch_pjrt.extend import lowers
from torch_pjrt_kernels.triton import call as call_module
from torch_pjrt_kernels.triton import operators


@pytest.mark.parametrize("way", ["mutation", "functional"])
def test_wrapped_kernel_is_refused_and_the_hint_names_the_way_out(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (call_module, operators):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    x = torch.ones(4, device="pjrt")
    module: Any = importlib.import_module("torch._higher_order_ops.triton_kernel_wrap")
    call: dict[str, Any] = {
        "kernel_idx": 0, "constant_args_idx": 0, "grid": [(1,)],
        "tma_descriptor_metadata": {}, "kwargs": {"x": x},
    }  # fmt: skip
    if way == "functional":
        call["tensors_to_clone"] = ["x"]

    with pytest.raises(
        LoweringError, match=r"Triton cannot run(?s:.*)without the package(?s:.*)pallas_op"
    ):
        getattr(module, f"triton_kernel_wrapper_{way}")(**call)


def test_operator_with_a_rule_runs_that_and_not_its_body() -> None:
    @torch.library.custom_op("triton_test::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("a kernel is launched here")

    doubled.register_fake(torch.empty_like)
    lowers(torch.ops.triton_test.doubled.default, fingerprint="1")(lambda x: x * 2)
    x = torch.arange(4.0, device="pjrt")

    assert doubled(x).tolist() == [0, 2, 4, 6]
    assert torch.compile(lambda x: doubled(x) + 1, fullgraph=True)(x).tolist() == [1, 3, 5, 7]
