"""Which models and operators `torch_pjrt_quant.export` takes, and how far the results are from PyTorch's.

    python benchmarks/export_models.py [--models] [--operators] [--every-operator] [--only NAME ...]

Models have random weights and few layers. Each is exported for CPU, TPU and GPU with sizes that vary, saved,
run for the example and for other sizes by `load.py` in a process that has no PyTorch, and by TensorFlow where
that is installed, and compared. Operators: PyTorch's own samples of the core ATen set, float32, with the
sizes that they have. Prints benchmarks/results/export.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.export import Dim
from torch.utils._pytree import tree_leaves, tree_map

from torch_pjrt_quant import export, save_tensorflow
from torch_pjrt_quant.exporting.load import load

BATCH, LENGTH = Dim("batch"), Dim("length", max=64)
SMALL = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}
GPT = {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}

#   of transformers: name of the class, of its configuration, options
TEXT: list[tuple[str, str, dict[str, Any]]] = [
    ("LlamaForCausalLM", "LlamaConfig", GROUPED),
    ("Qwen2ForCausalLM", "Qwen2Config", GROUPED),
    ("Qwen3ForCausalLM", "Qwen3Config", {**GROUPED, "head_dim": 8}),
    ("MistralForCausalLM", "MistralConfig", GROUPED),
    ("MixtralForCausalLM", "MixtralConfig", {**GROUPED, "num_local_experts": 4}),
    ("Gemma2ForCausalLM", "Gemma2Config", {**GROUPED, "head_dim": 8}),
    ("Phi3ForCausalLM", "Phi3Config", {**GROUPED, "pad_token_id": 0}),
    ("GPT2LMHeadModel", "GPT2Config", GPT),
    ("GPTNeoXForCausalLM", "GPTNeoXConfig", {**SMALL, "max_position_embeddings": 64}),
    (
        "OPTForCausalLM",
        "OPTConfig",
        {
            **{k: v for k, v in SMALL.items() if k != "intermediate_size"},
            "ffn_dim": 64,
            "max_position_embeddings": 64,
            "word_embed_proj_dim": 32,
        },
    ),
    (
        "BloomForCausalLM",
        "BloomConfig",
        {"vocab_size": 97, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    ),
    ("FalconForCausalLM", "FalconConfig", SMALL),
    ("BertForMaskedLM", "BertConfig", SMALL),
    ("RobertaForSequenceClassification", "RobertaConfig", SMALL),
    (
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        {"vocab_size": 97, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
    ),
    ("ElectraModel", "ElectraConfig", SMALL),
    ("DebertaV2Model", "DebertaV2Config", SMALL),
    (
        "MambaForCausalLM",
        "MambaConfig",
        {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    ),
]
PATCHES = {
    **{k: v for k, v in SMALL.items() if k != "vocab_size"},
    "image_size": 32,
    "patch_size": 8,
}
IMAGES: list[tuple[str, str, dict[str, Any]]] = [
    ("ViTForImageClassification", "ViTConfig", PATCHES),
    ("CLIPVisionModel", "CLIPVisionConfig", PATCHES),
    (
        "SwinModel",
        "SwinConfig",
        {
            "image_size": 32,
            "patch_size": 4,
            "embed_dim": 16,
            "depths": [1, 1],
            "num_heads": [2, 2],
            "window_size": 4,
        },
    ),
    ("ConvNextModel", "ConvNextConfig", {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]}),
]
#   of torchvision: name, options, size of the images
VISION: list[tuple[str, dict[str, Any], int]] = [
    ("resnet18", {}, 64),
    ("mobilenet_v3_small", {}, 64),
    ("efficientnet_b0", {}, 64),
    ("convnext_tiny", {}, 64),
    ("densenet121", {}, 64),
    ("squeezenet1_1", {}, 64),
    ("shufflenet_v2_x0_5", {}, 64),
    ("regnet_y_400mf", {}, 64),
    ("swin_t", {}, 64),
]

Case = tuple[str, Callable[[], torch.nn.Module], Any, Any, Any]


def models() -> Iterator[Case]:
    """Name, what makes the module, keyword arguments, their shapes, other arguments."""
    # Its operators of detection are compiled for CUDA; classification does without.
    sys.modules.setdefault(
        "torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations")
    )
    transformers: Any = import_module("transformers")

    def made(kind: str, config: str, options: dict[str, Any]) -> torch.nn.Module:
        model = getattr(transformers, kind)(getattr(transformers, config)(**options))
        if hasattr(model.config, "use_cache"):
            model.config.use_cache = False
        return model

    tokens = [{"input_ids": torch.randint(3, 97, size)} for size in ((2, 7), (3, 11))]
    for kind, config, options in TEXT:
        shapes = {"input_ids": {0: BATCH, 1: LENGTH}}
        yield (
            f"transformers {kind}",
            lambda k=kind, c=config, o=options: made(k, c, o),
            tokens[0],
            shapes,
            tokens[1],
        )
    for kind, config, options in IMAGES:
        pixels = [{"pixel_values": torch.randn(n, 3, 32, 32)} for n in (2, 3)]
        shapes = {"pixel_values": {0: BATCH}}
        yield (
            f"transformers {kind}",
            lambda k=kind, c=config, o=options: made(k, c, o),
            pixels[0],
            shapes,
            pixels[1],
        )
    if not find_spec("torchvision"):
        return
    vision: Any = import_module("torchvision.models")

    for name, options, size in VISION:
        images = [{"x": torch.randn(n, 3, size, size)} for n in (2, 3)]
        yield (
            f"torchvision {name}",
            lambda n=name, o=options: getattr(vision, n)(**o),
            images[0],
            {"x": {0: BATCH}},
            images[1],
        )


def compared(
    model: torch.nn.Module, kwargs: Any, shapes: Any, others: list[Any], values: bool = True
) -> tuple[float, list[float]]:
    """How far the results are from PyTorch's, relative to their largest: for the example, for others.

    Where `values` is False, shapes and dtypes alone are compared.
    """
    exported = export(model, (), kwargs, dynamic_shapes=shapes)
    with tempfile.TemporaryDirectory() as folder:
        run = load(exported.save(f"{folder}/model"))
        errors = []
        for given in (kwargs, *others):
            arrays = tree_map(lambda x: _copied(x) if isinstance(x, torch.Tensor) else x, given)
            got = run(**arrays)
            with torch.no_grad():
                wanted = model(**given)
            # Arguments are compared, too: some operators write to them.
            errors.append(_error((got, arrays), (wanted, given), values))
    return errors[0], errors[1:]


def _copied(x: torch.Tensor) -> np.ndarray[Any, Any]:
    plain = x.detach().resolve_conj().resolve_neg()
    if plain.dtype is torch.bfloat16:
        return plain.float().numpy().astype("bfloat16")
    return plain.numpy().copy()


def _error(got: Any, wanted: Any, values: bool) -> float:
    there = [x for x in tree_leaves(got) if isinstance(x, np.ndarray)]
    here = [x for x in tree_leaves(wanted) if isinstance(x, torch.Tensor)]
    assert len(there) == len(here), f"{len(there)} results, not {len(here)}"
    worst = 0.0
    for array, tensor in zip(there, here, strict=True):
        plain = _copied(tensor)
        assert array.dtype == plain.dtype, f"{array.dtype}, not {plain.dtype}"
        assert array.shape == plain.shape, f"{array.shape}, not {plain.shape}"
        if not array.size or not values:
            continue
        a, b = array.astype(np.complex128), plain.astype(np.complex128)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        far = np.where(same, 0, np.abs(a - b))
        largest = np.abs(b[np.isfinite(b)]).max(initial=1e-30)
        worst = max(worst, float(np.nan_to_num(far, nan=np.inf).max() / largest))
    return worst


# Runs a folder without PyTorch: what is given and what comes out are files of NumPy's.
ALONE = """
import sys
import numpy as np
sys.modules["torch"] = None  # an import of it fails
sys.path.insert(0, sys.argv[1])
from load import load

