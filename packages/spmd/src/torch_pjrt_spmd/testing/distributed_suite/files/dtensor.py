"""DTensor on PyTorch's base of such tests: placements, operators by all shardings, tensor parallel."""

from __future__ import annotations

import copy
import os
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
    ones,
    rand,
    zeros,
)
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.testing._internal.common_utils import instantiate_parametrized_tests, parametrize

from torch_pjrt_spmd.testing.distributed_suite.redirect import DEVICE, load

_theirs: Any = load("torch.testing._internal.distributed._tensor.common_dtensor")
_SIZE = int(os.environ["WORLD_SIZE"])
_theirs.DEVICE_TYPE = DEVICE
_theirs.DEVICE_COUNT = _theirs.NUM_DEVICES = _SIZE
_theirs.PG_BACKEND = DEVICE

F = torch.nn.functional

# What an operator is called with: shapes of float tensors, which are sharded in all ways that divide evenly.
_OPERATORS: dict[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
    "add": (torch.add, ((4, 8), (4, 8))),
    "add_broadcast": (torch.add, ((4, 8), (8,))),
    "addmm": (torch.addmm, ((8,), (4, 6), (6, 8))),
    "mm": (torch.mm, ((4, 6), (6, 8))),
    "bmm": (torch.bmm, ((2, 4, 6), (2, 6, 8))),
    "matmul": (torch.matmul, ((2, 4, 6), (6, 8))),
    "linear": (F.linear, ((2, 4, 6), (8, 6), (8,))),
    "mul": (torch.mul, ((4, 8), (4, 8))),
    "sum": (torch.sum, ((4, 8),)),
    "sum_dim": (lambda x: x.sum(1), ((4, 8),)),
    "mean": (lambda x: x.mean(0, keepdim=True), ((4, 8),)),
    "amax": (lambda x: x.amax(1), ((4, 8),)),
    "norm": (torch.linalg.vector_norm, ((4, 8),)),
    "var": (lambda x: x.var(1), ((4, 8),)),
    "cumsum": (lambda x: x.cumsum(1), ((4, 8),)),
    "softmax": (lambda x: x.softmax(-1), ((4, 8),)),
    "log_softmax": (lambda x: F.log_softmax(x, 0), ((4, 8),)),
    "gelu": (F.gelu, ((4, 8),)),
    "relu": (F.relu, ((4, 8),)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (8,), w, b), ((4, 8), (8,), (8,))),
    "transpose": (lambda x: x.t(), ((4, 8),)),
    "view": (lambda x: x.view(4, 2, 4), ((4, 8),)),
    "cat": (lambda x, y: torch.cat([x, y], 1), ((4, 8), (4, 8))),
    "stack": (lambda x, y: torch.stack([x, y]), ((4, 8), (4, 8))),
    "split": (lambda x: x.split(4, 1)[1], ((4, 8),)),
    "slice": (lambda x: x[:, 2:6], ((4, 8),)),
    "where": (lambda x, y: torch.where(x > y, x, y), ((4, 8), (4, 8))),
    "masked_fill": (lambda x: x.masked_fill(x > 0.5, 0.0), ((4, 8),)),
    "clone": (lambda x: x.clone(), ((4, 8),)),
    "to": (lambda x: x.to(torch.bfloat16), ((4, 8),)),
    "topk": (lambda x: x.topk(2, 1).values, ((4, 8),)),
    "attention": (F.scaled_dot_product_attention, ((2, 4, 8, 4),) * 3),
    "mse_loss": (F.mse_loss, ((4, 8), (4, 8))),
}
_PLACEMENTS = {"shard0": Shard(0), "shard1": Shard(1), "replicate": Replicate()}


