"""Runs a model that torch-pjrt has exported, without PyTorch: JAX, NumPy and safetensors are all it needs.

    from load import load

    model = load("folder")
    y = model(x)                      # NumPy arrays in and out, in the structure that the module had
    y = model.entry("decode")(x)      # one of several entry points, which share weights and state
    model.reset()                     # buffers that the model writes to, as they were when it was exported

`python load.py FOLDER` prints what the model takes and gives. The format is described in docs/export.md of
torch-pjrt; `signature.json` says which version of it this folder has.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import core, export
from safetensors import safe_open

FORMAT, VERSION = "torch-pjrt-export", 2


class WrongInput(ValueError):
    """An argument has another structure, dtype or shape than the exported model takes."""


def load(folder: str | Path, *, device: Any = None, as_numpy: bool = True) -> Model:
    """The model in a folder.

    device      a JAX device that weights, state and inputs go to; JAX's default one otherwise.
    as_numpy    results are NumPy arrays; otherwise JAX's, which may still be computed when they are returned.

    Raises `ValueError` for a folder of another format or of a later version.
    """
    folder = Path(folder)
    signature = json.loads((folder / "signature.json").read_text())
    if signature.get("format") != FORMAT:
        raise ValueError(f"{folder} holds no model that torch-pjrt has exported")
    if signature["version"] > VERSION:
        raise ValueError(
            f"{folder} has version {signature['version']} of the format, and this file reads up to "
            f"{VERSION}: use the load.py in the folder"
        )
    return Model(folder, signature, device, as_numpy)


class Model:
    """Entry points of an exported model with the tensors that they share.

    tensors     name -> JAX array: weights, and buffers as they are now. The next call that writes to a buffer
                takes its memory for the new value, so an array of it that is kept meanwhile is deleted.
    state       name -> NumPy array: the buffers that the model writes to, as they were when it was exported.
    entries     name -> Entry. Calling the model calls the first one.
    """

    def __init__(self, folder: Path, signature: Any, device: Any, as_numpy: bool) -> None:
        self.folder, self.signature, self.device = folder, signature, device
        self.as_numpy = as_numpy
        with _wide(), jax.default_device(device):
            self.tensors = _read(folder / "weights.safetensors")
        self.state = {name: np.array(self.tensors[name]) for name in signature["state"]}
        self.entries = {n: Entry(self, n, e) for n, e in signature["entries"].items()}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return next(iter(self.entries.values()))(*args, **kwargs)

    def entry(self, name: str) -> Entry:
        """The entry point of that name."""
        if name not in self.entries:
            raise KeyError(f"no entry point {name!r}; there are {', '.join(self.entries)}")
        return self.entries[name]

    def reset(self) -> None:
        """Buffers that the model writes to are as they were when it was exported."""
        with _wide(), jax.default_device(self.device):
            self.tensors.update({n: jnp.array(x, copy=True) for n, x in self.state.items()})


class Entry:
    """One entry point: a function of NumPy arrays."""

    def __init__(self, model: Model, name: str, entry: Any) -> None:
        self.model, self.name, self.signature = model, name, entry
        self.exported = program(model.folder, entry["program"])
        updated = set(entry["updates"])
        donated = [n for n, tensor in enumerate(entry["tensors"]) if tensor in updated]
        self._compiled = jax.jit(self.exported.call, donate_argnums=donated)

    def __call__(self, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
        """What the module's method gives. `seed` is for models that draw random numbers (0 otherwise).

        Raises `WrongInput`, which names the argument.
        """
        model, entry = self.model, self.signature
        if self.exported.platforms and _platform(model.device) not in self.exported.platforms:
            raise ValueError(
                f"the model was exported for {', '.join(self.exported.platforms)}, and this process computes "
                f"on {_platform(model.device)}"
            )
        given = self.flattened(args, kwargs)
        for number in entry.get("writes", []):
            if not (isinstance(given[number], np.ndarray) and given[number].flags.writeable):
                raise _unwritable(entry["inputs"][number]["name"], given[number])
        with _wide(), jax.default_device(model.device):
            inputs = [model.tensors[name] for name in entry["tensors"]]
            inputs += [jnp.asarray(x) for x in given]
            if entry["random"]:
                inputs.append(jnp.asarray(seed or 0, jnp.uint32))
            elif seed is not None:
                raise WrongInput(f"`{self.name}` draws no random numbers, and was given a `seed`")
            results = self._compiled(*inputs)
        updates, leaves, written = self.parted(results)
        model.tensors.update(zip(entry["updates"], updates, strict=True))
        for number, value in written.items():
            np.copyto(given[number], np.asarray(value))
        if model.as_numpy:
            leaves = [np.asarray(x) for x in leaves]
        return built(entry["results"], leaves)

    def parted(self, results: Sequence[Any]) -> tuple[Any, Any, dict[int, Any]]:
        """New values of the buffers that are updated, what the caller gets, new values of inputs by place."""
        n_updates, writes = len(self.signature["updates"]), self.signature.get("writes", [])
        end = len(results) - len(writes)
        written = dict(zip(writes, results[end:], strict=True))
        return results[:n_updates], results[n_updates:end], written

    def flattened(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """The tensors among the arguments, in order, checked."""
        entry = self.signature
        names = list(entry["arguments"])
        if len(args) > len(names):
            raise WrongInput(
                f"`{self.name}` takes {len(names)} arguments ({', '.join(names)}), not {len(args)}"
            )
        given = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name not in names or name in given:
                why = (
                    "twice"
                    if name in given
                    else f"which is none of {', '.join(names) or 'no arguments'}"
                )
                raise WrongInput(f"`{self.name}` was given `{name}`, {why}")
            given[name] = value
        missing = [n for n in names if n not in given]
        if missing:
            raise WrongInput(f"`{self.name}` lacks {', '.join(f'`{n}`' for n in missing)}")
        found: dict[int, tuple[str, Any]] = {}
        for name in names:
            for number, path, value in _matched(entry["arguments"][name], given[name], name):
                found[number] = path, value
        sizes: dict[str, tuple[int, str]] = {}
        arrays = []
        for number, spec in enumerate(entry["inputs"]):
            path, value = found[number]
            arrays.append(_checked(path, value, spec, entry["dims"], sizes))
            if number in entry.get("writes", []) and arrays[-1] is not value:
                raise _unwritable(path, value)
        return arrays


def _matched(tree: Any, value: Any, path: str) -> Iterator[tuple[int, str, Any]]:
    """(number of the input, path, value) of each leaf of an argument."""
    if "leaf" in tree:
        yield tree["leaf"], path, value
    elif "constant" in tree:
        expected = tree["constant"]
        if not _equal(value, expected):
            raise WrongInput(
                f"`{path}` is {value!r}, and the model was exported for {expected!r}, which is fixed in it"
            )
    elif "dict" in tree:
        if not isinstance(value, dict) or set(value) != set(tree["dict"]):
            saw = sorted(value) if isinstance(value, dict) else type(value).__name__
            raise WrongInput(f"`{path}` is {saw}, and should be a dict with {sorted(tree['dict'])}")
        for key, inner in tree["dict"].items():
            yield from _matched(inner, value[key], f"{path}[{key!r}]")
    else:
        inner = tree.get("tuple", tree.get("list"))
        if not isinstance(value, (tuple, list)) or len(value) != len(inner):
            saw = (
                f"{len(value)} values" if isinstance(value, (tuple, list)) else type(value).__name__
            )
            raise WrongInput(f"`{path}` is {saw}, and should be a sequence of {len(inner)}")
        for n, (one, part) in enumerate(zip(value, inner, strict=True)):
            yield from _matched(part, one, f"{path}[{n}]")


def _equal(value: Any, expected: Any) -> bool:
    return value is expected or (type(value) is type(expected) and value == expected)


def _checked(path: str, value: Any, spec: Any, dims: Any, sizes: dict[str, tuple[int, str]]) -> Any:
    """The array, if it has the dtype and the shape of the signature; `sizes` are those known so far."""
    plain = not (hasattr(value, "shape") and hasattr(value, "dtype"))
    array = np.asarray(value) if plain else value
    shape = spec["shape"]
    wanted = f"{spec['dtype']}[{', '.join(map(str, shape))}]"
    saw = f"{array.dtype}{list(array.shape)}"
    if array.dtype != jnp.dtype(spec["dtype"]):
        if not (plain and np.can_cast(array.dtype, jnp.dtype(spec["dtype"]), "same_kind")):
            raise WrongInput(f"`{path}` is {saw}, and should be {wanted}: another dtype")
        array = array.astype(jnp.dtype(spec["dtype"]))
    if len(array.shape) != len(shape):
        raise WrongInput(f"`{path}` is {saw}, and should be {wanted}: {len(shape)} dims")
    for n, (size, expected) in enumerate(zip(array.shape, shape, strict=True)):
        if isinstance(expected, int):
            if size != expected:
                raise WrongInput(
                    f"`{path}` is {saw}, and should be {wanted}: dim {n} is {size}, not {expected}"
                )
        elif expected in dims:
            limits = dims[expected]
            least, greatest = limits["min"], limits["max"]
            if size < least or (greatest is not None and size > greatest):
                bound = f"from {least}" + (f" to {greatest}" if greatest is not None else " on")
                raise WrongInput(
                    f"`{path}` is {saw}: dim {n} is {size}, and `{expected}` goes {bound}"
                )
            known, where = sizes.setdefault(expected, (size, path))
            if known != size:
                raise WrongInput(
                    f"`{path}` is {saw}: dim {n} is {size}, and `{expected}` is {known} in `{where}`"
                )
    return array


def _unwritable(path: str, value: Any) -> WrongInput:
    kind = f"{type(value).__module__}.{type(value).__name__}"
    return WrongInput(
        f"`{path}` is written to, and so should be a NumPy array that can be, not a {kind} that cannot"
    )


def built(tree: Any, leaves: Sequence[Any]) -> Any:
    """Results in the structure that the module gave them."""
    if "leaf" in tree:
        leaf = leaves[tree["leaf"]]
        return leaf.item() if tree.get("number") else leaf
    if "constant" in tree:
        return tree["constant"]
    if "dict" in tree:
        return {key: built(inner, leaves) for key, inner in tree["dict"].items()}
    if "tuple" in tree:
        return tuple(built(inner, leaves) for inner in tree["tuple"])
    return [built(inner, leaves) for inner in tree["list"]]


def program(folder: Path, described: Any) -> export.Exported:
    """A program as JAX's `Exported`: its StableHLO, and what `signature.json` says of it.

    It is differentiable where the model was exported with `gradient=True`.
    """
    inner = described.get("gradient")
    scope = export.SymbolicScope(described["constraints"])
    inputs = tuple(_aval(x, scope) for x in described["inputs"])
    results = tuple(_aval(x, scope) for x in described["results"])
    values: dict[str, Any] = {
        "fun_name": described["name"],
        "in_tree": jax.tree.structure((tuple(inputs), {})),
        "in_avals": inputs,
        "out_tree": jax.tree.structure(tuple(results)),
        "out_avals": results,
        "_has_named_shardings": False,
        "_in_named_shardings": (None,) * len(inputs),
        "_out_named_shardings": (None,) * len(results),
        "in_shardings_hlo": (None,) * len(inputs),
        "out_shardings_hlo": (None,) * len(results),
        "nr_devices": 1,
        "platforms": tuple(described["platforms"]),
        "ordered_effects": (),
        "unordered_effects": (),
        "disabled_safety_checks": (),
        "mlir_module_serialized": (folder / described["file"]).read_bytes(),
        "calling_convention_version": described["calling_convention"],
        "module_kept_var_idx": tuple(described["kept"]),
        "uses_global_constants": described["global_constants"],
        "_get_vjp": (lambda _: program(folder, inner)) if inner else None,
    }
    fields = {f.name for f in dataclasses.fields(export.Exported)}
    if unknown := fields - set(values):
        raise RuntimeError(
            f"JAX {jax.__version__} asks of an exported program what this file does not know: "
            f"{', '.join(sorted(unknown))}. The model was exported with JAX {described['jax']}: use that "
            "version, or a newer torch-pjrt's load.py"
        )
    return export.Exported(**{name: values[name] for name in fields})


def _aval(spec: Any, scope: Any) -> Any:
    dtype, shape = spec
    text = ", ".join(map(str, shape))
    dims = (
        export.symbolic_shape(text + ("," if len(shape) == 1 else ""), scope=scope) if shape else ()
    )
    return core.ShapedArray(dims, jax.dtypes.float0 if dtype == "float0" else jnp.dtype(dtype))


def _read(file: Path) -> dict[str, Any]:
    with safe_open(file, framework="flax") as tensors:
        return {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118  not a dict


def _wide() -> Any:
    """A block in which JAX has the 64-bit types that PyTorch has."""
    return jax.enable_x64(True)


def _platform(device: Any) -> str:
    name = device.platform if device is not None else jax.default_backend()
    return "cuda" if name == "gpu" else name


def describe(folder: str | Path) -> str:
    """What a model takes and gives, in lines."""
    signature = json.loads((Path(folder) / "signature.json").read_text())
    lines = []
    for name, entry in signature["entries"].items():
        lines.append(f"{name}({', '.join(entry['arguments'])})")
        lines += [
            f"    {x['name']}: {x['dtype']}[{', '.join(map(str, x['shape']))}]"
            for x in entry["inputs"]
        ]
        lines += [
            f"    {d}: from {r['min']} to {r['max'] or 'any size'}"
            for d, r in entry["dims"].items()
        ]
        end = len(entry["program"]["results"]) - len(entry.get("writes", []))
        results = entry["program"]["results"][len(entry["updates"]) : end]
        lines += [f"    -> {dtype}[{', '.join(map(str, shape))}]" for dtype, shape in results]
        lines += [f"    writes {x}" for x in entry["updates"]]
        lines += [f"    writes {entry['inputs'][n]['name']}" for n in entry.get("writes", [])]
        lines.append(f"    for {', '.join(entry['program']['platforms'])}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(describe(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent))
