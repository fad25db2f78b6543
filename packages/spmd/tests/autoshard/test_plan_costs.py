"""Plans cost what one works out by hand: bytes, kinds and counts of collectives, and what each takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from torch_pjrt_spmd import Chip, Plan, auto_shard
from torch_pjrt_spmd.autoshard.network import PICO, network_of

ALPHA, BETA = 3e-6, 2e10
CHIP = Chip("round", {16: 1e14, 32: 1e14}, 2**36, 1e12, BETA, ALPHA, BETA / 10, 10 * ALPHA, 1.0)
BATCH, WIDTH, INNER, N = 64, 32, 128, 8
FLOAT = 4


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDTH, INNER, bias=False), nn.ReLU(), nn.Linear(INNER, WIDTH, bias=False)
    )


def planned(
    model: Callable[[], nn.Module],
    x: torch.Tensor,
    plan: Mapping[str, Sequence[Any]] | None = None,
    optimizer: Any = torch.optim.SGD,
    mesh: Mapping[str, int] | None = None,
    **options: Any,
) -> Plan:
    with torch.device("meta"):
        made = model()
    return auto_shard(
        made, x, mesh or {"x": N}, optimizer=optimizer, plan=plan, chip=CHIP, seconds=5, **options
    )


def floats(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, device="meta")


def given_bytes(plan: Plan) -> Counter[str]:
    """Of each kind of collective the bytes that each chip gets, those of a few numbers left out."""
    found: Counter[str] = Counter()
    for e in plan.exchanges:
        if e.n_bytes > 64:
            found[e.kind] += e.n_bytes * e.runs
    return found


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [
        ("all-gather", ALPHA + 7 / 8 * 1e6 / BETA),
        ("reduce-scatter", ALPHA + 7 / 8 * 1e6 / BETA),
        ("all-reduce", ALPHA + 2 * 7 / 8 * 1e6 / BETA),
        ("all-to-all", ALPHA + 7 / 8 / 8 * 1e6 / BETA),
    ],
)
def test_collective_of_a_megabyte_takes_alpha_and_bytes_over_beta(
    kind: str, seconds: float
) -> None:
    network = network_of(["x"], [8], CHIP)

    assert network.picoseconds(kind, 1e6, [0]) == pytest.approx(seconds * PICO, rel=1e-6)


def test_axis_over_slices_has_the_slower_network() -> None:
    network = network_of(["x", "y"], [2, 4], CHIP, across=["x"])

    assert network.axes[0].bandwidth == BETA / 10
    assert network.picoseconds("all-gather", 1e6, [0, 1]) > 9 * network.picoseconds(
        "all-gather", 1e6, [1]
    )


def test_mlp_with_data_parallelism_adds_up_the_gradients() -> None:
    plan = planned(
        mlp, floats(1 << 16, WIDTH), {"0.weight": (), "2.weight": (), "argument 0": ("x",)}
    )

    gradients = 2 * WIDTH * INNER * FLOAT
    of_weights = given_bytes(plan)
    # A reduce-scatter and an all-gather are an all-reduce: both are plans of the same cost.
    assert of_weights["all-reduce"] + of_weights["all-gather"] == gradients
    seconds = 2 * 7 / 8 * gradients / BETA
    assert plan.exchanged_s == pytest.approx(seconds, abs=6 * ALPHA)


def test_mlp_by_columns_and_rows_adds_up_one_activation() -> None:
    plan = planned(mlp, floats(BATCH, WIDTH), {"0.weight": ("x", None), "2.weight": (None, "x")})

    # The input needs no gradient, so that there is one in forward and none in backward.
    activation = BATCH * WIDTH * FLOAT
    found = given_bytes(plan)
    assert found["all-reduce"] + found["all-gather"] == activation


def test_two_such_mlps_add_up_two_activations_in_forward_and_one_in_backward() -> None:
    def two() -> nn.Module:
        return nn.Sequential(mlp(), mlp())

    by_columns = {f"{i}.0.weight": ("x", None) for i in range(2)}
    by_rows = {f"{i}.2.weight": (None, "x") for i in range(2)}
    plan = planned(two, floats(BATCH, WIDTH), {**by_columns, **by_rows})

    found = given_bytes(plan)
    assert found["all-reduce"] + found["all-gather"] == 3 * BATCH * WIDTH * FLOAT


def test_fully_sharded_weights_are_gathered_twice_and_their_gradients_scattered() -> None:
    specs = {"0.weight": ("x",), "2.weight": ("x",), "argument 0": ("x",)}
    plan = planned(mlp, floats(4096, WIDTH), specs)

    weight = WIDTH * INNER * FLOAT
    found = given_bytes(plan)
    assert found["all-gather"] == 3 * weight  # the first layer's input needs no gradient
    assert found["reduce-scatter"] == 2 * weight // N


class Attention(nn.Module):
    def __init__(self, width: int = 64, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2))


def test_attention_by_heads_adds_up_one_activation() -> None:
    specs = {f"{name}.weight": ("x", None) for name in "qkv"} | {"out.weight": (None, "x")}
    plan = planned(Attention, floats(4, 16, 64), specs)

    found = given_bytes(plan)
    assert found["all-reduce"] + found["all-gather"] == 4 * 16 * 64 * FLOAT


def test_embedding_spread_by_words_adds_up_its_result() -> None:
    tokens = torch.empty(4, 16, dtype=torch.int64, device="meta")
    plan = planned(lambda: nn.Embedding(512, 64), tokens, {"weight": ("x", None)})

    found = given_bytes(plan)
    assert set(found) <= {"all-reduce", "reduce-scatter"}
    assert found["all-reduce"] + N * found["reduce-scatter"] == 4 * 16 * 64 * FLOAT


class Experts(nn.Module):
    """Each group of tokens has an expert for each of its slots."""

    def __init__(self, experts: int = 8, width: int = 64, inner: int = 8192) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(experts, width, inner))
        self.down = nn.Parameter(torch.empty(experts, inner, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # groups, experts, slots, width
        made = torch.einsum("gecm,emh->gech", x, self.up).relu()
        return torch.einsum("gech,ehm->gecm", made, self.down)


def test_experts_on_chips_of_their_own_get_tokens_by_all_to_alls() -> None:
    def around() -> nn.Module:
        return nn.Sequential(
            nn.Linear(64, 64, bias=False), Experts(), nn.Linear(64, 64, bias=False)
        )

    specs = {"0.weight": (), "2.weight": (), "argument 0": ("x",)}
    specs |= {"1.up": ("x",), "1.down": ("x",)}
    plan = planned(around, floats(8, 8, 64, 64), specs)

    part = 8 * 8 * 64 * 64 * FLOAT // N
    # To the experts and back, in forward; back to where the first layer's input is, in backward. After the
    # experts nothing needs the groups as they were: the last layer and its gradient are by experts.
    found = given_bytes(plan)
    assert found["all-to-all"] in (part, 2 * part, 3 * part, 4 * part)
    assert (
        found["all-gather"] + found["all-reduce"] <= 8 * 64 * 64 * FLOAT
    )  # of the small layers' weights


def test_batch_norm_adds_up_sums_of_its_channels() -> None:
    def network() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU())

    plan = planned(network, floats(64, 3, 32, 32), {"0.weight": (), "argument 0": ("x",)})

    assert set(given_bytes(plan)) <= {"all-reduce", "reduce-scatter", "all-gather"}
    assert max(e.n_bytes for e in plan.exchanges) <= 16 * 3 * 9 * FLOAT
    assert plan.spec("0") == ("x", None, None, None)
