"""Fingerprints: what a compiled program depends on, as a digest that is the same in another process.

In a process a program is found by numbers and identities, which mean nothing in the next one. Here all
of it is written out: every operator with its arguments, shapes and dtypes, the wiring, the outputs, what is
donated, the constants; and the ground it stands on: versions, plugins, device, options.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import torch

from torch_pjrt.compile.precision import in_force
from torch_pjrt.graph.face import Face
from torch_pjrt.graph.graph import Graph, Node, Number
from torch_pjrt.graph.signature import GraphOp, InternalOp, NumberSlot, Signature, Slot
from torch_pjrt.lowering import added
from torch_pjrt.observe.lines import are_in_programs
from torch_pjrt.plugin.host import host
from torch_pjrt.run.client import Client
from torch_pjrt.settings import settings
from torch_pjrt.value_annotations import ANNOTATE

# Grows when what is written to disk, or how it is found, changes.
FORMAT = 4

# What PyTorch's own objects are written as says all about them.
_PLAIN = (bool, int, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
_OVERLOAD = torch._ops.OpOverload


class NotPortable(Exception):
    """Something in a graph is known to this process only, a function for example; says what."""


def of_program(
    graph: Graph,
    arrays: Sequence[jax.Array],
    donated: Sequence[int],
    n_seedings: int,
    client: Client,
) -> str:
    """The digest of what will be compiled, 64 hexadecimal digits. `NotPortable` where there is none."""
    digest = hashlib.sha256(_ground(client).encode())
    for part in _parts(graph, arrays, donated, n_seedings):
        digest.update(part.encode())
        digest.update(b"\n")
    return digest.hexdigest()


def _parts(
    graph: Graph, arrays: Sequence[jax.Array], donated: Sequence[int], n_seedings: int
) -> Iterator[str]:
    for array in arrays:
        if not isinstance(array.sharding, jax.sharding.SingleDeviceSharding):
            raise NotPortable("array on several chips")
        yield f"{array.dtype}{array.shape}"
    yield from map(_node, graph.nodes)
    yield f"outputs {graph.outputs} donated {tuple(donated)} seedings {n_seedings}"
    yield f"products of float32: {in_force()}"
    yield f"repeated layers: {settings.roll_layers}"
    yield f"options {sorted(settings.compile_options.items())}"


def _node(node: Node) -> str:
    numbers = ",".join(map(_number, node.numbers))
    draw = f" draw {node.draw.seeding}.{node.draw.index}" if node.draw is not None else ""
    line = f" {node.line!r}" if are_in_programs() else ""
    return f"{_of_signature(node.signature)} {node.inputs} {node.outputs} {numbers}{draw}{line}"


def _number(number: Number) -> str:
    return f"{number.kind.__name__}{number.index}={_written(number.value)}"


_signatures: dict[int, str] = {}


def _of_signature(signature: Signature) -> str:
    """Written out once for each signature of this process, as a digest."""
    if isinstance(signature.op, GraphOp):
        return _of_graph(signature)
    known = _signatures.get(signature.number)
    if known is None:
        s = signature
        look = (
            s.op,
            s.args,
            s.kwargs,
            s.faces,
            s.outs,
            s.random,
            s.returns,
            s.dropped,
            s.precision,
            *_of_added_rule(s),
        )
        known = hashlib.sha256(_written(look).encode()).hexdigest()[:32]
        _signatures[signature.number] = known
    return known


def _of_added_rule(signature: Signature) -> Iterator[str]:
    """What the rule depends on, if it was added while this process runs; plugins' are part of the ground."""
    of = signature.args[1] if signature.op is ANNOTATE else signature.op
    if added.is_added(of):
        source = added.source_of(of)
        if source is None:
            raise NotPortable(f"rule of `{of}`, which is no function of a module's own,")
        yield source if isinstance(source, str) else _stamp(source)


