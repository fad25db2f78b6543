"""Fingerprints: what a compiled program depends on, as a digest that is the same in another process.

In a process a program is found by numbers and identities, which mean nothing in the next one. Here all
of it is written out: every operator with its arguments, shapes and dtypes, the wiring, the outputs, what is
donated, the constants; and the ground it stands on: versions, plugins, device, options.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import jax
import torch

from torch_pjrt.caches import Cache
from torch_pjrt.client import partition
from torch_pjrt.client.client import Client
from torch_pjrt.client.shardings import Sharding
from torch_pjrt.compile.portable import (
    VERSIONED,
    NotPortable,
    package_of,
    portable_text,
    stamp,
    written,
)
from torch_pjrt.compile.precision import in_force
from torch_pjrt.graph.graph import Graph, Node, Number
from torch_pjrt.graph.signature import FunctionOp, GraphOp, Signature
from torch_pjrt.lowering import CORE, added
from torch_pjrt.lowering.value_annotations import ANNOTATE
from torch_pjrt.observe.lines import are_in_programs
from torch_pjrt.plugin.host import host
from torch_pjrt.session import session
from torch_pjrt.settings import settings

# Grows when what is written to disk, or how it is found, changes.
FORMAT = 5


def of_program(
    graph: Graph,
    arrays: Sequence[jax.Array],
    donated: Sequence[int],
    n_seedings: int,
    client: Client,
    shardings: Sequence[Sharding | None] | None = None,
) -> str:
    """The digest of what will be compiled, 64 hexadecimal digits. `NotPortable` where there is none.

    shardings   of the results, None where XLA decides; not given: all on the client's chip.
    """
    digest = hashlib.sha256(_ground(client).encode())
    for part in _parts(graph, arrays, donated, n_seedings):
        digest.update(part.encode())
        digest.update(b"\n")
    for part in map(_placed, shardings or ()):
        digest.update(part.encode())
        digest.update(b"\n")
    return digest.hexdigest()


def of_text(text: str) -> str:
    """The digest of a text, 64 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def _parts(
    graph: Graph, arrays: Sequence[jax.Array], donated: Sequence[int], n_seedings: int
) -> Iterator[str]:
    for array in arrays:
        yield f"{array.dtype}{array.shape}{_placed(array.sharding)}"
    yield from map(_node, graph.nodes)
    yield f"outputs {graph.outputs} donated {tuple(donated)} seedings {n_seedings}"
    yield f"products of float32: {in_force()}"
    yield f"repeated layers: {settings.roll_layers}"
    yield f"options {sorted(settings.compile_options.items())}"
    if own := partition.own_passes([array.sharding for array in arrays]):
        yield f"passes {own}"


def _placed(sharding: Sharding | None) -> str:
    """Where an array lies, if that is not the client's chip; None: XLA decides."""
    if sharding is None:
        return "anywhere"
    if len(sharding.device_set) == 1:
        return ""
    partitioner = partition.chosen.partitioner
    text = partitioner.written(sharding) if partitioner is not None else None
    if text is None:
        raise NotPortable("array on several chips")
    return f" {text}"


def _node(node: Node) -> str:
    numbers = ",".join(map(_number, node.numbers))
    draw = f" draw {node.draw.seeding}.{node.draw.index}" if node.draw is not None else ""
    line = f" {node.line!r}" if are_in_programs() else ""
    return f"{_of_signature(node.signature)} {node.inputs} {node.outputs} {numbers}{draw}{line}"


def outline(graph: Graph) -> list[str]:
    """A text for each node of a graph, equal in processes where it computes the same from the same.

    What cannot be told by a text, a JAX function say, is known by its name.

        >>> with recorded(torch.sin, [torch.empty(3)]) as step:
        ...     len(outline(graph_of(step.tape, step.outputs)))
        1
    """
    texts = []
    for node in graph.nodes:
        try:
            text = _node(node)
        except NotPortable:
            text = f"{node.inputs} {node.outputs} {node.signature.specs} {node.signature.outs}"
        texts.append(f"{node.op} {text}")
    return texts


