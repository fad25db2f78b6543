"""The ways to take a training step: one function each, which imports what it needs and no more.

A way is given a workload and weights, and gives a function of a batch, as NumPy arrays, that takes a step and
returns its loss, which `float` reads.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from models import RATE, Workload

Weights = dict[str, np.ndarray]
Train = Callable[[np.ndarray, np.ndarray], Any]


@dataclass
class Traced:
    """How long recording has taken, in seconds, where a way records; added up by the way itself."""

    seconds: float | None = None

    def add(self, seconds: float) -> None:
        self.seconds = (self.seconds or 0.0) + seconds


@dataclass(frozen=True)
class Way:
    """One way: its name in tables, what makes its step, and the interpreter that it runs under.

    python   the environment variable that names an interpreter with what this way needs; none: this one.
    tree     the environment variable that names a checkout whose packages it has; none: those installed.
    """

    title: str
    make: Callable[[Workload, Weights, Path, Traced], Train]
    python: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    tree: str = ""

    def missing(self) -> list[str]:
        """The variables that it needs and that are not set."""
        return [name for name in (self.python, self.tree) if name and name not in os.environ]

    def environment(self) -> dict[str, str]:
        """Of its process."""
        added = dict(self.settings)
        if self.tree:
            packages = Path(os.environ[self.tree], "packages").glob("*/src")
            added["PYTHONPATH"] = os.pathsep.join(map(str, packages))
        return {**os.environ, **added}


def _keep_programs_of_jax(folder: Path) -> None:
    import jax

    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def by_jax(workload: Workload, weights: Weights, cache: Path, _: Traced) -> Train:
    _keep_programs_of_jax(cache / "jax")
    from jax_step import stepping

    return stepping(workload, weights)


def by_jax_scanned(workload: Workload, weights: Weights, cache: Path, _: Traced) -> Train:
    """Only for models with equal layers."""
    _keep_programs_of_jax(cache / "jax_scanned")
    from jax_step import stepping

    return stepping(workload, weights, scanned=True)


def _model(workload: Workload, weights: Weights) -> Any:
    import torch

    model = workload.build()
    model.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
    return model.train()


def _batches_to(device: Any) -> Callable[..., Any]:
    import torch

    def to(batch: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(batch)
        return (tensor if tensor.is_floating_point() else tensor.long()).to(device)

    return to


def training(
    workload: Workload, model: Any, compiled: Callable[[Any], Any] | None = None, **how: Any
) -> Callable[[Any, Any], Any]:
    """The step as people write it, of tensors that are on the device."""
    optimizer = workload.optimizer(model.parameters(), **how)

    def loss_of(x: Any, targets: Any) -> Any:
        return workload.loss(model(x), targets)

    loss_of = compiled(loss_of) if compiled else loss_of

    def train(x: Any, targets: Any) -> Any:
        optimizer.zero_grad()
        loss = loss_of(x, targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return train


def by_eager(workload: Workload, weights: Weights, _: Path, __: Traced) -> Train:
    train, to = training(workload, _model(workload, weights)), _batches_to("cpu")
    return lambda x, targets: train(to(x), to(targets))


def by_inductor(workload: Workload, weights: Weights, cache: Path, _: Traced) -> Train:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache / "inductor")
    import torch

    train = training(workload, _model(workload, weights), torch.compile)
    to = _batches_to("cpu")
    return lambda x, targets: train(to(x), to(targets))


def by_pjrt(workload: Workload, weights: Weights, cache: Path, traced: Traced) -> Train:
    os.environ["TORCH_PJRT_CACHE_DIR"] = str(cache / "pjrt")
    from torch_pjrt.observe.counters import counters

    model = _model(workload, weights).to("pjrt")
    train, to = training(workload, model), _batches_to("pjrt")

    def step(x: np.ndarray, targets: np.ndarray) -> Any:
        batch = to(x), to(targets)
        start, synced = time.perf_counter(), counters.sync_s
        loss = train(*batch)
        traced.add(time.perf_counter() - start - (counters.sync_s - synced))
        return loss

    return step


def by_compiled(workload: Workload, weights: Weights, cache: Path, _: Traced) -> Train:
    """Forward, backward and optimizer in one function."""
    os.environ["TORCH_PJRT_CACHE_DIR"] = str(cache / "compiled")
    import torch

    model = _model(workload, weights).to("pjrt")
    train = torch.compile(training(workload, model), backend="pjrt")
    to = _batches_to("pjrt")
    return lambda x, targets: train(to(x), to(targets))


def by_compiled_model(workload: Workload, weights: Weights, cache: Path, _: Traced) -> Train:
    """The loss is compiled; the optimizer is as it was."""
    os.environ["TORCH_PJRT_CACHE_DIR"] = str(cache / "compiled_model")
    import torch

    def compiled(function: Any) -> Any:
        return torch.compile(function, backend="pjrt")

    model = _model(workload, weights).to("pjrt")
    train, to = training(workload, model, compiled), _batches_to("pjrt")
    return lambda x, targets: train(to(x), to(targets))


def by_kept_model(workload: Workload, weights: Weights, cache: Path, traced: Traced) -> Train:
    """As `by_compiled_model`. PyTorch keeps what Dynamo found: it is saved behind the first step."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache / "kept")
    import torch

    train = by_compiled_model(workload, weights, cache / "kept", traced)
    saved: list[Any] = []

    def step(x: np.ndarray, targets: np.ndarray) -> Any:
        loss = train(x, targets)
        if not saved:
            saved.append(torch.compiler.save_cache_artifacts())
        return loss

    return step


