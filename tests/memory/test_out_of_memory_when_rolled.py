"""Rolled layers without room: an error, the process goes on, weights and optimizer state are whole."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import pytest
import torch
from torch import nn

import torch_pjrt
from fixture_types import Run
from torch_pjrt.client import stack_elements
from torch_pjrt.compile.programs import forget_programs
from torch_pjrt.observe.counters import counters

pjrt: Any = torch.pjrt  # type: ignore[attr-defined]
WIDTH, LAYERS = 8, 5
N = 200_000  # N x N floats are 160 GB
Step = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def rolled() -> Iterator[None]:
    before, torch_pjrt.config.roll_layers = torch_pjrt.config.roll_layers, "on"
    yield
    torch_pjrt.config.roll_layers = before


class Attending(nn.Module):
    """Of so many rows, it makes a square of that size."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear((x @ x.T).softmax(-1) @ x)


class Trained:
    """A model of repeated layers, and its steps."""

    def __init__(self, layer: Callable[[], nn.Module], how: str) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(*[layer() for _ in range(LAYERS)]).to("pjrt")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        compiled = torch.compile(self.model, backend="pjrt", dynamic=False)
        self.call = compiled if how == "compiled" else self.model
        of: dict[str, Callable[[Step], Any]] = {"captured": torch_pjrt.capture}
        self.step: Step = self.predict if how == "forward" else of.get(how, lambda f: f)(self.train)

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.call(x).square().mean()

    def train(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.call(x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def all(self) -> list[torch.Tensor]:
        state = [t for s in self.optimizer.state.values() for t in s.values()]
        return [*self.model.parameters(), *(t for t in state if t is not None)]

    def content(self) -> list[torch.Tensor]:
        return [t.detach().cpu().clone() for t in self.all()]


def same(x: list[torch.Tensor], y: list[torch.Tensor]) -> bool:
    return len(x) == len(y) and all(map(torch.equal, x, y))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["forward", "train", "captured", "compiled"])
def test_launch_without_room_is_an_error_and_the_weights_are_whole(how: str) -> None:
    forget_programs()
    loops = counters.loops
    trained = Trained(Attending, how)
    small = torch.randn(6, WIDTH).to("pjrt")
    for _ in range(4):
        trained.step(small).item()
    assert counters.loops > loops
    before = trained.content()

    with pytest.raises(torch.OutOfMemoryError, match="ran out of memory"):
        trained.step(torch.ones(N, WIDTH).to("pjrt")).item()

    assert same(trained.content(), before)
    assert pjrt.memory_allocated() < 1 << 32
    assert trained.step(small).isfinite().item()
    assert same(trained.content(), before) == (how == "forward")


def refused_in_python(*_: Any) -> Any:
    raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 12 bytes.")


def refused_in_c(*_: Any) -> Any:
    raise ValueError("RESOURCE_EXHAUSTED: Out of memory allocating 12 bytes.")


@jax.jit
def _without_room(like: jax.Array) -> jax.Array:
    column = jax.numpy.arange(N)[:, None] * like.ravel()[0]
    return like + (column @ column.T).sort(axis=0)[3, 5]


def failed_later(original: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return lambda *arguments: _without_room(original(*arguments))


REFUSALS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "in Python": lambda _: refused_in_python,
    "in C": lambda _: refused_in_c,
    "behind the host's back": failed_later,
}


@pytest.mark.slow("rows")
@pytest.mark.parametrize("how", ["forward", "train", "captured"])
@pytest.mark.parametrize("refusal", REFUSALS)
def test_stack_without_room_is_an_error_and_the_weights_are_whole(
    refusal: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first stack that has to be made, the second, ..., until all have been."""
    trained, twin = (Trained(lambda: nn.Linear(WIDTH, WIDTH), how) for _ in range(2))
    x = torch.randn(6, WIDTH).to("pjrt")
    for t in (trained, twin):
        for _ in range(4):
            t.step(x).item()
    original = stack_elements._stacked
    n_refused = 0
    for at in itertools.count():
        for t in (trained, twin):
            for tensor, content in zip(t.all(), t.content(), strict=True):
                tensor.data.copy_(content.to("pjrt"))  # each an array of its own
        torch_pjrt.sync()
        before, made = trained.content(), itertools.count()

        def stacked(arrays: Any, at: int = at, made: Iterator[int] = made) -> Any:
            return (REFUSALS[refusal](original) if next(made) == at else original)(arrays)

        with monkeypatch.context() as patched:
            patched.setattr(stack_elements, "_stacked", stacked)
            try:
                loss = trained.step(x).item()
            except torch.OutOfMemoryError:
                n_refused += 1
                assert same(trained.content(), before), at
                loss = None
        loss = trained.step(x).item() if loss is None else loss
        assert loss == twin.step(x).item(), at
        assert same(trained.content(), twin.content()), at
        if next(made) <= at:
            break
    assert n_refused >= 2


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize(
    "use",
    [
        lambda p: torch_pjrt.from_jax(torch_pjrt.to_jax(p)).cpu(),
        lambda p: (p * 2).cpu(),
        lambda p: p.__dlpack__(),
        lambda p: torch_pjrt.jax_function(lambda x: x + 1)(p).cpu(),
    ],
)
def test_element_of_a_stack_without_room_is_an_error_and_the_stack_is_whole(
    use: Callable[[torch.Tensor], object], refusal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = Trained(lambda: nn.Linear(WIDTH, WIDTH), "train")
    x = torch.randn(6, WIDTH).to("pjrt")
    for _ in range(3):
        trained.step(x).item()
    before = trained.content()
    [weight, *_] = trained.model.parameters()
    original = stack_elements._element

    with monkeypatch.context() as patched, pytest.raises(torch.OutOfMemoryError):
        patched.setattr(stack_elements, "_element", REFUSALS[refusal](original))
        use(weight.detach())

    assert same(trained.content(), before)
    use(weight.detach())
    assert trained.step(x).isfinite().item()


@pytest.mark.slow
def test_stack_that_the_system_has_no_memory_for_is_an_error(python: Run) -> None:
    """The limit is the system's own, so the process is another."""
    pytest.importorskip("resource")
    python(
        """
import resource, torch, torch_pjrt
from torch import nn
torch_pjrt.config.roll_layers = "on"
N, MB = 2048, 1 << 20

def leave(nbytes):
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    pages = int(open("/proc/self/statm").read().split()[0])
    now = pages * resource.getpagesize() + nbytes if nbytes is not None else hard
    resource.setrlimit(resource.RLIMIT_AS, (now, hard))

model = nn.Sequential(*[nn.Linear(N, N, bias=False) for _ in range(8)])
with torch.no_grad():
    for i, p in enumerate(model.parameters()):
        p.copy_(torch.eye(N) * (1 + i))
state = {name: x.clone() for name, x in model.state_dict().items()}
model, x = model.to("pjrt"), torch.ones(4, N).to("pjrt")

@torch.no_grad()
def run():
    return model(x).sum().item()

expected = [run(), run()]
assert torch_pjrt.report().as_dict()["stacks_made"] == 1
model.load_state_dict(state)
torch_pjrt.sync()
for _ in range(2):
    leave(60 * MB)
    try:
        run()
        raise SystemExit("128 MB fitted into 60")
    except torch.OutOfMemoryError as error:
        print(error)
    finally:
        leave(None)
for i, p in enumerate(model.parameters()):
    assert torch.equal(p.detach().cpu(), torch.eye(N) * (1 + i))
assert [run(), run()] == expected
""",
        MALLOC_MMAP_THRESHOLD_="1000000",
    )
