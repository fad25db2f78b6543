"""Modules of torch_xla that are no files here: where their names are, or what to use instead.

Older scripts import from places that torch_xla has given up; they are rows, too. `modules.py` has Python look
here.
"""

from __future__ import annotations

#   module of torch_xla                              where its names are here
SAME_AS = {
    "_dynamo.dynamo_bridge":                          "core.dynamo_bridge",
    "amp.autocast_mode":                              "amp",
    "amp.grad_scaler":                                "amp",
    "amp.syncfree.adam":                              "amp.syncfree",
    "amp.syncfree.adamw":                             "amp.syncfree",
    "amp.syncfree.sgd":                               "amp.syncfree",
    "distributed.fsdp.state_dict_utils":              "distributed.fsdp.consolidation",
    "distributed.fsdp.xla_fully_sharded_data_parallel": "distributed.fsdp.fully_sharded",
    "distributed.spmd.xla_sharded_tensor":            "distributed.spmd",
    "distributed.spmd.xla_sharding":                  "distributed.spmd",
    "experimental.distributed_checkpoint.manager":    "experimental.distributed_checkpoint",
    "experimental.distributed_checkpoint.planners":   "experimental.distributed_checkpoint",
    "experimental.distributed_checkpoint.util":       "experimental.distributed_checkpoint",
    "experimental.dynamo_mark_sharding":              "operators",
    "experimental.dynamo_set_buffer_donor":           "operators",
    "experimental.pjrt_backend":                      "distributed.xla_backend",
    "experimental.xla_sharded_tensor":                "distributed.spmd",
    "experimental.xla_sharding":                      "distributed.spmd",
    "torch_xla":                                      "",
}  # fmt: skip

_EXPORT = "`torch_pjrt_quant.export(model, example_inputs)` makes programs of StableHLO"
_SIZES = (
    "`torch_pjrt_quant.export(model, example_inputs, dynamic_shapes=...)` takes sizes that vary"
)
_COMPOSITE = "`jax.lax.composite` in a `torch_pjrt.jax_function` is a composite of StableHLO"
_GRAPHS = "the variable TORCH_PJRT_DUMP names a folder for the graphs and programs of a run"
_FILES = "a library for that format, or for that storage"
_DEVICE = (
    "a device is a package with an entry point of the group `torch_pjrt`: page `your-accelerator`"
)
#   module of torch_xla                        what to use instead
INSTEAD = {
    "_dynamo.dynamo_backend2":                 '`torch.compile(backend="pjrt")`',
    "_internal.c10d_registration":             "functional collectives run on the device by themselves",
    "_internal.custom_kernel":                 "`torch_xla.operators` has the operators of the group `xla`",
    "_internal.decomp_registration":           "decompositions are registered with the device",
    "_internal.jax_workarounds":               "JAX may be imported and used at any time",
    "_internal.neuron":                        _DEVICE,
    "_internal.neuron_utils":                  _DEVICE,
    "_internal.pjrt":                          "`torch_xla.launch` starts processes",
    "_internal.rendezvous":                    '`init_process_group("xla", init_method="xla://")`',
    "_internal.utils":                         "`torch_xla.core.xla_model.parse_xla_device`",
    "_internal.xpu":                           _DEVICE,
    "_patched_functions":                      "`torch.nn.utils.clip_grad_norm_` reads nothing on the host",
    "amp.syncfree._functional":                "PyTorch's optimizers read nothing on the host",
    "debug.frame_parser_util":                 "`torch_pjrt.report()` names lines that read",
    "debug.graph_saver":                       _GRAPHS,
    "debug.metrics_compare_utils":             "`torch_pjrt.report()` is a text: compare those of two runs",
    "debug.model_comparator":                  "`torch.testing.assert_close`, `torch_pjrt.check_nans()`",
    "distributed.fsdp._init_utils":            "`XlaFullyShardedDataParallel(param_init_fn=)`",
    "distributed.fsdp.xla_flatten_params_wrapper": "parameters are flattened by PyTorch's own FSDP",
    "distributed.xla_dist":                    "torchrun, Slurm or Kubernetes start processes on many hosts",
    "experimental.deprecation":                "`warnings.deprecated` of Python",
    "experimental.mark_pattern_utils":         _COMPOSITE,
    "experimental.pallas_kernels":             "`torch_pjrt_kernels` has kernels",
    "experimental.pytreeify":                  "`torch.utils._pytree` flattens for an `autograd.Function`",
    "experimental.quantized":                  "`torch_pjrt_quant.PjrtQuantizer` and `lower_pt2e`, for PT2E",
    "experimental.stablehlo_custom_call":      "`jax.ffi` in a `torch_pjrt.jax_function` calls foreign code",
    "experimental.unbounded_dynamism_export":  _SIZES,
    "experimental.xla_dynamic_reshape_ops":    _SIZES,
    "experimental.xla_marker":                 _COMPOSITE,
    "experimental.xla_mlir_debuginfo":         "`with torch_pjrt.source_lines():` programs know lines",
    "experimental.xla_quantized_matmul":       "`torch_pjrt_quant.quantize_` makes layers of 8 and 4 bits",
    "tf_saved_model_integration":              _EXPORT,
    "utils.checkpoint_tagger":                 "`torch.utils.checkpoint` names what it computes again",
    "utils.gcsfs":                             _FILES,
    "utils.stablehlo_test_utils":              _EXPORT,
    "utils.tf_record_reader":                  _FILES,
}  # fmt: skip

ELSEWHERE = {**SAME_AS, **INSTEAD}
