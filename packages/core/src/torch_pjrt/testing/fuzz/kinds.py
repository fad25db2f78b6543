"""How a program is run: as it is, differentiated, transformed, compiled, captured, as a model that trains.

A kind makes a program from a random number generator and runs it on a device; what it gives is compared.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from torch_pjrt.testing.fuzz.generate import program
from torch_pjrt.testing.fuzz.program import Observed, Program, Raised

CALLS = 5  # of a captured or compiled step


class Kind(NamedTuple):
    """`make` draws a program; `run` runs it on a device, from copies of its inputs."""

    make: Callable[[random.Random], Program]
    run: Callable[[Program, str], Observed]


def _guarded(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:
        return Raised.of(error)


def _plain(made: Program, device: str) -> Observed:
    """Statement by statement; all tensors are looked at in the end, so that writes through views show."""
    env: list[Any] = list(made.placed(device))
    with torch.no_grad():
        for statement in made.statements:
            env.append(_guarded(lambda statement=statement: statement.run(env)))
    return Observed(env)


def _eighths(x: torch.Tensor) -> torch.Tensor:
    values = torch.arange(x.numel(), dtype=torch.float64).add(5).remainder(13).sub(6).div(8)
    return values.reshape(x.shape).to(x.dtype).to(x.device)


def _loss(outputs: Any) -> torch.Tensor | None:
    terms = [
        (y * _eighths(y)).sum().double()
        for y in tree_leaves(outputs)
        if isinstance(y, torch.Tensor) and y.is_floating_point() and y.requires_grad
    ]
    return torch.stack(terms).sum() if terms else None


def _body(made: Program, inputs: list[torch.Tensor]) -> list[Any]:
    env: list[Any] = list(inputs)
    for statement in made.statements:
        env.append(statement.run(env))
    return env[len(inputs) :]


def _differentiated(made: Program, device: str, order: int) -> Observed:
    inputs = made.placed(device)

    def run() -> Any:
        # Leaves may not be written to: the program works on copies.
        outputs = _body(made, [x * 1 if x.requires_grad else x for x in inputs])
        loss = _loss(outputs)
        wanting = [x for x in inputs if x.requires_grad]
        if loss is None or not wanting:
            return outputs
        grads = torch.autograd.grad(loss, wanting, create_graph=order > 1, allow_unused=True)
        if order > 1:
            loss = _loss([g for g in grads if g is not None])
            if loss is not None:
                grads += torch.autograd.grad(loss, wanting, allow_unused=True)
        return outputs, grads

    return Observed([_guarded(run)])


def _transformed(made: Program, device: str) -> Observed:
    """`torch.func`: jvp, vjp, and vmap of the gradient over a batch of the first input."""
    inputs = [x.detach() for x in made.placed(device)]
    rest = inputs[1:]

    def scalar(x: torch.Tensor) -> torch.Tensor:
        outputs = _body(made, [x, *rest])
        terms = [
            (y * _eighths(y)).sum().double()
            for y in tree_leaves(outputs)
            if isinstance(y, torch.Tensor) and y.is_floating_point()
        ]
        return torch.stack([x.sum().double() * 0, *terms]).sum()

    x = inputs[0]
    batch = torch.stack([x, x * 0.5, x - 1])
    func: Any = torch.func
    return Observed(
        [
            _guarded(lambda: func.jvp(scalar, (x,), (_eighths(x),))),
            _guarded(lambda: func.grad(scalar)(x)),
            _guarded(lambda: func.vmap(func.grad(scalar))(batch)),
            _guarded(lambda: func.jacrev(lambda y: scalar(y).reshape(1))(x)),
        ]
    )


def _repeated(made: Program, device: str, wrap: Callable[[Callable[..., Any]], Any]) -> Observed:
    """A step called several times; it writes to its inputs."""
    inputs = made.placed(device)

    def step(*inputs: torch.Tensor) -> Any:
        with torch.no_grad():
            return [
                y for y in tree_leaves(_body(made, list(inputs))) if isinstance(y, torch.Tensor)
            ]

    step = wrap(step) if device != "cpu" else step
    results = []
    for _ in range(CALLS):
        # Read at once: what the device refuses, it tells with the next read.
        result = _guarded(lambda: [y.detach().cpu().clone() for y in step(*inputs)])
        results.append(result)
        if isinstance(result, Raised):
            # The CPU has written up to what raised, the device has not stopped: no values to compare.
            return Observed([*results, *[_guarded(lambda x=x: x.cpu().shape) for x in inputs]])
    return Observed([*results, *inputs])


def _captured(made: Program, device: str) -> Observed:
    import torch_pjrt

    return _repeated(made, device, torch_pjrt.capture)


def _compiled(made: Program, device: str) -> Observed:
    torch._dynamo.reset()
    return _repeated(made, device, lambda f: torch.compile(f, backend="pjrt", dynamic=False))


class Gated(nn.Module):
    """A layer with a parameter of its own and a gate."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, n))
        self.linear = nn.Linear(n, n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + torch.sigmoid(self.linear(x)) * x.mean(-1, keepdim=True)


class Attention(nn.Module):
    """Causal attention with two heads."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(n, 3 * n), nn.Linear(n, n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        *batch, length, width = x.shape
        q, k, v = (
            y.reshape(*batch, length, 2, width // 2).transpose(-2, -3)
            for y in self.qkv(x).chunk(3, -1)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(-2, -3).reshape(*batch, length, width))


class Residual(nn.Module):
    """x + f(x)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.3 * self.inner(x)


LAYERS: tuple[Callable[[int], nn.Module], ...] = (
    lambda n: nn.Linear(n, n),
    lambda n: nn.Linear(n, n, bias=False),
    nn.LayerNorm,
    nn.RMSNorm,
    lambda n: nn.GELU(),
    lambda n: nn.SiLU(),
    lambda n: nn.Tanh(),
    lambda n: nn.Sequential(nn.Linear(n, 2 * n), nn.ReLU(), nn.Linear(2 * n, n)),
    lambda n: nn.Sequential(nn.Linear(n, 2 * n), nn.GLU()),
    lambda n: nn.Softplus(),
    Gated,
    Attention,
)
OPTIMIZERS: tuple[Callable[[Any], torch.optim.Optimizer], ...] = (
    lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
    lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
    lambda p: torch.optim.Adam(p, 1e-2),
    lambda p: torch.optim.AdamW(p, 1e-2, amsgrad=True),
    lambda p: torch.optim.RMSprop(p, 1e-2, centered=True),
    lambda p: torch.optim.NAdam(p, 1e-2),
    lambda p: torch.optim.Adagrad(p, 1e-2),
)
# The last one counts its steps on the host, whatever the device.
CAPTURABLE = OPTIMIZERS[:-1]


def _trained(made: Program, device: str) -> Observed:
    """A random model, trained for a few steps in float64; the program's kind says how.

    Captured steps are compared with the same steps of the device: an optimizer that can be captured counts
    in float32, and on the CPU there is none.
    """
    captures = made.kind == "trained captured" and device != "cpu"
    if made.kind == "trained captured":
        device = "pjrt"
    rng = random.Random(made.inputs[0].item())
    torch.manual_seed(rng.randrange(1 << 30))
    width = rng.choice([4, 6])
    kinds = [rng.choice(LAYERS) for _ in range(rng.randint(2, 4))]
    n_blocks = 13 if made.kind == "rolled" else 1
    blocks = [Residual(nn.Sequential(*[k(width) for k in kinds])) for _ in range(n_blocks)]
    model = nn.Sequential(nn.Linear(3, width), *blocks, nn.Linear(width, 2)).double().to(device)
    make = rng.choice(CAPTURABLE if made.kind == "trained captured" else OPTIMIZERS)
    optimizer = make(model.parameters())
    shape = rng.choice([(4, 3), (2, 5, 3)])
    batches = [torch.randn(shape, dtype=torch.float64) for _ in range(CALLS)]
    clips, accumulates = rng.random() < 0.3, rng.random() < 0.3

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad(set_to_none=not accumulates)
        return loss.detach()

    if device != "cpu" and made.kind == "trained compiled":
        torch._dynamo.reset()
        model.compile(backend="pjrt", dynamic=False)
    if made.kind == "trained captured":
        for group in optimizer.param_groups:
            group["capturable"] = True
    if captures:
        import torch_pjrt

        step = torch_pjrt.capture(step)
    losses = _guarded(lambda: [step(x.to(device)).clone() for x in batches])
    state = [v for s in optimizer.state.values() for v in s.values()]
    return Observed([losses, list(model.state_dict().values()), state])


def _seeded(kind: str) -> Callable[[random.Random], Program]:
    return lambda rng: Program(kind, [torch.tensor(rng.randrange(1 << 30))])


def _pure(kind: str, length: int, **shares: Any) -> Callable[[random.Random], Program]:
    settings = {"writes": 0.0, "errors": 0.0, "grad": False, **shares}
    return lambda rng: program(rng, kind, rng.randint(3, length), **settings)


KINDS: dict[str, Kind] = {
    "plain": Kind(_pure("plain", 25, writes=0.3, errors=0.15), _plain),
    "gradient": Kind(
        _pure("gradient", 10, writes=0.15, grad=True), lambda p, d: _differentiated(p, d, 1)
    ),
    "second": Kind(_pure("second", 6, grad=True), lambda p, d: _differentiated(p, d, 2)),
    "func": Kind(_pure("func", 5), _transformed),
    "captured": Kind(_pure("captured", 10, writes=0.3), _captured),
    "compiled": Kind(_pure("compiled", 8, writes=0.2), _compiled),
    "trained": Kind(_seeded("trained"), _trained),
    "trained captured": Kind(_seeded("trained captured"), _trained),
    "trained compiled": Kind(_seeded("trained compiled"), _trained),
    "rolled": Kind(_seeded("rolled"), _trained),
}
