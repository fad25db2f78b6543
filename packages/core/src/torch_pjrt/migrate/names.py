"""What each name of torch_xla becomes.

`Rename`: another name for the same thing, called or not. `Rewrite`: a call becomes another expression.
`Drop`: a statement that is not needed. `ByHand`: nothing does it alone; the reader is told what to do.
"""

from __future__ import annotations

from dataclasses import dataclass

_XM = "torch_xla.core.xla_model."
_XR = "torch_xla.runtime."
_XS = "torch_xla.distributed.spmd."
_PL = "torch_xla.distributed.parallel_loader."
_XMP = "torch_xla.distributed.xla_multiprocessing."
_FSDP = "torch_xla.distributed.fsdp."
_MET = "torch_xla.debug.metrics."
_XP = "torch_xla.debug.profiler."


@dataclass(frozen=True)
class Rename:
    """The same thing by another name. processes, hint: as of `Rewrite`."""

    to: str
    hint: str = ""
    processes: str = "any"


@dataclass(frozen=True)
class Rewrite:
    """A call becomes another expression.

    parameters  those of torch_xla's function, in order. unused: those of them that mean nothing here.
    to          the expression, see `calls.py`. The first word of each dotted name in `imports` is imported.
    processes   "one": right only where one process runs; "several": only where a group of processes does.
    hint        what the reader has to know besides, or has to do where the call is not rewritten.
    """

    parameters: str
    to: str
    imports: str
    unused: str = ""
    processes: str = "any"
    hint: str = ""


@dataclass(frozen=True)
class Drop:
    """A statement that is not needed; elsewhere than as a statement it is left."""

    hint: str


@dataclass(frozen=True)
class ByHand:
    """What to do instead."""

    hint: str


Row = Rename | Rewrite | Drop | ByHand

_RANK = "0 in one process; in several `torch.distributed.get_rank()`"
_SIZE = "1 in one process; in several `torch.distributed.get_world_size()`"
_RUN = (
    "start the script by torchrun and begin it with `torch.distributed.init_process_group('pjrt')`, "
    "or use `torch_pjrt_spmd.launch`"
)
_STEP = (
    "wrap the model in DistributedDataParallel, which sums gradients, and call `optimizer.step()`"
)
_LOOP = "a `for` loop: repeated layers become loops by themselves"
_AXIS = "axes of a mesh have names: `torch_pjrt_spmd.Mesh(shape, names)`"
_CHIPS = "`torch_pjrt_spmd.Mesh` and `python -m torch_pjrt devices` know the chips"
_FULLY = "`torch_pjrt_fsdp.fully_shard(model, mesh=..., wrap=...)`"
_COLLECTIVE = "`torch.distributed` has it, with the backend pjrt"
_DEVICE = 'torch.device("pjrt")'
_AUTOCAST = (
    'torch.autocast("pjrt"{, enabled=enabled}{, dtype=dtype}{, cache_enabled=cache_enabled})'
)


def _ordinals(name: str) -> Rewrite:
    return Rewrite(
        "defval", f"torch.distributed.{name}()", "torch.distributed", "defval", "several", _RANK
    )