def leaves(x):
    if isinstance(x, dict):
        x = list(x.values())
    return [y for part in x for y in leaves(part)] if isinstance(x, (list, tuple)) else [x]

run = load(sys.argv[1])
for path in sys.argv[2:]:
    np.savez(path + ".out.npz", *leaves(run(**np.load(path))))
"""


def by_jax_alone(folder: str, given: Sequence[dict[str, torch.Tensor]]) -> list[list[Any]]:
    """What `load.py` gives in a process without PyTorch."""
    paths = [f"{folder}.{n}.npz" for n in range(len(given))]
    for path, tensors in zip(paths, given, strict=True):
        arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
        np.savez(path, **arrays)
    run = [sys.executable, "-c", ALONE, folder, *paths]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return [list(np.load(f"{path}.out.npz").values()) for path in paths]


def by_tensorflow(folder: str, given: Sequence[dict[str, torch.Tensor]]) -> list[list[Any]]:
    """What TensorFlow gives that has loaded the SavedModel."""
    tf: Any = import_module("tensorflow")
    run = tf.saved_model.load(folder).signatures["serving_default"]
    found = []
    for tensors in given:
        results = run(**{name: tf.constant(t.numpy()) for name, t in tensors.items()})
        found.append([results[f"output_{n}"].numpy() for n in range(len(results))])
    return found


def model_table(only: list[str]) -> None:
    """A line for each model: whether it is exported, with which sizes, and what runs it."""
    print("| model | exported | sizes that vary | with JAX alone | in TensorFlow | equal to |")
    print("|---|---|---|---|---|---|")
    for name, make, kwargs, shapes, other in models():
        if only and not any(o in name for o in only):
            continue
        torch.manual_seed(0)
        model = make().eval()
        print(f"| {name} | {' | '.join(_line(model, kwargs, shapes, other))} |", flush=True)


def _line(model: torch.nn.Module, kwargs: Any, shapes: Any, other: Any) -> list[str]:
    """The columns behind a model's name. Where a length is fixed by the model, the batch alone varies."""
    try:
        exported = export(model, (), kwargs, dynamic_shapes=shapes)
    except Exception as error:
        batch = {name: {0: dims[0]} for name, dims in shapes.items()}
        if batch == shapes:
            return ["no", "", _words(error), "", ""]
        other = {
            name: torch.cat([x, x[:1]])[:, : kwargs[name].shape[1]] for name, x in other.items()
        }
        return _line(model, kwargs, batch, other)
    given = (kwargs, other)
    with torch.no_grad():
        wanted = [model(**tensors) for tensors in given]
    errors: list[float] = []

    def ran(run: Callable[[], list[list[Any]]]) -> str:
        try:
            got = run()
            found = [_error(g, w, True) for g, w in zip(got, wanted, strict=True)]
        except Exception as error:
            return _words(error)
        errors.extend(found)
        return f"{len(found)} sizes"

    with tempfile.TemporaryDirectory() as folder:
        exported.save(f"{folder}/model")
        alone = ran(lambda: by_jax_alone(f"{folder}/model", given))
        there = "not installed"
        if find_spec("tensorflow"):
            save_tensorflow(exported, Path(folder) / "saved")
            there = ran(lambda: by_tensorflow(f"{folder}/saved", given))
    varying = " ".join(d.__name__ for dims in shapes.values() for d in dims.values())
    return ["yes", varying, alone, there, f"{max(errors):.0e}" if errors else ""]