def _number(number: Number) -> str:
    return f"{number.kind.__name__}{number.index}={written(number.value)}"


_signatures: Cache[int, str] = Cache("signatures as text", most=65_536)


def _of_signature(signature: Signature) -> str:
    """Written out once for each signature of this process, as a digest."""
    if isinstance(signature.op, GraphOp):
        return _of_graph_op(signature)
    if isinstance(signature.op, FunctionOp):
        return _of_function_op(signature, signature.op)
    known = _signatures.get(signature.number)
    if known is None:
        s = signature
        look = (
            s.op,
            s.args,
            s.kwargs,
            s.specs,
            s.outs,
            s.random,
            s.returns,
            s.dropped,
            s.precision,
            *(() if s.default_dtype is torch.float32 else (s.default_dtype,)),
            *_of_added_rule(s),
        )
        known = hashlib.sha256(written(look).encode()).hexdigest()[:32]
        _signatures[signature.number] = known
    return known


def _of_added_rule(signature: Signature) -> Iterator[str]:
    """What the rule depends on, if it was added while this process runs; plugins' are part of the ground."""
    of = signature.args[1] if signature.op is ANNOTATE else signature.op
    if added.is_added(of):
        source = added.source_of(of)
        if source is None:
            raise NotPortable(f"rule of `{of}`, which is no function of a module's own,")
        yield source if isinstance(source, str) else stamp(source)


def _of_graph_op(signature: Signature) -> str:
    """The nodes of a graph that is one operator: its name says nothing."""
    looks = written((signature.specs, signature.outs))
    return _digest(looks, _graph(signature.op.graph))


def _of_function_op(signature: Signature, op: FunctionOp) -> str:
    """The code of an operator that is a function, and what else it depends on, where that is said."""
    if op.of is None:
        raise NotPortable(f"`{op.name}`, a function of this process,")
    looks = written((signature.specs, signature.outs))
    return _digest(
        looks,
        portable_text(op.compute, f"`{op.name}`"),
        *(_graph(x) if isinstance(x, Graph) else written(x) for x in op.of),
    )


def _graph(graph: Graph) -> str:
    return "\n".join([written(graph.inputs), *map(_node, graph.nodes), str(graph.outputs)])


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


_grounds: dict[int, str] = session.own("what all programs of a client depend on", {})


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
    for name in VERSIONED:
        yield f"{name} {version(name)}"
    chip = client.chip
    yield f"{client.device.name} {chip.device_kind} {chip.platform} {chip.client.platform_version}"
    yield f"machine {client.device.fingerprint()}"
    yield f"chips {len(chip.client.devices())}, chip {chip.id}"
    yield f"options {sorted(client.device.compile_options().items())}"
    yield f"flags {os.environ.get('XLA_FLAGS', '')} {os.environ.get('LIBTPU_INIT_ARGS', '')}"
    yield f"capabilities {portable_text(client.capabilities, 'capabilities')} {client.donates}"
    yield f"passes {[portable_text(p, f'pass `{p.name}`') for p in client.passes]}"
    yield from _rules_of_plugins(client)
    for folder in sorted(_folders_of_plugins()):
        yield f"code {folder} {stamp(folder)}"


def _rules_of_plugins(client: Client) -> Iterator[str]:
    """What plugins' rules were made with, beside the code: a rule may be a function made by another."""
    for op, row in client.lowerings.items():
        if row is not CORE.get(op) and not added.is_added(op):
            rule = portable_text(row.rule, f"rule of `{op}`")
            yield f"rule of {op}: {rule} {sorted(row.static)} {row.random}"


def _folders_of_plugins() -> set[Path]:
    """The packages of the core and of all plugins: their rules and passes make the programs."""
    modules = ("torch_pjrt", *(module.__name__ for module in host().plugins.values()))
    return {folder for module in modules if (folder := package_of(module)) is not None}