ROWS: dict[str, Row] = {
    "torch_xla.device": Rewrite("index", _DEVICE, "torch", "index"),
    "torch_xla.devices": ByHand("a process has one device, `pjrt`"),
    "torch_xla.real_devices": ByHand(_CHIPS),
    "torch_xla.device_count": Rename("torch.accelerator.device_count"),
    "torch_xla.sync": Rewrite(
        "wait reset_scope", "torch_pjrt.sync()", "torch_pjrt", "reset_scope",
        hint="`torch_pjrt.sync()`, and `torch.accelerator.synchronize()` to wait",
    ),
    "torch_xla.step": ByHand("leave the `with` out: an optimizer's step and a read end a program"),
    "torch_xla.compile": ByHand("leave it out; `torch_pjrt.capture(f)` saves the cost of Python"),
    "torch_xla.manual_seed": Rewrite("seed device", "torch.manual_seed({seed})", "torch", "device"),
    "torch_xla.launch": ByHand(_RUN),
    "torch_xla.backends.set_mat_mul_precision": ByHand("`torch.set_float32_matmul_precision`"),
    _XM + "xla_device": Rewrite("n devkind", _DEVICE, "torch", "n devkind"),
    _XM + "mark_step": Rewrite(
        "wait reset_scope", "torch_pjrt.sync()", "torch_pjrt", "reset_scope",
        hint="`torch_pjrt.sync()`, and `torch.accelerator.synchronize()` to wait",
    ),
    _XM + "optimizer_step": Rewrite(
        "optimizer barrier optimizer_args groups pin_layout", "{optimizer}.step()", "",
        "barrier groups pin_layout", "one", _STEP,
    ),
    _XM + "reduce_gradients": ByHand(_STEP),
    _XM + "add_step_closure": Rewrite(
        "closure args run_async", "{closure}(*{args})", "", "run_async",
        hint="call it after the step; what it reads is waited for",
    ),
    _XM + "save": Rewrite(
        "data file_or_path master_only global_master", "torch.save({data}, {file_or_path})", "torch",
        "master_only global_master", "one", "`torch.save` in rank 0, or a checkpoint of `torch_pjrt_fsdp`",
    ),
    _XM + "master_print": Rename("print", "`print` in rank 0", "one"),
    _XM + "get_ordinal": _ordinals("get_rank"),
    _XM + "is_master_ordinal": Rewrite(
        "local", "torch.distributed.get_rank() == 0", "torch.distributed", "local", "several",
        "True in one process; in several `torch.distributed.get_rank() == 0`",
    ),
    _XM + "xrt_world_size": _ordinals("get_world_size"),
    _XM + "get_local_ordinal": ByHand('0 in one process; in several `int(os.environ["LOCAL_RANK"])`'),
    _XM + "rendezvous": ByHand("leave it out in one process; `torch.distributed.barrier()` in several"),
    _XM + "xla_device_hw": ByHand("`python -m torch_pjrt devices` tells the kind of hardware"),
    _XM + "get_xla_supported_devices": ByHand("a process has one device, `pjrt`"),
    _XM + "is_xla_tensor": Rewrite("tensor", '({tensor}.device.type == "pjrt")', ""),
    _XM + "wait_device_ops": Rewrite(
        "devices", "torch.accelerator.synchronize()", "torch", "devices"
    ),
    _XM + "unlazy": Rewrite("tensors", "torch_pjrt.sync()", "torch_pjrt", "tensors"),
    _XM + "set_rng_state": Rewrite("seed device", "torch.manual_seed({seed})", "torch", "device"),
    _XM + "get_rng_state": ByHand("`torch.get_device_module('pjrt').get_rng_state()`"),
    _XM + "get_memory_info": ByHand("`torch.get_device_module('pjrt').mem_get_info()`"),
    _XM + "mesh_reduce": ByHand("`torch.distributed.all_gather_object`"),
    _XM + "send_cpu_data_to_device": ByHand("`tensor.to('pjrt')` of each tensor"),
    _XM + "broadcast_master_param": ByHand("DistributedDataParallel does it"),
    **{_XM + name: ByHand(_COLLECTIVE) for name in (
        "all_reduce", "all_gather", "all_to_all", "reduce_scatter", "collective_permute",
        "collective_broadcast", "send", "recv", "REDUCE_SUM", "REDUCE_MUL", "REDUCE_MIN", "REDUCE_MAX",
    )},
    _XR + "use_spmd": Drop("one process drives all chips without it"),
    _XR + "is_spmd": ByHand("True: one process drives all chips of its host"),
    _XR + "set_device_type": ByHand("the variable PJRT_DEVICE says it"),
    _XR + "device_type": ByHand("`python -m torch_pjrt devices` tells the kind of hardware"),
    _XR + "world_size": _ordinals("get_world_size"),
    _XR + "global_ordinal": _ordinals("get_rank"),
    _XR + "process_index": _ordinals("get_rank"),
    _XR + "process_count": _ordinals("get_world_size"),
    _XR + "local_ordinal": ByHand('0 in one process; in several `int(os.environ["LOCAL_RANK"])`'),
    _XR + "global_runtime_device_count": ByHand(_CHIPS),
    _XR + "global_device_count": ByHand(_CHIPS),
    _XR + "initialize_cache": ByHand("leave it out: programs are kept; TORCH_PJRT_CACHE_DIR says where"),
    _PL + "MpDeviceLoader": Rewrite(
        "loader device batches_per_execution loader_prefetch_size device_prefetch_size "
        "host_to_device_transfer_threads input_sharding",
        "torch_pjrt.DeviceLoader({loader}{, device}{, prefetch=device_prefetch_size})", "torch_pjrt",
        "batches_per_execution loader_prefetch_size host_to_device_transfer_threads",
        hint="`torch_pjrt_spmd.DeviceLoader` spreads batches over a mesh",
    ),
    _PL + "ParallelLoader": ByHand("`torch_pjrt.DeviceLoader(loader)`"),
    _XMP + "spawn": ByHand(_RUN),
    _XMP + "MpModelWrapper": ByHand("the model itself"),
    _XS + "Mesh": Rewrite(
        "device_ids mesh_shape axis_names",
        "torch_pjrt_spmd.Mesh({mesh_shape}, {axis_names}, {device_ids})", "torch_pjrt_spmd", hint=_AXIS,
    ),
    _XS + "HybridMesh": ByHand("`torch_pjrt_spmd.Mesh.hybrid`"),
    _XS + "mark_sharding": Rename(
        "torch_pjrt_spmd.mark_sharding", "its axes are names of the mesh's; numbers are refused"
    ),
    _XS + "clear_sharding": Rename("torch_pjrt_spmd.clear_sharding"),
    _XS + "set_global_mesh": Rename("torch_pjrt_spmd.use_mesh"),
    _XS + "get_global_mesh": Rename("torch_pjrt_spmd.current_mesh"),
    _XS + "ShardingSpec": ByHand("`torch_pjrt_spmd.DeviceLoader` takes a mesh and specs"),
    _FSDP + "XlaFullyShardedDataParallel": ByHand(_FULLY),
    _FSDP + "checkpoint_module": ByHand("`torch.utils.checkpoint.checkpoint` in the block's forward"),
    "torch_xla.experimental.spmd_fully_sharded_data_parallel.SpmdFullyShardedDataParallel": ByHand(_FULLY),
    _MET + "metrics_report": Rewrite("", "str(torch_pjrt.report())", "torch_pjrt"),
    _MET + "short_metrics_report": Rewrite(
        "counter_names metric_names", "str(torch_pjrt.report())", "torch_pjrt",
        "counter_names metric_names",
    ),
    _XP + "start_server": ByHand("`torch_pjrt.profile_step`, or `torch.profiler`"),
    _XP + "Trace": ByHand("`torch.profiler.record_function`"),
    _XP + "StepTrace": ByHand("`torch.profiler.record_function`"),
    "torch_xla.amp.autocast": Rewrite(
        "device enabled dtype cache_enabled", _AUTOCAST, "torch", "device"
    ),
    "torch_xla.amp.GradScaler": Rename("torch.amp.GradScaler", 'with "pjrt" as its device'),
    **{f"torch_xla.amp.syncfree.{name}": Rename(f"torch.optim.{name}") for name in (
        "SGD", "Adam", "AdamW",
    )},
    "torch_xla.experimental.scan.scan": ByHand(_LOOP),
    "torch_xla.experimental.scan_layers.scan_layers": ByHand(_LOOP),
    "torch_xla.experimental.eager_mode": ByHand("the variable TORCH_PJRT_EAGER"),
    "torch_xla.utils.checkpoint.checkpoint": Rename("torch.utils.checkpoint.checkpoint"),
    "torch_xla.utils.serialization.save": Rename("torch.save"),
    "torch_xla.utils.serialization.load": Rename("torch.load"),
    "torch_xla.utils.dlpack.to_dlpack": Rename("torch.utils.dlpack.to_dlpack"),
    "torch_xla.utils.dlpack.from_dlpack": Rename("torch.utils.dlpack.from_dlpack"),
    "torch_xla.stablehlo.exported_program_to_stablehlo": ByHand("`torch_pjrt_quant.export`"),
}  # fmt: skip