def _words(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:150].replace("|", "\\|")


# Values of these are drawn, or are what memory held; with dropout, and without it, from now on.
WITHOUT_VALUES = {
    "bernoulli", "cauchy", "empty", "empty_like", "empty_permuted", "empty_strided", "exponential",
    "geometric", "log_normal", "multinomial", "new_empty", "new_empty_strided", "normal", "pca_lowrank",
    "rand_like", "randint", "randint_like", "randn", "randn_like", "svd_lowrank", "uniform",
    "nn.functional.alpha_dropout",
    "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
    "nn.functional.feature_alpha_dropout", "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d", "nn.functional.rrelu",
}  # fmt: skip


def core_names() -> set[str]:
    """Of the operators in the core ATen set."""
    packets = {name: getattr(torch.ops.aten, name) for name in dir(torch.ops.aten)}
    return {
        name
        for name, packet in packets.items()
        if hasattr(packet, "overloads")
        and any(torch.Tag.core in getattr(packet, o).tags for o in packet.overloads())
    }


def operator_table(only: list[str], everything: bool) -> None:
    """PyTorch's samples of operators: one line for each that is not exported or differs.

    Three samples of an operator that is in the core set, or every operator's first.
    """
    from torch.testing._internal.common_methods_invocations import op_db

    core, most = core_names(), 1 if everything else 3
    done = samples = operators = 0
    failures: dict[str, str] = {}
    for info in op_db:
        family, _, last = info.name.rpartition(".")
        names = {info.aten_name, info.name.replace(".", "_")}
        if family in ("nn.functional", "fft", "special"):
            names |= {last, f"_{last}"}
        if (only and info.name not in only) or not (everything or names & core):
            continue
        dtypes = (torch.float32, torch.int64, torch.complex64, torch.bool)
        dtype = next((d for d in dtypes if d in info.dtypes), None)
        if dtype is None:
            continue
        operators += 1
        for number, sample in enumerate(info.sample_inputs("cpu", dtype)):
            if number == most:
                break
            samples += 1
            try:
                _sample(info, sample)
                done += 1
            except Exception as error:
                name = f"{info.name} {info.variant_test_name}".strip()
                failures[f"{name}, sample {number}"] = _words(error)
    of = "every operator's first" if everything else "the core ATen set's, three an operator,"
    print(
        f"\n{done} of {samples} samples ({of} of {operators} operators) are exported and equal.\n"
    )
    print("Of what is drawn, or is as memory was, shapes and dtypes alone are compared.\n")
    if not failures:
        return
    print("| sample | why not |\n|---|---|")
    for name, why in failures.items():
        print(f"| `{name}` | {why} |")