def by_capture(workload: Workload, weights: Weights, cache: Path, _: Traced) -> Train:
    os.environ["TORCH_PJRT_CACHE_DIR"] = str(cache / "captured")
    import torch_pjrt

    model = _model(workload, weights).to("pjrt")
    how: dict[str, Any] = {"capturable": True} if workload.adam else {}
    train, to = torch_pjrt.capture(training(workload, model, **how)), _batches_to("pjrt")
    return lambda x, targets: train(to(x), to(targets))


def _by_torch_xla(
    workload: Workload, weights: Weights, cache: Path, traced: Traced, backend: str = ""
) -> Train:
    import torch

    import torch_xla
    import torch_xla.runtime

    if torch_xla.__version__.endswith("+pjrt"):
        raise RuntimeError(
            "this Python's torch_xla is torch-pjrt-xla-compat, which is not compared"
        )
    torch_xla.runtime.initialize_cache(str(cache / f"torch_xla{backend}"), readonly=False)
    device = torch_xla.device()
    model = _model(workload, weights).to(device)

    def compiled(function: Any) -> Any:
        return torch.compile(function, backend=backend)

    train, to = training(workload, model, compiled if backend else None), _batches_to(device)

    def step(x: np.ndarray, targets: np.ndarray) -> Any:
        batch = to(x), to(targets)
        start = time.perf_counter()
        loss = train(*batch)
        if not backend:  # with Dynamo it is in part compiling, in part running
            traced.add(time.perf_counter() - start)
        torch_xla.sync()
        return loss

    return step


def by_torch_xla(workload: Workload, weights: Weights, cache: Path, traced: Traced) -> Train:
    return _by_torch_xla(workload, weights, cache, traced)


def by_torch_xla_dynamo(workload: Workload, weights: Weights, cache: Path, traced: Traced) -> Train:
    return _by_torch_xla(workload, weights, cache, traced, "openxla")


def by_torchax(workload: Workload, weights: Weights, cache: Path, _: Traced) -> Train:
    """With its own helper for training steps, jitted; it leaves running statistics as they are."""
    _keep_programs_of_jax(cache / "torchax")
    import optax  # pyright: ignore[reportMissingImports]
    import torch
    import torchax  # pyright: ignore[reportMissingImports]
    from torchax import interop  # pyright: ignore[reportMissingImports]
    from torchax.train import make_train_step  # pyright: ignore[reportMissingImports]

    from models import DECAY, MOMENTUM, SGD_RATE

    torchax.enable_globally()
    model = _model(workload, weights).to("jax")
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    optimizer: Any = optax.adamw(RATE, weight_decay=1e-2)
    if not workload.adam:
        decay = optax.add_decayed_weights(DECAY)
        optimizer = optax.chain(decay, optax.sgd(SGD_RATE, momentum=MOMENTUM, nesterov=True))
    state = interop.call_jax(optimizer.init, parameters)

    def forward(weights: Any, buffers: Any, x: Any) -> Any:
        return torch.func.functional_call(model, {**weights, **buffers}, (x,))

    step = make_train_step(forward, workload.loss, optimizer)
    step = interop.jax_jit(step, kwargs_for_jax_jit={"donate_argnums": (0, 2)})
    to = _batches_to("jax")

    def train(x: np.ndarray, targets: np.ndarray) -> Any:
        nonlocal parameters, state
        loss, parameters, state = step(parameters, buffers, state, to(x), to(targets))
        return loss

    return train


_XLA, _TORCHAX = "PYTHON_WITH_TORCH_XLA", "PYTHON_WITH_TORCHAX"
_BEFORE = "TREE_BEFORE"
WAYS = {
    "jax": Way("JAX, hand-written", by_jax),
    "jax_scanned": Way("JAX, layers scanned, kept stacked", by_jax_scanned),
    "pjrt": Way('PyTorch, "pjrt"', by_pjrt),
    "compiled": Way('PyTorch, "pjrt", step compiled', by_compiled),
    "compiled_model": Way('PyTorch, "pjrt", model compiled', by_compiled_model),
    "kept_model": Way(
        'PyTorch, "pjrt", model compiled, trace kept',
        by_kept_model,
        settings={"TORCH_CACHING_PRECOMPILE": "1"},
    ),
    "captured": Way('PyTorch, "pjrt", captured', by_capture),
    "pjrt_before": Way('PyTorch, "pjrt", before', by_pjrt, tree=_BEFORE),
    "compiled_before": Way('PyTorch, "pjrt", step compiled, before', by_compiled, tree=_BEFORE),
    "captured_before": Way('PyTorch, "pjrt", captured, before', by_capture, tree=_BEFORE),
    "rolled": Way(
        'PyTorch, "pjrt", captured, layers rolled', by_capture, "", {"TORCH_PJRT_ROLL_LAYERS": "on"}
    ),
    "unrolled": Way(
        'PyTorch, "pjrt", captured, not rolled', by_capture, "", {"TORCH_PJRT_ROLL_LAYERS": "off"}
    ),
    "eager": Way("PyTorch, eager CPU", by_eager),
    "inductor": Way("PyTorch, torch.compile", by_inductor),
    "torch_xla": Way("torch_xla, lazy", by_torch_xla, _XLA, {"PJRT_DEVICE": "CPU"}),
    "torch_xla_dynamo": Way(
        "torch_xla, torch.compile", by_torch_xla_dynamo, _XLA, {"PJRT_DEVICE": "CPU"}
    ),
    "torchax": Way(
        "torchax, jitted",
        by_torchax,
        _TORCHAX,
        {"JAX_PLATFORMS": "cpu", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    ),
}