class Tests(_theirs.DTensorTestBase):
    @classmethod
    def on_joining(cls) -> None:
        """Nothing: what is made here is made by the tests."""

    @parametrize("placement", _PLACEMENTS)
    @parametrize("shape", [(4, 6), (5, 3), (1, 7)])
    def test_distribute(self, placement: str, shape: tuple[int, int]) -> None:
        mesh = self.build_device_mesh()
        whole = torch.arange(float(shape[0] * shape[1])).reshape(shape)
        x = distribute_tensor(whole, mesh, [_PLACEMENTS[placement]])
        self.assertEqual(x.device.type, DEVICE)
        self.assertEqual(x.full_tensor(), whole)
        dim = getattr(_PLACEMENTS[placement], "dim", None)
        parts = [whole] * _SIZE if dim is None else whole.chunk(_SIZE, dim)
        if self.rank < len(parts):
            self.assertEqual(x.to_local(), parts[self.rank])

    def test_redistribute(self) -> None:
        mesh = self.build_device_mesh()
        whole = torch.arange(35.0).reshape(5, 7)
        for a, b in product(_PLACEMENTS.values(), repeat=2):
            x: Any = distribute_tensor(whole, mesh, [a]).requires_grad_()
            y = x.redistribute(mesh, [b])
            self.assertEqual(y.placements, (b,))
            self.assertEqual(y.full_tensor(), whole)
            y.sum().backward()
            self.assertEqual(x.grad.full_tensor(), torch.ones(5, 7))

    def test_partial(self) -> None:
        mesh = self.build_device_mesh()
        local = torch.full((4, 6), float(self.rank + 1))
        total = torch.full((4, 6), _SIZE * (_SIZE + 1) / 2)
        for to in (Replicate(), Shard(0), Shard(1)):
            x = DTensor.from_local(local, mesh, [Partial()]).redistribute(mesh, [to])
            self.assertEqual(x.full_tensor(), total)
        for name, expected in (("avg", (_SIZE + 1) / 2), ("max", _SIZE), ("min", 1)):
            x = DTensor.from_local(local, mesh, [Partial(name)])
            self.assertEqual(x.full_tensor(), torch.full((4, 6), float(expected)))

    @parametrize("name", _OPERATORS)
    def test_op(self, name: str) -> None:
        """By all shardings of its tensors, as PyTorch's tests of operators do."""
        function, shapes = _OPERATORS[name]
        self._test_op(self.build_device_mesh(), function, *(torch.rand(s) for s in shapes))

    @parametrize("name", [n for n in _OPERATORS if n not in ("amax", "clone", "to", "topk")])
    def test_op_backward(self, name: str) -> None:
        function, shapes = _OPERATORS[name]
        mesh = self.build_device_mesh()
        inputs = [torch.rand(s, requires_grad=True) for s in shapes]
        function(*inputs).square().sum().backward()
        for args, _ in _theirs.DTensorConverter(mesh, tuple(inputs), {}):
            leaves = [x.detach().requires_grad_() for x in args]
            function(*leaves).square().sum().backward()
            for given, leaf in zip(inputs, leaves, strict=True):
                assert leaf.grad is not None
                self.assertEqual(leaf.grad.full_tensor(), given.grad)

    def test_factories(self) -> None:
        mesh = self.build_device_mesh()
        for make, expected in ((ones, torch.ones(5, 3)), (zeros, torch.zeros(5, 3))):
            for placement in (Shard(0), Replicate()):
                made = make(5, 3, device_mesh=mesh, placements=[placement])
                self.assertEqual(made.full_tensor(), expected)

    def test_random_numbers(self) -> None:
        """What PyTorch's `test_random_ops` asks for: replicas are alike, shards differ, seeds repeat them.

        That a shard's numbers are a part of the whole's, PyTorch does not promise.
        """
        mesh = self.build_device_mesh()

        def made(placement: Any) -> torch.Tensor:
            own = rand(4 * _SIZE, 6 * _SIZE, device_mesh=mesh, placements=[placement]).to_local()
            return DTensor.from_local(own, mesh, [Shard(0)]).full_tensor()

        for placement, is_whole in ((Replicate(), True), (Shard(0), False), (Shard(1), False)):
            torch.manual_seed(3)
            first, second = made(placement), made(placement)
            torch.manual_seed(3)
            self.assertEqual(made(placement), first)
            self.assertNotEqual(first, second)
            for x in first.chunk(_SIZE)[1:]:
                self.assertEqual(torch.equal(x, first.chunk(_SIZE)[0]), is_whole)

    def test_mesh_of_two_dims(self) -> None:
        mesh = init_device_mesh(DEVICE, (_SIZE, 1), mesh_dim_names=("dp", "tp"))
        whole = torch.rand(4, 6)
        for a, b in product(_PLACEMENTS.values(), repeat=2):
            self.assertEqual(distribute_tensor(whole, mesh, [a, b]).full_tensor(), whole)
        part = distribute_tensor(whole, mesh["dp"], [Shard(0)])
        self.assertEqual(part.full_tensor(), whole)

    def test_counted_communication(self) -> None:
        mesh = self.build_device_mesh()
        x = distribute_tensor(torch.rand(4, 4), mesh, [Shard(0)])
        with CommDebugMode() as counted:
            x.redistribute(mesh, [Replicate()])
        self.assertEqual(counted.get_total_counts(), 1)

    def test_distribute_module(self) -> None:
        mesh = self.build_device_mesh()
        module = _theirs.MLPModule(DEVICE)
        given = copy.deepcopy(module.state_dict())
        for name, p in distribute_module(module, mesh).named_parameters():
            assert isinstance(p, DTensor)
            self.assertEqual(p.full_tensor(), given[name])

    @parametrize("is_seq_parallel", [False, True])
    def test_mlp_training(self, is_seq_parallel: bool) -> None:
        """PyTorch's `test_mlp_training` of tensor parallel: the loss, the gradients and a step."""
        mesh = self.build_device_mesh()
        model = _theirs.MLPModule(DEVICE)
        parallel = copy.deepcopy(model)
        rows = Shard(0) if is_seq_parallel else Replicate()
        parallelize_module(
            parallel,
            mesh,
            {
                "net1": ColwiseParallel(input_layouts=rows),
                "net2": RowwiseParallel(output_layouts=rows),
            },
        )
        whole = torch.rand(4 * _SIZE, 10)
        given = whole.chunk(_SIZE)[self.rank] if is_seq_parallel else whole
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.25) for m in (model, parallel)]
        for _ in range(2):
            y, ours = model(whole), parallel(given)
            self.assertEqual(ours, y.chunk(_SIZE)[self.rank] if is_seq_parallel else y)
            y.sum().backward()
            ours.sum().backward()
            for p, q in zip(model.parameters(), parallel.parameters(), strict=True):
                assert isinstance(q.grad, DTensor)
                self.assertEqual(q.grad.full_tensor(), p.grad)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        for p, q in zip(model.parameters(), parallel.parameters(), strict=True):
            assert isinstance(q, DTensor)
            self.assertEqual(q.full_tensor(), p)

    @parametrize("is_seq_parallel", [False, True])
    def test_transformer_training(self, is_seq_parallel: bool) -> None:
        """PyTorch's model of tensor parallel tests, parallelized by its own plan.

        In float64: gradients reach 450, and differ by roundings of 3e-4 in float32, by gloo on the CPU too.
        """
        mesh = self.build_device_mesh()
        args = _theirs.ModelArgs(dropout_p=0.0, n_layers=1)
        torch.manual_seed(5)
        model = _theirs.Transformer(args).to(DEVICE, torch.float64)
        parallel = _theirs.Transformer.parallelize(copy.deepcopy(model), mesh, is_seq_parallel)
        tokens = torch.randint(args.vocab_size, (4, args.max_seq_len))
        y, ours = model(tokens), parallel(tokens)
        self.assertEqual(ours, y)
        y.sum().backward()
        ours.sum().backward()
        for p, q in zip(model.parameters(), parallel.parameters(), strict=True):
            grad = q.grad
            whole = grad.full_tensor() if isinstance(grad, DTensor) else grad
            self.assertEqual(whole, p.grad, atol=1e-12, rtol=1e-12)

    def test_zz_with_comms(self) -> None:
        """PyTorch's decorator makes a process group of two backends for a test, and ends it."""
        dist.destroy_process_group()
        self.file_name += ".of_with_comms"

        @_theirs.with_comms(backend=f"cpu:gloo,{DEVICE}:{DEVICE}")
        def inner(self: Any) -> None:
            mesh = self.build_device_mesh()
            x = distribute_tensor(torch.rand(4, 4), mesh, [Shard(0)])
            total: Any = x.sum()
            self.assertEqual(total.full_tensor(), x.full_tensor().sum())
            on_host = torch.ones(3, device="cpu")
            dist.all_reduce(on_host)
            self.assertEqual(on_host, torch.full((3,), float(_SIZE), device="cpu"))

        inner(self)


instantiate_parametrized_tests(Tests)