def _sample(info: Any, sample: Any) -> None:
    tensors: list[torch.Tensor] = []

    def kept(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            tensors.append(x.detach())
            return _Place(len(tensors) - 1)
        return x

    call = tree_map(kept, (sample.input, sample.args, sample.kwargs))

    class Module(torch.nn.Module):
        def forward(self, given: list[torch.Tensor]) -> Any:
            first, args, kwargs = tree_map(
                lambda x: given[x.number] if isinstance(x, _Place) else x, call
            )
            # What is not determined (signs of eigenvectors) the sample takes away.
            return sample.output_process_fn_grad(info.op(first, *args, **kwargs))

    module, values = Module(), info.name not in WITHOUT_VALUES
    error, _ = compared(module, {"given": tensors}, None, [], values)
    assert error < 1e-4, f"differs by {error:.1e}"


class _Place:
    def __init__(self, number: int) -> None:
        self.number = number


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", action="store_true")
    parser.add_argument("--operators", action="store_true")
    parser.add_argument("--every-operator", action="store_true")
    parser.add_argument("--only", nargs="*", default=[])
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print("# Exported models and operators\n")
    print(
        "Made by `python benchmarks/export_models.py`; [what is exported](../../docs/export.md).\n"
    )
    every = not (args.models or args.operators or args.every_operator)
    if args.models or every:
        model_table(args.only)
    if args.operators or every:
        operator_table(args.only, everything=False)
    if args.every_operator or every:
        operator_table(args.only, everything=True)


if __name__ == "__main__":
    main()