def _of_graph(signature: Signature) -> str:
    """The nodes of a graph that is one operator: its name says nothing."""
    graph = signature.op.graph
    looks = _written((signature.faces, signature.outs))
    whole = "\n".join([looks, *map(_node, graph.nodes), str(graph.outputs)])
    return hashlib.sha256(whole.encode()).hexdigest()[:32]


def _written(x: Any) -> str:
    """`x` as text that is the same in every process, and different for what differs."""
    if x is None or isinstance(x, _PLAIN):
        return f"{x.__class__.__name__}:{x!r}"
    if isinstance(x, float):
        return x.hex()
    if isinstance(x, complex):
        return f"{x.real.hex()}+{x.imag.hex()}j"
    if isinstance(x, (list, tuple)):
        return f"{x.__class__.__name__}({','.join(map(_written, x))})"
    if isinstance(x, dict):
        return f"{{{','.join(f'{_written(k)}={_written(v)}' for k, v in x.items())}}}"
    if isinstance(x, Face):
        return f"{x.dtype}{x.shape}{x.strides}"
    if isinstance(x, Slot):
        return f"slot {x.index}"
    if isinstance(x, NumberSlot):
        return f"{x.kind.__name__} {x.index}"
    if isinstance(x, (_OVERLOAD, InternalOp)):
        return str(x)
    raise NotPortable(f"{x.__class__.__qualname__} in it")


_grounds: dict[int, str] = {}


def _ground(client: Client) -> str:
    """What every program of this client depends on. JAX's configuration may change between two programs."""
    known = _grounds.get(id(client))
    if known is None:
        known = _grounds[id(client)] = "\n".join(_fixed(client))
    config = sorted((k, repr(v)) for k, v in jax.config.values.items() if k not in _NO_MATTER)
    return f"{known}\n{config}"


# Settings of JAX that say where it looks, what it prints and how it caches, not what it compiles.
_NO_MATTER = frozenset(
    (
        "jax_compilation_cache_dir",
        "jax_enable_compilation_cache",
        "jax_explain_cache_misses",
        "jax_log_compiles",
        "jax_logging_level",
        "jax_platforms",
    )
)


def _fixed(client: Client) -> Iterator[str]:
    yield f"format {FORMAT}, Python {sys.version}"
    for name in ("torch", "jax", "jaxlib", "numpy"):
        yield f"{name} {version(name)}"
    chip = client.chip
    yield f"{client.device.name} {chip.device_kind} {chip.platform} {chip.client.platform_version}"
    yield f"machine {client.device.fingerprint()}"
    yield f"chips {len(chip.client.devices())}, chip {chip.id}"
    yield f"options {sorted(client.device.compile_options().items())}"
    yield f"flags {os.environ.get('XLA_FLAGS', '')} {os.environ.get('LIBTPU_INIT_ARGS', '')}"
    yield f"passes {[p.name for p in client.passes]}"
    for folder in sorted(_folders_of_plugins()):
        yield f"code {folder} {_stamp(folder)}"


def _folders_of_plugins() -> set[Path]:
    """The packages of the core and of all plugins: their rules and passes make the programs."""
    packages = {module.__name__.partition(".")[0] for module in host().plugins.values()}
    modules = [sys.modules[name] for name in {*packages, "torch_pjrt"}]
    return {
        Path(m.__file__).parent if hasattr(m, "__path__") else Path(m.__file__)
        for m in modules
        if m.__file__
    }


def _stamp(folder: Path) -> str:
    """A digest of the names, sizes and times of the sources: it changes when anybody edits one."""
    digest = hashlib.sha256()
    for path in sorted(_sources(folder)):
        found = path.stat()
        digest.update(f"{path}{found.st_size}{found.st_mtime_ns}".encode())
    return digest.hexdigest()


def _sources(folder: Path) -> Iterable[Path]:
    return folder.rglob("*.py") if folder.is_dir() else [folder]
