"""FSDP and `fully_shard` on PyTorch's base of such tests, with its models."""

from __future__ import annotations

import copy
import os
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import (
    CPUOffload,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.tensor import DTensor
from torch.testing._internal.common_utils import instantiate_parametrized_tests, parametrize

from torch_pjrt_spmd.testing.distributed_suite.redirect import DEVICE, load

_theirs: Any = load("torch.testing._internal.common_fsdp")
_SIZE = int(os.environ["WORLD_SIZE"])
_theirs.DEVICE_TYPE = _theirs.DISTRIBUTED_BACKEND = DEVICE
_theirs.DEVICE_COUNT = _SIZE

_MODELS = ("NestedWrappedModule", "AlwaysWrapNestedWrappedModule", "TransformerWithSharedParams")


class Tests(_theirs.FSDPTest):
    @classmethod
    def on_joining(cls) -> None:
        """Nothing: what is made here is made by the tests."""

    def _parity(self, model: str, **how: Any) -> None:
        self._test_fsdp_parity(
            getattr(_theirs, model),
            _theirs.FSDPInitMode.RECURSIVE,
            how.pop("device_init_mode", _theirs.DEVICEInitMode.DEVICE_BEFORE),
            **how,
        )

    @parametrize("model", _MODELS)
    @parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"])
    def test_parity_with_ddp(self, model: str, strategy: str) -> None:
        self._parity(model, sharding_strategy=ShardingStrategy[strategy])

    @parametrize("mode", ["DEVICE_AFTER", "DEVICE_NEVER"])
    def test_parity_where_it_moves_to_the_device(self, mode: str) -> None:
        offload = CPUOffload(offload_params=mode == "DEVICE_NEVER")
        mode = _theirs.DEVICEInitMode[mode]
        self._parity("NestedWrappedModule", device_init_mode=mode, cpu_offload=offload)

    @parametrize("strategy", ["SHARD_GRAD_OP", "NO_SHARD"])
    def test_parity_with_parameters_on_the_host(self, strategy: str) -> None:
        self._parity(
            "NestedWrappedModule",
            device_init_mode=_theirs.DEVICEInitMode.DEVICE_NEVER,
            cpu_offload=CPUOffload(offload_params=True),
            sharding_strategy=ShardingStrategy[strategy],
        )

    def test_parity_with_original_parameters(self) -> None:
        self._parity("NestedWrappedModule", use_orig_params=True)

    def test_parity_of_mixed_precision(self) -> None:
        precision = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
        self._parity("NestedWrappedModule", mixed_precision=precision, num_iters=1)

    def test_parity_of_uneven_gradients(self) -> None:
        self._parity("NonUniformReqGradNWM", use_orig_params=True)

    @parametrize("reshard", [True, False])
    @parametrize("n", [4, 5])
    def test_fully_shard_trains_as_one_process(self, reshard: bool, n: int) -> None:
        """PyTorch's `test_train_parity`: losses, gradients and parameters of an MLP; odd sizes too."""
        torch.manual_seed(42)
        model = torch.nn.Sequential(
            *(_theirs.MLP(n, device=torch.device(DEVICE)) for _ in range(3))
        )
        sharded = copy.deepcopy(model)
        for layer in sharded:
            fully_shard(layer, reshard_after_forward=reshard)
        fully_shard(sharded, reshard_after_forward=reshard)
        optimizers = [torch.optim.Adam(m.parameters(), lr=1e-2) for m in (model, sharded)]
        torch.manual_seed(self.rank)
        for _ in range(3):
            x = torch.randn(8, n)
            losses = [m(x).sum() for m in (model, sharded)]
            self.assertEqual(*losses)
            for loss in losses:
                loss.backward()
            for p in model.parameters():
                dist.all_reduce(p.grad, dist.ReduceOp.AVG)
            _theirs.check_sharded_parity(self, model, sharded)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        _theirs.check_sharded_parity(self, model, sharded)

    def test_fully_shard_of_mixed_precision(self) -> None:
        torch.manual_seed(1)
        model = _theirs.MLP(6, device=torch.device(DEVICE))
        fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
        y = model(torch.rand(4, 6))
        self.assertEqual(y.dtype, torch.bfloat16)
        y.sum().backward()
        self.assertTrue(all(p.grad.dtype == torch.float32 for p in model.parameters()))

    def test_fully_shard_saves_and_loads(self) -> None:
        torch.manual_seed(1)
        model = _theirs.MLP(6, device=torch.device(DEVICE))
        given = copy.deepcopy(model.state_dict())
        fully_shard(model)
        state = model.state_dict()
        for name, value in state.items():
            assert isinstance(value, DTensor)
            self.assertEqual(value.full_tensor(), given[name])
        for p in model.parameters():
            torch.nn.init.zeros_(p)
        model.load_state_dict({name: value.clone() for name, value in state.items()})

    def test_fully_shard_clips_gradients(self) -> None:
        torch.manual_seed(1)
        model = _theirs.MLP(6, device=torch.device(DEVICE))
        sharded = copy.deepcopy(model)
        fully_shard(sharded)
        x = torch.rand(4, 6)
        for m in (model, sharded):
            m(x).square().sum().backward()
        norms = [torch.nn.utils.clip_grad_norm_(m.parameters(), 0.1) for m in (model, sharded)]
        assert isinstance(norms[1], DTensor)
        self.assertEqual(norms[1].full_tensor(), norms[0])
        _theirs.check_sharded_parity(self, model, sharded)


instantiate_parametrized_tests(Tests)
