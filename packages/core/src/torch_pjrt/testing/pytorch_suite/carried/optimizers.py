"""Every optimizer of PyTorch's `optim_db` takes on the device the steps that it takes on the CPU."""

from __future__ import annotations

import copy
import io
from typing import Any

import torch
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_optimizers import OptimizerErrorEnum, optim_db, optims
from torch.testing._internal.common_utils import TestCase, run_tests

STEPS = 4
DTYPES = (torch.float32, torch.float64)
DENSE = [info for info in optim_db if not info.only_supports_sparse_grads]
# A search along a line takes another path after one rounding.
BY_SEARCH = (torch.optim.LBFGS,)


class Problem:
    """Two matrices that are to become others."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        def values(n: int, m: int) -> torch.Tensor:
            return (
                (torch.arange(n * m, dtype=torch.float64).reshape(n, m).sin()).to(dtype).to(device)
            )

        self.params = [torch.nn.Parameter(values(3, 4)), torch.nn.Parameter(values(4, 2))]
        self.goals = [values(4, 3).T.contiguous() * 2, values(4, 2) - 1]

    def loss(self) -> torch.Tensor:
        return sum(((p - g) ** 2).mean() for p, g in zip(self.params, self.goals, strict=True))  # type: ignore[return-value]

    def step(self, optimizer: Any, closure: bool) -> None:
        def evaluate() -> torch.Tensor:
            optimizer.zero_grad()
            loss = self.loss()
            loss.backward()
            return loss

        if closure:
            optimizer.step(evaluate)
        else:
            evaluate()
            optimizer.step()


def kwargs_of(info: Any, device: str, dtype: torch.dtype) -> list[dict[str, Any]]:
    """The arguments of each input of the database, tensors among them on `device`."""
    given = [dict(i.kwargs) for i in info.optim_inputs_func(device=device)]
    # `fused` and `capturable` name devices of PyTorch's own; `implementations` tries what they say.
    return [
        {k: v for k, v in g.items() if k not in ("fused", "capturable", "foreach")} for g in given
    ]


class TestOptimizers(TestCase):
    def _trained(self, info: Any, device: str, dtype: torch.dtype, kwargs: dict[str, Any]) -> Any:
        problem = Problem(device, dtype)
        kwargs = {
            k: v.to(device) if isinstance(v, torch.Tensor) and v.dim() else v
            for k, v in kwargs.items()
        }
        optimizer = info.optim_cls(problem.params, **kwargs)
        for _ in range(STEPS):
            problem.step(optimizer, info.step_requires_closure)
        return problem.params, optimizer.state_dict()["state"]

    @optims(DENSE, dtypes=DTYPES)
    def test_steps(self, device, dtype, optim_info):
        if optim_info.optim_cls in BY_SEARCH and dtype == torch.float32:
            self.skipTest("its search takes another path after one rounding: compared in float64")
        for kwargs in kwargs_of(optim_info, "cpu", dtype):
            theirs = self._trained(optim_info, "cpu", dtype, copy.deepcopy(kwargs))
            ours = self._trained(optim_info, device, dtype, copy.deepcopy(kwargs))
            self.assertEqual(ours, theirs, exact_device=False, msg=lambda m, k=kwargs: f"{m}\n{k}")

    @optims([o for o in DENSE if "foreach" in o.supported_impls], dtypes=DTYPES)
    def test_with_foreach(self, device, dtype, optim_info):
        for kwargs in kwargs_of(optim_info, "cpu", dtype):
            plain = self._trained(
                optim_info, device, dtype, {**copy.deepcopy(kwargs), "foreach": False}
            )
            lists = self._trained(
                optim_info, device, dtype, {**copy.deepcopy(kwargs), "foreach": True}
            )
            self.assertEqual(lists, plain)

    @optims([o for o in DENSE if "fused" in o.supported_impls], dtypes=DTYPES)
    def test_fused(self, device, dtype, optim_info):
        for kwargs in kwargs_of(optim_info, "cpu", dtype):
            if any(isinstance(v, torch.Tensor) for v in kwargs.values()) or kwargs.get(
                "differentiable"
            ):
                continue  # not fused, on any device
            plain = self._trained(optim_info, device, dtype, {**kwargs, "foreach": False})
            fused = self._trained(optim_info, device, dtype, {**kwargs, "fused": True})
            self.assertEqual(fused, plain)

    @optims(DENSE, dtypes=(torch.float64,))
    def test_saved_and_loaded(self, device, dtype, optim_info):
        for kwargs in kwargs_of(optim_info, "cpu", dtype):
            problem = Problem(device, dtype)
            optimizer = optim_info.optim_cls(problem.params, **copy.deepcopy(kwargs))
            problem.step(optimizer, optim_info.step_requires_closure)
            file = io.BytesIO()
            torch.save((problem.params, optimizer.state_dict()), file)
            problem.step(optimizer, optim_info.step_requires_closure)
            file.seek(0)
            params, state = torch.load(file, weights_only=False)
            again = Problem(device, dtype)
            again.params = params
            resumed = optim_info.optim_cls(again.params, **copy.deepcopy(kwargs))
            resumed.load_state_dict(state)
            again.step(resumed, optim_info.step_requires_closure)
            self.assertEqual(again.params, problem.params)

    @optims([o for o in optim_db if o.optim_error_inputs_func], dtypes=(torch.float32,))
    def test_errors(self, device, dtype, optim_info):
        for wrong in optim_info.optim_error_inputs_func(device=device, dtype=dtype):
            given = wrong.optimizer_error_input
            with self.assertRaisesRegex(wrong.error_type, wrong.error_regex):  # pyright: ignore[reportOptionalContextManager]
                optimizer = optim_info.optim_cls(given.params, **given.kwargs)
                if wrong.error_on == OptimizerErrorEnum.STEP_ERROR:
                    optimizer.step()


instantiate_device_type_tests(TestOptimizers, globals())

if __name__ == "__main__":
    run_tests()
