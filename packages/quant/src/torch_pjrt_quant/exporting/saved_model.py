"""An exported model as TensorFlow's SavedModel, which TF Serving loads: the same programs of StableHLO.

Each entry point is a signature, whose function is one operator (`XlaCallModule`) on the model's variables and
the inputs. TensorFlow compiles it by XLA, for the platform that it runs on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func, stablehlo

from torch_pjrt_quant.exporting.model import Entry, ExportedModel, texts


def save_tensorflow(model: ExportedModel, folder: str | Path) -> Path:
    """Write an exported model as a SavedModel. Needs TensorFlow (`tensorflow-cpu`, 2.21 is tested).

    Signatures are the entry points, and `serving_default` is the first. Their inputs have the names of
    `signature()["entries"][name]["inputs"]`, their results are `output_0`, `output_1`, ... in order, and one
    that draws numbers takes `seed` (uint32). An input that the module writes to stays as it is: its new value
    is a result, `written_` and its name. Buffers that programs write to are variables: they go on from
    call to call. `tf.saved_model.load(folder)` has a function for each entry point, too, by its name.

    Raises `ImportError` without TensorFlow.
    """
    import tensorflow as tf  # pyright: ignore[reportMissingImports, reportMissingModuleSource]

    module: Any = tf.Module()
    module.tensors = {name: _variable(tf, t, name) for name, t in model.tensors.items()}
    signatures: dict[str, Any] = {}
    for name in model.entries:
        made = _function(tf, module.tensors, model.entry(name))
        setattr(module, name, made)
        signatures[name] = made
    signatures["serving_default"] = signatures[model.entries[0]]
    tf.saved_model.save(module, str(folder), signatures=signatures)
    return Path(folder)


def _variable(tf: Any, tensor: torch.Tensor, name: str) -> Any:
    host = tensor.contiguous()
    if host.dtype is torch.bfloat16 or (host.dtype.itemsize == 1 and host.is_floating_point()):
        kind = tf.as_dtype(str(host.dtype).removeprefix("torch.")).as_numpy_dtype
        bits = host.view(torch.uint16 if host.dtype.itemsize == 2 else torch.uint8).numpy()
        return tf.Variable(bits.view(kind), trainable=False, name=name)
    return tf.Variable(host.numpy(), trainable=False, name=name)


def _function(tf: Any, variables: dict[str, Any], entry: Entry) -> Callable[..., Any]:
    """A function of TensorFlow's with the inputs of an entry point by their names."""
    from tensorflow.compiler.tf2xla.python import xla  # pyright: ignore[reportMissingImports]

    described, exported = entry.described, entry.exported
    own = [variables[name] for name in described["tensors"]]
    updated = [variables[name] for name in described["updates"]]
    module = without_composites(exported.mlir_module_serialized)
    specs = [
        tf.TensorSpec(_shape(x["shape"]), tf.as_dtype(x["dtype"]), name=x["name"])
        for x in described["inputs"]
    ]
    if described["random"]:
        specs.append(tf.TensorSpec((), tf.uint32, name="seed"))

    def call(*inputs: Any) -> dict[str, Any]:
        given = [*own, *inputs]
        results = xla.call_module(
            [tf.convert_to_tensor(given[n]) for n in exported.module_kept_var_idx],
            version=exported.calling_convention_version,
            module=module,
            Tout=[tf.as_dtype(a.dtype.name) for a in exported.out_avals],
            Sout=[_shape(texts(a.shape)) for a in exported.out_avals],
            platforms=[p.upper() for p in exported.platforms],
            function_list=[],
            has_token_input_output=False,
        )
        for variable, value in zip(updated, results, strict=False):
            variable.assign(value)
        end = len(results) - len(described["writes"])
        written = zip(described["writes"], results[end:], strict=True)
        return {
            **{f"output_{n}": r for n, r in enumerate(results[len(updated) : end])},
            **{f"written_{described['inputs'][n]['name']}": r for n, r in written},
        }

    return tf.function(call, input_signature=specs, autograph=False)


def without_composites(program: bytes) -> bytes:
    """A program in which composite operations (`erf` is one), which TensorFlow cannot read, are calls.

    Each names the function that it stands for. The bytecode is of the version of StableHLO that it was.
    """
    version = re.match(rb"ML\xefR\x0dStableHLO_v([\d.]+)", program)
    if b"composite_v" not in program or version is None:
        return program
    context = ir.Context()
    stablehlo.register_dialect(context)
    func.FuncOp  # noqa: B018  loads the dialect
    with context, ir.Location.unknown():
        module = stablehlo.deserialize_portable_artifact(context, program)
        found: list[Any] = []

        def note(op: Any) -> Any:
            if op.name == "stablehlo.composite":
                found.append(op)
            return ir.WalkResult.ADVANCE

        module.operation.walk(note)
        for op in found:
            with ir.InsertionPoint(op):
                of = op.attributes["decomposition"]
                call = func.CallOp([r.type for r in op.results], of, list(op.operands))
            for old, new in zip(op.results, call.operation.results, strict=True):
                old.replace_all_uses_with(new)
            op.erase()
        return stablehlo.serialize_portable_artifact(module, version[1].decode())


def _shape(sizes: Sequence[Any]) -> list[int | None]:
    return [n if isinstance(n, int) else None for n in sizes]
