"""What surrounds modules works on the device: `nn.utils`, packed sequences, complex parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune, rnn

from module_cases import module_case
from module_rows import floats
from quickly import compiled_quickly  # noqa: F401  all tests here
from sides import DEVICE, differences, on_both


def work(device: str, model: nn.Module) -> dict[str, Any]:
    """Gradients of a model, so that there is something to clip."""
    (model(torch.linspace(-1, 3, 12).double().view(4, 3).to(device)) ** 2).sum().backward()
    return {k: p.grad for k, p in model.named_parameters()}


def clipped(device: str, model: nn.Module, clip: Callable[[Any], Any]) -> dict[str, Any]:
    return {"before": work(device, model), "returned": clip(model.parameters())} | {
        k: p.grad for k, p in model.named_parameters()
    }


def pruned(device: str, model: Any, how: Callable[[nn.Module], Any]) -> dict[str, Any]:
    how(model[0])
    results = work(device, model) | dict(model.named_buffers())
    prune.remove(model[0], "weight")
    return results | model.state_dict()


def one_vector(device: str, model: nn.Module) -> dict[str, Any]:
    vector = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(vector * 2, model.parameters())
    return {"vector": vector, **model.state_dict()}


def called_with_other_parameters(device: str, model: nn.Module) -> dict[str, Any]:
    others = {k: p.detach() * 2 for k, p in model.named_parameters()}
    x = torch.ones(2, 3, dtype=torch.float64, device=device)
    return {"with others": torch.func.functional_call(model, others, (x,)), "own": model(x)}


def fused(device: str, model: nn.Module) -> dict[str, Any]:
    torch.manual_seed(0)
    parts = (nn.Conv2d(2, 3, 3).eval().to(device), nn.BatchNorm2d(3).eval().to(device))
    both = nn.utils.fusion.fuse_conv_bn_eval(*parts)
    return {"fused": both(torch.ones(1, 2, 5, 5, device=device)), **both.state_dict()}


#   name   what is done to a model of two linear layers
UTILITIES: dict[str, Callable[[str, Any], dict[str, Any]]] = {
    "clip_grad_norm_": lambda d, m: clipped(d, m, lambda p: nn.utils.clip_grad_norm_(p, 1.0)),
    "clip_grad_norm_ of infinity": lambda d, m: clipped(
        d, m, lambda p: nn.utils.clip_grad_norm_(p, 1.0, float("inf"))
    ),
    "clip_grad_norm_ one by one": lambda d, m: clipped(
        d, m, lambda p: nn.utils.clip_grad_norm_(p, 1.0, foreach=False)
    ),
    "clip_grad_value_": lambda d, m: clipped(d, m, lambda p: nn.utils.clip_grad_value_(p, 0.5)),
    "get_total_norm": lambda d, m: {"norm": nn.utils.get_total_norm(list(m.parameters()))},
    "l1 pruning": lambda d, m: pruned(d, m, lambda x: prune.l1_unstructured(x, "weight", 0.4)),
    "structured pruning": lambda d, m: pruned(
        d, m, lambda x: prune.ln_structured(x, "weight", 1, n=2, dim=0)
    ),
    "pruning by a mask": lambda d, m: pruned(
        d, m, lambda x: prune.custom_from_mask(x, "weight", torch.eye(3, device=d))
    ),
    "parameters_to_vector": one_vector,
    "functional_call": called_with_other_parameters,
    "fuse_conv_bn_eval": fused,
    "weight_norm": lambda d, m: work(d, nn.Sequential(parametrizations.weight_norm(m[0]), m[2])),
    "orthogonal, cayley": lambda d, m: work(
        d, parametrizations.orthogonal(m[0], orthogonal_map="cayley")
    ),
    "orthogonal, exponential": lambda d, m: work(
        d, parametrizations.orthogonal(m[0], orthogonal_map="matrix_exp", use_trivialization=False)
    ),
}


@pytest.mark.filterwarnings("ignore:.*runs on the CPU:UserWarning")
@pytest.mark.parametrize("name", UTILITIES)
def test_utility_does_what_it_does_on_cpu(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)).double()

    def on(device: str) -> dict[str, Any]:
        return UTILITIES[name](device, copy.deepcopy(model).to(device))

    assert not differences([on_both(name, on)])


class Packed(nn.Module):
    """A recurrent net over sequences of other lengths, padded again."""

    def __init__(self, net: nn.Module, *, enforce_sorted: bool) -> None:
        super().__init__()
        self.net, self.enforce_sorted = net, enforce_sorted

    def forward(self, x: torch.Tensor, lengths: list[int]) -> Any:
        packed = rnn.pack_padded_sequence(x, torch.tensor(lengths), True, self.enforce_sorted)
        y, state = self.net(packed)
        return *rnn.pad_packed_sequence(y, batch_first=True, padding_value=-1.0), state


NETS: dict[str, Callable[[], nn.Module]] = {
    "LSTM": lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True),
    "GRU": lambda: nn.GRU(3, 4),
    "RNN": lambda: nn.RNN(3, 4, nonlinearity="relu"),
}


@pytest.mark.slow("rows")
@pytest.mark.filterwarnings("ignore:.*runs on the CPU:UserWarning")
@pytest.mark.parametrize("lengths", [[5, 3, 2], [2, 5, 4]], ids=["sorted", "unsorted"])
@pytest.mark.parametrize("net", NETS)
def test_packed_sequences_give_what_they_give_on_cpu(net: str, lengths: list[int]) -> None:
    torch.manual_seed(0)
    module = Packed(NETS[net](), enforce_sorted=lengths == sorted(lengths, reverse=True))

    assert not differences([module_case(net, module, (floats(3, 5, 3), lengths), {})])


COMPLEX: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Linear": (lambda: nn.Linear(3, 4, dtype=torch.complex64), (2, 3)),
    "Conv1d": (lambda: nn.Conv1d(2, 3, 3, dtype=torch.complex64), (2, 2, 6)),
    "Tanh": (lambda: nn.Sequential(nn.Linear(3, 3, dtype=torch.complex64), nn.Tanh()), (2, 3)),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_modules_give_what_they_give_on_cpu(name: str) -> None:
    torch.manual_seed(0)
    make, shape = COMPLEX[name]
    x = torch.complex(floats(*shape).detach(), floats(*shape, seed=1).detach()).requires_grad_()

    assert not differences([module_case(name, make(), (x,), {})])


EINSUMS: list[tuple[str, list[tuple[int, ...]]]] = [
    ("ij,jk->ik", [(2, 3), (3, 4)]),
    ("bij,bjk,bkl->bil", [(2, 3, 4), (2, 4, 5), (2, 5, 2)]),
    ("ii->i", [(3, 3)]),
    ("...i,...i->...", [(2, 3, 4), (3, 4)]),
    ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
    ("i,j->ij", [(3,), (4,)]),
    ("ijk->", [(2, 3, 4)]),
]


@pytest.mark.parametrize(("equation", "shapes"), EINSUMS, ids=[e for e, _ in EINSUMS])
def test_einsum_gives_what_it_gives_on_cpu(equation: str, shapes: list[tuple[int, ...]]) -> None:
    def on(device: str) -> dict[str, Any]:
        given = [floats(*s, seed=i).detach().to(device) for i, s in enumerate(shapes)]
        given = [t.requires_grad_() for t in given]
        y = torch.einsum(equation, *given)
        return {"y": y, "gradients": torch.autograd.grad(y.sum(), given)}

    assert not differences([on_both(equation, on)])


#   initializer    what its values must be
INITIALIZERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "xavier_uniform_": lambda w: w.std() * (200 / 2) ** 0.5,
    "xavier_normal_": lambda w: w.std() * (200 / 2) ** 0.5,
    "kaiming_uniform_": lambda w: w.std() * (100 / 2) ** 0.5,
    "kaiming_normal_": lambda w: w.std() * (100 / 2) ** 0.5,
    "trunc_normal_": lambda w: w.std() / 0.88,  # of a normal number between -2 and 2
    "orthogonal_": lambda w: (w @ w.T).diagonal().mean(),
}


@pytest.mark.parametrize("name", INITIALIZERS)
def test_initializers_have_the_scale_that_they_promise(name: str) -> None:
    torch.manual_seed(0)
    weight = torch.empty(100, 100, device=DEVICE)

    getattr(nn.init, name)(weight)

    assert INITIALIZERS[name](weight).item() == pytest.approx(1, rel=0.05)