# Texts of calls: a device, a backend, an address.
TEXTS: dict[str, str] = {
    "xla": "pjrt",
    "xla:0": "pjrt:0",
    "openxla": "pjrt",
    "xla://": "pjrt://",
    "XLA_PERSISTENT_CACHE_PATH": "TORCH_PJRT_CACHE_DIR",
    "PJRT_LIBRARY_PATH": "TORCH_PJRT_LIBRARY",
}
_OLD = {  # where names were before
    "torch_xla.experimental.xla_sharding.": _XS,
    "torch_xla.experimental.pjrt.": _XR,
    "torch_xla.experimental.scan_layers.": "torch_xla.experimental.scan_layers.",
    "torch_xla.distributed.fsdp.xla_fully_sharded_data_parallel.": _FSDP,
    "torch_xla.distributed.spmd.api.": _XS,
    "torch_xla.distributed.spmd.xla_sharding.": _XS,
}

# Names whose use says that a run has several processes.
STARTS_PROCESSES = frozenset(("torch_xla.launch", _XMP + "spawn"))


def row_of(name: str) -> Row:
    """The row of a full name; for one that has none, to read the guide."""
    for old, now in _OLD.items():
        if name.startswith(old):
            name = now + name.removeprefix(old)
    return ROWS.get(name, ByHand("see docs/from-torch-xla.md for what there is instead"))
