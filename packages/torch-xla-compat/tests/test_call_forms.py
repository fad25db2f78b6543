"""Functions take what torch_xla's take, in its order and by its names, and give what it gives."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.core.functions as xf
import torch_xla.core.xla_builder as xb
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch_pjrt.errors import UnsupportedError
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel
from torch_xla.distributed.zero_redundancy_optimizer import ZeroRedundancyOptimizer
from torch_xla.experimental import custom_kernel, gradient_accumulation, scan_layers
from torch_xla.experimental.assume_pure import assume_pure
from torch_xla.experimental.distributed_checkpoint import CheckpointManager
from torch_xla.experimental.fori_loop import fori_loop
from torch_xla.experimental.scan import scan
from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel
from torch_xla.stablehlo import exported_program_to_stablehlo
from torch_xla.test import test_utils


def device() -> torch.device:
    return torch_xla.device()


def x() -> torch.Tensor:
    return torch.arange(4.0, device=device())


def ints() -> torch.Tensor:
    return torch.arange(4, device=device())


def of_groups() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    lhs, rhs = torch.randn(6, 4, generator=generator), torch.randn(3, 4, 5, generator=generator)
    return lhs.to("xla"), rhs.to("xla"), torch.tensor([2, 0, 4], dtype=torch.int32, device="xla")


class Swapped(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return b, a


#   a call as torch_xla's documentation and its users write it       what it gives, as lists
FORMS: dict[str, tuple[Callable[[], Any], Any]] = {
    "all_reduce by position": (
        lambda: xm.all_reduce(xm.REDUCE_SUM, x(), 0.5, None, False),
        [0.0, 0.5, 1.0, 1.5],
    ),
    "all_reduce of a list": (lambda: xm.all_reduce("sum", [x()], scale=2.0)[0], [0, 2, 4, 6]),
    "all_reduce of integers": (lambda: xm.all_reduce(xm.REDUCE_SUM, ints(), 0.5), [0, 0, 1, 1]),
    "all_gather by position": (lambda: xm.all_gather(x(), 0, None, None, True), [0, 1, 2, 3]),
    "reduce_scatter by position": (
        lambda: xm.reduce_scatter(xm.REDUCE_SUM, x(), 2.0, 0, 1, None, None, True, None, None),
        [0, 2, 4, 6],
    ),
    "reduce_scatter of integers": (
        lambda: xm.reduce_scatter(xm.REDUCE_SUM, ints(), 1.0, scatter_dim=0, shard_count=1),
        [0, 1, 2, 3],
    ),
    "all_to_all": (lambda: xm.all_to_all(x(), 0, 0, 1), [0, 1, 2, 3]),
    "collective_permute": (lambda: xm.collective_permute(x(), [[0, 0]]), [0, 1, 2, 3]),
    "xf.all_reduce by position": (
        lambda: xf.all_reduce(xm.REDUCE_SUM, x(), 0.5, None, None, True),
        [0.0, 0.5, 1.0, 1.5],
    ),
    "get_xla_supported_devices of a kind": (
        lambda: xm.get_xla_supported_devices("CPU", 1),
        ["pjrt:0"],
    ),
    "get_xla_supported_devices": (lambda: xm.get_xla_supported_devices(max_devices=1), ["pjrt:0"]),
    "get_xla_supported_devices by position": (lambda: xm.get_xla_supported_devices(1), ["pjrt:0"]),
    "xla_real_devices": (
        lambda: [d.split(":")[0] for d in xm.xla_real_devices(devices=[device()])],
        ["CPU"],
    ),
    "send_cpu_data_to_device": (
        lambda: xm.send_cpu_data_to_device([torch.ones(2)], device(), input_sharding=None)[0],
        [1.0, 1.0],
    ),
    "mesh_reduce": (lambda: xm.mesh_reduce("tag", torch.ones(2), lambda all: all[0]), [1.0, 1.0]),
    "rendezvous": (lambda: xm.rendezvous("tag", b"payload", [0]), [b"payload"]),
    "call_jax": (lambda: xb.call_jax(lambda a, b: a + b, (x(), x())), [0, 2, 4, 6]),
    "call_jax with a name": (
        lambda: xb.call_jax(lambda a, b: a * b, (x(),), {"b": 2.0}, "twice", None),
        [0, 2, 4, 6],
    ),
    "JaxCallable": (lambda: xb.JaxCallable(jax_func=lambda a: a + 1)(x()), [1, 2, 3, 4]),
    "fori_loop": (lambda: fori_loop(0, 3, lambda v: v + 1, x())[1], [3, 4, 5, 6]),
    "fori_loop of tensors": (
        lambda: fori_loop(ints()[0], ints()[3], lambda v, w: (v + w, w), x(), x())[1:],
        [[0, 4, 8, 12], [0, 1, 2, 3]],
    ),
    "scan": (lambda: scan(lambda c, e: (c + e, c * e), x()[0], x()), [6, [0, 0, 2, 9]]),
    "scan without results": (lambda: scan(lambda c, e: (c + e, None), x()[0], x())[0], 6),
    "scan with some results": (
        lambda: scan(lambda c, e: (c + e, {"a": e, "b": None}), x()[0], x(), None, True)[1]["a"],
        [0, 1, 2, 3],
    ),
    "scan of a nest": (
        lambda: scan(lambda c, e: ((c[0] + e["w"],), e["w"] * 2), (x()[0],), {"w": x()}),
        [[6], [0, 2, 4, 6]],
    ),
    "scan_layers": (
        lambda: scan_layers.scan_layers([nn.Identity(), nn.Identity()], x(), is_layer_pure=True),
        [0, 1, 2, 3],
    ),
    "scan_layers of a tuple": (
        lambda: scan_layers.scan_layers([Swapped(), Swapped(), Swapped()], (x(), x() + 1)),
        [[1, 2, 3, 4], [0, 1, 2, 3]],
    ),
    "compile as a decorator": (lambda: torch_xla.compile(lambda a: a + 1)(x()), [1, 2, 3, 4]),
    "compile by keywords": (
        lambda: torch_xla.compile(
            lambda a: a + 1, full_graph=True, name="add", max_different_graphs=2
        )(x()),
        [1, 2, 3, 4],
    ),
    "assume_pure": (lambda: assume_pure(lambda a: a * 2)(x()), [0, 2, 4, 6]),
    "sync": (lambda: torch_xla.sync(wait=True, reset_scope=False), None),
    "mark_step": (lambda: xm.mark_step(wait=True), None),
    "wait_device_ops": (lambda: xm.wait_device_ops([str(device())]), None),
    "manual_seed": (lambda: torch_xla.manual_seed(0, device()), None),
    "set_rng_state": (lambda: xm.set_rng_state(3, device()), None),
    "set_replication": (lambda: xm.set_replication(device(), [device()]), None),
    "runtime_device_attributes": (
        lambda: xr.runtime_device_attributes(xm.xla_real_devices([device()])[0])["name"][:3],
        "CPU",
    ),
    "Mesh by names": (
        lambda: xs.Mesh(device_ids=[0], mesh_shape=(1,), axis_names=("a",)).axis_names,
        ("a",),
    ),
    "wrap_as_sharded_tensor": (
        lambda: xs.wrap_as_sharded_tensor(x(), mesh_shape=None, partition_spec=None),
        [0, 1, 2, 3],
    ),
    "mark_sharding by names": (
        lambda: xs.mark_sharding(t=x(), mesh=xs.Mesh([0], (1,)), partition_spec=(0,)),
        [0, 1, 2, 3],
    ),
    "MarkShardingFunction": (
        lambda: xs.MarkShardingFunction.apply(x(), xs.Mesh([0], (1,)), (0,)),
        [0, 1, 2, 3],
    ),
    "ParallelLoader by position": (
        lambda: list(pl.ParallelLoader([x().cpu()], [device()], 0, 1, 4, 2).per_device_loader("xla")),
        [[0, 1, 2, 3]],
    ),
    "MpDeviceLoader": (
        lambda: list(
            pl.MpDeviceLoader(
                [x().cpu()],
                device(),
                loader_prefetch_size=4,
                device_prefetch_size=2,
                host_to_device_transfer_threads=1,
            )
        ),
        [[0, 1, 2, 3]],
    ),
}  # fmt: skip


def as_lists(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return [as_lists(v) for v in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("form", FORMS)
def test_a_call_gives_what_torch_xlas_gives(form: str) -> None:
    call, wanted = FORMS[form]

    assert as_lists(call()) == as_lists(wanted)


@pytest.mark.parametrize("reduce", ["all_reduce", "reduce_scatter"])
def test_a_reduction_keeps_the_dtype(reduce: str) -> None:
    arguments = (0, 1) if reduce == "reduce_scatter" else ()
    for dtype in (torch.int32, torch.int64, torch.bfloat16, torch.float32):
        for scale in (1.0, 0.5):
            found = getattr(xm, reduce)(xm.REDUCE_SUM, x().to(dtype), scale, *arguments)
            assert found.dtype == dtype


@pytest.mark.parametrize("carried", [(), (torch.tensor(10),)], ids=["alone", "with a tensor"])
def test_gradients_accumulate_as_the_documentation_of_torch_xla_shows(
    carried: tuple[torch.Tensor, ...],
) -> None:
    model, data = nn.Linear(2, 1), torch.arange(12.0).view(3, 2, 2)
    on_cpu = nn.Linear(2, 1)
    on_cpu.load_state_dict(model.state_dict())
    wanted = sum(on_cpu(part).sum() / 3 for part in data)
    torch.as_tensor(wanted).backward()
    model.to("xla")

    def train_step(part: torch.Tensor, *others: torch.Tensor) -> Any:
        loss = model(part).sum()
        return (loss, others[0] + 10) if others else loss

    found = gradient_accumulation.gradient_accumulation(
        train_step, (data.to("xla"),), model, *(c.to("xla") for c in carried)
    )

    loss = found[0] if carried else found
    assert loss.item() == pytest.approx(torch.as_tensor(wanted).item(), rel=1e-5)
    assert not carried or found[1].item() == 40
    torch.testing.assert_close(model.weight.grad.cpu(), on_cpu.weight.grad)


def test_products_of_groups_are_those_of_each_group() -> None:
    lhs, rhs, sizes = of_groups()
    parts = zip(lhs.cpu().split([2, 0, 4]), rhs.cpu(), strict=True)
    wanted = torch.cat([rows @ matrix for rows, matrix in parts])
    columns = torch.stack([part.T @ part for part in lhs.cpu().split([2, 0, 4])])

    tiled = custom_kernel.gmm(lhs, rhs, sizes, (512, 512, 512))
    turned = custom_kernel.gmm(lhs, rhs.transpose(1, 2), sizes, None, None, True)
    of_columns = custom_kernel.tgmm(lhs.t(), lhs, sizes, (512, 512, 512))

    for found, right in ((tiled, wanted), (turned, wanted), (of_columns, columns)):
        torch.testing.assert_close(found.cpu(), right, atol=1e-5, rtol=1e-5)
    for refused in ("group_offset", "num_actual_groups"):
        with pytest.raises(UnsupportedError, match=refused):
            custom_kernel.tgmm(lhs.t(), lhs, sizes, **{refused: 1})  # type: ignore[arg-type]


def test_products_of_groups_have_the_gradients_of_their_own_function() -> None:
    gradients = []
    for product in (custom_kernel.GMM.apply, custom_kernel.gmm):
        lhs, rhs, sizes = of_groups()
        for operand in (lhs, rhs):
            operand.requires_grad_()
        product(lhs, rhs, sizes, (8, 8, 8)).square().sum().backward()
        gradients.append((lhs.grad.cpu(), rhs.grad.cpu()))

    torch.testing.assert_close(gradients[0], gradients[1])


def test_a_training_update_is_printed_by_position(capsys: pytest.CaptureFixture[str]) -> None:
    test_utils.print_training_update(device(), 3, x()[1], 2.0, 1.5, 1, None)

    assert "Epoch=1 Step=3 Loss=1.00000" in capsys.readouterr().out


#   of torch_xla, in this order: its releases and its documentation say so
PARAMETERS: dict[Callable[..., Any], str] = {
    XlaFullyShardedDataParallel.__init__: "module reshard_after_forward flatten_parameters "
    "execute_sharding_on_init optimization_barrier_in_forward optimization_barrier_in_backward "
    "sync_on_finalization disable_reshard_on_root compute_dtype buffer_dtype fp32_reduce_scatter "
    "sharding_groups sharding_rank sharding_world_size shard_param_on_dim_0 "
    "pin_layout_in_collective_ops reduce_scatter_bucket_size_mb coalesce_all_gather_ops "
    "auto_wrap_policy auto_wrapper_callable param_init_fn",
    ZeroRedundancyOptimizer.__init__: "params optimizer_class optimizer_dtype grad_clipping max_norm",
    CheckpointManager.__init__: "path save_interval max_to_keep max_pending_async num_of_threads "
    "process_group chkpt_on_preemption",
    custom_kernel.flash_attention: "q k v causal q_segment_ids kv_segment_ids sm_scale",
    custom_kernel.gmm: "lhs rhs group_sizes tiling group_offset transpose_rhs",
    xm.optimizer_step: "optimizer barrier optimizer_args groups pin_layout",
    xm.save: "data file_or_path master_only global_master",
    xm.add_step_closure: "closure args run_async",
    xs.mark_sharding: "t mesh partition_spec",
    xs.xla_distribute_tensor: "tensor device_mesh placements",
    torch_xla.compile: "f full_graph name max_different_graphs custom_compile_options",
    torch_xla.launch: "fn args start_method debug_single_process",
}


@pytest.mark.parametrize("function", PARAMETERS, ids=lambda f: f.__qualname__)
def test_arguments_may_be_given_by_position(function: Callable[..., Any]) -> None:
    wanted = PARAMETERS[function].split()
    by_position = [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.kind is p.POSITIONAL_OR_KEYWORD and p.name != "self"
    ]

    assert by_position[: len(wanted)] == wanted


def test_modules_of_a_spmd_model_may_be_wrapped_by_a_function() -> None:
    xs.set_global_mesh(xs.Mesh([0], (1,), ("fsdp",)))
    wrapped: list[nn.Module] = []

    def wrap(module: nn.Module, **options: Any) -> nn.Module:
        wrapped.append(module)
        return SpmdFullyShardedDataParallel(module, **options)

    def policy(module: nn.Module, recurse: bool, **_: Any) -> bool:
        return recurse or isinstance(module, nn.Linear)

    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    wanted = plain(torch.ones(2, 4))
    model = SpmdFullyShardedDataParallel(
        plain.to("xla"), auto_wrap_policy=policy, auto_wrapper_callable=wrap
    )

    assert len(wrapped) == 2
    torch.testing.assert_close(model(torch.ones(2, 4, device="xla")).cpu(), wanted)


def test_an_exported_program_is_called_and_written(tmp_path: Path) -> None:
    pytest.importorskip("torch_pjrt_quant")
    model = nn.Linear(2, 1)
    exported = torch.export.export(model, (torch.ones(3, 2),))

    program = exported_program_to_stablehlo(exported, None)
    program.save(tmp_path / "saved", None)
    torch_xla.save_torch_model_as_stablehlo(model, (torch.ones(3, 2),), tmp_path / "model")
    torch_xla.save_as_stablehlo(exported, tmp_path / "exported")

    assert "stablehlo" in program.get_stablehlo_text()
    torch.testing.assert_close(program(torch.ones(3, 2)).cpu(), model(torch.ones(3, 2)))
    assert (tmp_path / "model").is_dir() and (tmp_path / "exported").is_dir()
