"""An exported module computes what it computed, in a process that has neither PyTorch nor us."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.export import Dim

from torch_pjrt.errors import LoweringError
from torch_pjrt_quant import EntryPoint, Int4, export, load
from torch_pjrt_quant.exporting.load import WrongInput
from torch_pjrt_quant.exporting.load import load as load_without_torch

BATCH, LENGTH = Dim("batch"), Dim("length", max=64)


class Block(torch.nn.Module):
    """Attention, a convolution, views whose sizes vary, a buffer that counts, outputs with names."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(8, 24)
        self.conv = torch.nn.Conv1d(8, 8, 3, padding=1)
        self.norm = torch.nn.LayerNorm(8)
        self.tied = self.norm
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor, options: dict[str, torch.Tensor]) -> dict[str, object]:
        self.calls.add_(1)
        heads = self.project(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind(0)
        mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        y = self.conv(mixed.transpose(1, 2).flatten(2).mT).mT + x
        last = (y * options["mask"][..., None])[:, -1]
        positions = torch.arange(x.shape[1], device=x.device)
        return {"y": self.tied(y), "last": (last, positions), "calls": self.calls.clone(), "n": 3}


def inputs(batch: int, length: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(batch)
    x = torch.randn(batch, length, 8, generator=generator)
    return x, {"mask": torch.rand(batch, length, generator=generator)}


SHAPES = {"x": {0: BATCH, 1: LENGTH}, "options": {"mask": {0: BATCH, 1: LENGTH}}}


@pytest.fixture(scope="module")
def block() -> Block:
    torch.manual_seed(0)
    return Block().eval()


@pytest.fixture(scope="module")
def folder(block: Block, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = export(block, inputs(2, 5), dynamic_shapes=SHAPES, gradient=True)
    return made.save(tmp_path_factory.mktemp("exported") / "model", text=True)


ALONE = """
import sys
for name in ("torch", "torch_pjrt", "torch_pjrt_quant", "flatbuffers"):
    sys.modules[name] = None
sys.path.insert(0, sys.argv[1])
import numpy
from load import load
model = load(sys.argv[1])
given = numpy.load(sys.argv[2])
results = {}
for n in range(3):
    got = model(given[f"x{n}"], options={"mask": given[f"mask{n}"]})
    assert got["n"] == 3
    results |= {f"y{n}": got["y"], f"last{n}": got["last"][0], f"positions{n}": got["last"][1]}
    results[f"calls{n}"] = got["calls"]
numpy.savez(sys.argv[3], **results)
"""


def test_it_runs_in_a_process_without_pytorch_for_sizes_that_vary(block, folder, tmp_path):
    sizes = [(2, 5), (1, 1), (3, 64)]
    given = {}
    for n, size in enumerate(sizes):
        x, options = inputs(*size)
        given |= {f"x{n}": x.numpy(), f"mask{n}": options["mask"].numpy()}
    np.savez(tmp_path / "given.npz", **given)
    script = tmp_path / "alone.py"
    script.write_text(ALONE)

    done = subprocess.run(
        [sys.executable, script, folder, tmp_path / "given.npz", tmp_path / "results.npz"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    results = np.load(tmp_path / "results.npz")
    for n, size in enumerate(sizes):
        with torch.no_grad():
            wanted = block(*inputs(*size))
        np.testing.assert_allclose(results[f"y{n}"], wanted["y"], atol=2e-6)
        np.testing.assert_allclose(results[f"last{n}"], wanted["last"][0], atol=2e-6)
        np.testing.assert_array_equal(results[f"positions{n}"], wanted["last"][1])
        assert results[f"calls{n}"] == n + 1
        assert results[f"y{n}"].dtype == np.float32 and results[f"positions{n}"].dtype == np.int64


def test_the_folder_holds_text_and_each_weight_once(folder):
    from safetensors import safe_open

    assert "stablehlo" in (folder / "forward.mlir").read_text()
    with safe_open(folder / "weights.safetensors", "np") as tensors:
        names = set(tensors.keys())
    assert len([n for n in names if n.endswith("norm.weight") or n == "tied.weight"]) == 1
    assert {"project.weight", "conv.bias", "calls"} < names


x, options = np.zeros((2, 5, 8), np.float32), {"mask": np.zeros((2, 5), np.float32)}
WRONG = {
    "a dtype": ((x.astype(np.float64), options), "`x` is float64[2, 5, 8], and should be float32"),
    "a rank": ((x[0], options), "3 dims"),
    "a fixed size": ((x[..., :7], options), "dim 2 is 7, not 8"),
    "sizes that differ": (
        (x, {"mask": options["mask"][:1]}),
        "`options['mask']` is float32[1, 5]: dim 0 is 1, and `batch` is 2 in `x`",
    ),
    "a size out of range": (
        (np.zeros((2, 65, 8), np.float32), options),
        "dim 1 is 65, and `length` goes from 1 to 64",
    ),
    "a lack": ((x,), "`forward` lacks `options`"),
    "one too many": ((x, options, x), "takes 2 arguments (x, options), not 3"),
    "another structure": ((x, [x]), "`options` is list, and should be a dict with ['mask']"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_input_is_named(folder, case):
    arguments, words = WRONG[case]

    with pytest.raises(WrongInput) as raised:
        load_without_torch(folder)(*arguments)

    assert words in str(raised.value)


def test_state_goes_on_and_is_reset(folder):
    model = load_without_torch(folder)

    counted = [int(model(x, options)["calls"]) for _ in range(2)]
    model.reset()

    assert [*counted, int(model(x, options)["calls"])] == [1, 2, 1]


def test_back_in_pytorch_it_is_a_module_with_gradients(block, folder):
    module = load(folder)
    given, masks = inputs(3, 4)
    there = given.to("pjrt").requires_grad_()

    got = module(there, masks)
    got["y"].square().sum().backward()

    here = given.clone().requires_grad_()
    wanted = block(here, masks)
    block.zero_grad()
    wanted["y"].square().sum().backward()
    torch.testing.assert_close(got["y"].cpu(), wanted["y"])
    assert there.grad is not None and here.grad is not None
    torch.testing.assert_close(there.grad.cpu(), here.grad, rtol=1e-4, atol=1e-5)
    gradient = dict(module.named_parameters())["project_weight"].grad
    assert gradient is not None
    torch.testing.assert_close(gradient.cpu(), block.project.weight.grad, rtol=1e-4, atol=1e-4)
    assert dict(module.named_buffers())["calls"].item() == 1


class Nested(torch.nn.Module):
    """Parameters by the names given, each of them 1, 10, 100, ...; gives their sum."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.parts = names
        for n, name in enumerate(names):
            inner: torch.nn.Module = self
            *parents, own = name.split(".")
            for parent in parents:
                if not hasattr(inner, parent):
                    inner.add_module(parent, torch.nn.Module())
                inner = inner.get_submodule(parent)
            inner.register_parameter(own, torch.nn.Parameter(torch.full((2,), 10.0**n)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum((self.get_parameter(name) * x for name in self.parts), x)


#   names of parameters, names of those that are loaded
NAMES = [
    (("a.b", "a_b"), {"a_b", "a_b_"}),
    (("a_b", "a.b", "a_b_", "a.b_"), {"a_b", "a_b_", "a_b__", "a_b___"}),
    (("a.b.c", "a_b.c", "a.b_c", "a_b_c"), {"a_b_c", "a_b_c_", "a_b_c__", "a_b_c___"}),
    (("entry", "names", "train_", "_entries"), {"entry_", "names_", "train_", "_entries_"}),
    (("model_signature", "x.y", "x_"), {"model_signature_", "x_y", "x_"}),
]


@pytest.mark.parametrize(("names", "loaded"), NAMES)
def test_parameters_of_any_names_stay_what_they_were(tmp_path, names, loaded):
    module = Nested(*names)
    folder = export(module, (torch.ones(2),), platforms=["cpu"]).save(tmp_path / "model")

    back = load(folder)

    assert torch.equal(back(torch.ones(2)).cpu(), module(torch.ones(2)).detach())
    assert {name for name, _ in back.named_parameters()} == loaded
    for name in names:
        there = back.get_parameter(back.names[name])
        assert torch.equal(there.detach().cpu(), module.get_parameter(name).detach())


class Constants(torch.nn.Module):
    """Entry points with constants that PyTorch calls by one name."""

    def a(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.tensor([1.0, 0.0])

    def b(self, x: torch.Tensor) -> torch.Tensor:
        return x[torch.tensor([1, 0])]

    def c(self, x: torch.Tensor) -> torch.Tensor:
        return 1 / (x * torch.tensor([1.0, -0.0]))

    def d(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.tensor([[1.0, 0.0]])

    def e(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tensor([1.0, 0.0])


def test_constants_of_entry_points_are_shared_where_they_are_the_same_bit_by_bit(tmp_path):
    x = torch.tensor([3.0, 4.0])
    entries = {name: EntryPoint((x,), method=name) for name in "abcde"}
    made = export(Constants(), entries=entries, platforms=["cpu"])
    run = load_without_torch(made.save(tmp_path / "model"))

    for name in "abcde":
        wanted = getattr(Constants(), name)(x)
        np.testing.assert_array_equal(run.entry(name)(x.numpy()), wanted)
    assert len(made.tensors) == 4  # of a and e it is one


def test_two_programs_with_other_tensors_of_one_name_keep_both(tmp_path):
    modules = [Nested("w") for _ in range(3)]
    for n, module in enumerate(modules):
        module.get_parameter("w").data += n
    programs = {f"p{n}": torch.export.export(m, (torch.ones(2),)) for n, m in enumerate(modules)}

    run = load_without_torch(export(programs, platforms=["cpu"]).save(tmp_path / "model"))

    for n in range(3):
        np.testing.assert_array_equal(run.entry(f"p{n}")(np.ones(2, np.float32)), [2.0 + n] * 2)


F = torch.nn.functional
#   what computes products of float32, of matrices (2, 4, 4)
PRODUCTS: dict[str, Callable[[torch.Tensor], object]] = {
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "attention with heads": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "bilinear": lambda x: F.bilinear(x, x, torch.ones(3, 4, 4)),
    "linear": lambda x: F.linear(x, x[0]),
    "matmul": lambda x: x @ x,
    "addmm": lambda x: torch.addmm(x[0], x[0], x[1]),
    "baddbmm": lambda x: torch.baddbmm(x, x, x),
    "einsum": lambda x: torch.einsum("bij,bkj->bik", x, x),
    "cdist": lambda x: torch.cdist(x, x, compute_mode="use_mm_for_euclid_dist"),
    "convolution": lambda x: F.conv1d(x, x),
    "transposed": lambda x: F.conv_transpose1d(x, x[0][:, :, None]),
    "cond": lambda x: torch.cond(x.sum() > 0, lambda x: x @ x, lambda x: x + 1, (x,)),
    "int4": Int4(group_size=4).layer(torch.nn.Linear(4, 4)),
}


@pytest.mark.parametrize(
    ("precision", "name"),
    [*[("highest", name) for name in PRODUCTS], ("medium", "attention"), ("medium", "matmul")],
)
def test_products_of_float32_are_as_exact_as_pytorch_is_told_to_compute_them(precision, name):
    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.compute = PRODUCTS[name]

        def forward(self, x: torch.Tensor) -> object:
            return self.compute(x)

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        text = export(Module(), (torch.ones(2, 4, 4),)).stablehlo()
    finally:
        torch.set_float32_matmul_precision(before)

    products = re.findall(r"stablehlo\.(?:dot_general|convolution).*", text)
    assert products
    for line in products:
        assert (line.count("HIGHEST") == 2) == (precision == "highest"), line


class Decoder(torch.nn.Module):
    """A prompt fills a cache, each step adds to it."""

    cache: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(11, 4)
        self.register_buffer("cache", torch.zeros(8, 4))

    def prefill(self, tokens: torch.Tensor) -> torch.Tensor:
        self.cache[: tokens.shape[0]] = self.embedding(tokens)
        return self.cache.sum(0)

    def decode(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.cache.index_copy_(0, position, self.embedding(token))
        return self.cache.sum(0)


def test_entry_points_share_weights_and_state(tmp_path):
    decoder = Decoder()
    tokens, token, position = torch.tensor([3, 1, 4]), torch.tensor([5]), torch.tensor([3])
    made = export(
        decoder,
        entries={
            "prefill": EntryPoint((tokens,), {}, ({0: Dim("length", max=8)},), "prefill"),
            "decode": EntryPoint((token, position), method="decode"),
        },
    )
    model = load_without_torch(made.save(tmp_path / "decoder"))

    first = model.entry("prefill")(np.array([1, 2]))
    second = model.entry("decode")(token.numpy(), np.array([2]))

    table = decoder.embedding.weight.detach().numpy()
    np.testing.assert_allclose(first, table[[1, 2]].sum(0), rtol=1e-6)
    np.testing.assert_allclose(second, table[[1, 2, 5]].sum(0), rtol=1e-6)
    assert set(made.tensors) == {"embedding.weight", "cache"} and made.state == ["cache"]
    with pytest.raises(KeyError, match="prefill, decode"):
        model.entry("encode")


def test_random_numbers_follow_the_seed(tmp_path):
    class Noise(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x)

    model = load_without_torch(export(Noise(), (torch.ones(64),)).save(tmp_path / "noise"))
    ones = np.ones(64, np.float32)

    one, other = model(ones, seed=1), model(ones, seed=2)

    np.testing.assert_array_equal(one, model(ones, seed=1))
    assert not np.array_equal(one, other) and 10 < int((one < 1).sum()) < 54


def test_weights_may_be_inside_of_the_program(tmp_path):
    linear = torch.nn.Linear(3, 2).to(torch.bfloat16)
    made = export(linear, (torch.ones(1, 3, dtype=torch.bfloat16),), weights="inside")
    model = load_without_torch(made.save(tmp_path / "inside"))

    got = model(np.ones((1, 3), jnp.bfloat16))

    assert made.tensors == {}
    np.testing.assert_allclose(
        got.astype(np.float32), linear(torch.ones(1, 3).bfloat16()).detach().float(), rtol=1e-2
    )


def test_control_flow_stays_in_the_program(tmp_path):
    class Either(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    made = export(Either(), (torch.ones(3),), dynamic_shapes=({0: BATCH},))
    model = load_without_torch(made.save(tmp_path / "either"))

    np.testing.assert_array_equal(model(np.ones(4, np.float32)), np.full(4, 2.0))
    np.testing.assert_array_equal(model(-np.ones(2, np.float32)), np.full(2, -2.0))


@pytest.mark.parametrize(
    ("compute", "words"),
    [
        (lambda x: x[x > 0], "aten.nonzero|x\\[mask\\]"),
        (lambda x: x.nonzero(), "nonzero"),
        (lambda x: x * x.sum().item(), "_local_scalar_dense"),
        (lambda x: x.unique(), "_unique2"),
    ],
    ids=["mask", "nonzero", "item", "unique"],
)
def test_what_depends_on_values_is_refused_with_its_line(compute, words):
    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return compute(x)

    with pytest.raises(LoweringError, match=words) as raised:
        export(Module(), (torch.ones(3),))

    assert "test_export.py" in str(raised.value) and "docs/export.md" in str(raised.value)


def test_a_python_value_of_tensors_is_refused():
    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if torch.equal(x, x * 2) else x + 1

    with pytest.raises(LoweringError, match=r"aten.equal.*only values decide[\s\S]*export.md"):
        export(Module(), (torch.ones(3),))


class Running(torch.nn.Module):
    """Writes to its second argument."""

    def forward(self, x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        total.add_(x)
        return total * 2


def test_an_argument_that_is_written_to_is_written_to(tmp_path):
    example = torch.ones(3), torch.zeros(3)
    folder = export(Running(), example, dynamic_shapes=({0: BATCH}, {0: BATCH})).save(tmp_path)

    model, total = load_without_torch(folder), np.zeros(2, np.float32)
    module, there = load(folder), torch.zeros(2, device="pjrt")
    for n in (1, 2):
        x = np.array([1, 2], np.float32)
        np.testing.assert_array_equal(model(x, total), 2 * n * x)
        np.testing.assert_array_equal(total, n * x)
        torch.testing.assert_close(module(torch.tensor(x), there).cpu(), torch.tensor(2 * n * x))
        torch.testing.assert_close(there.cpu(), torch.tensor(n * x))


@pytest.mark.parametrize("total", [[0.0, 0.0], jnp.zeros(2), np.broadcast_to(np.float32(0), 2)])
def test_what_cannot_be_written_to_is_an_error_that_names_it(tmp_path, total):
    made = export(Running(), (torch.ones(2), torch.zeros(2)))
    model = load_without_torch(made.save(tmp_path))

    with pytest.raises(ValueError, match="`total` is written to"):
        model(np.ones(2, np.float32), total)


@pytest.mark.parametrize(("written", "version"), [(False, 1), (True, 2)])
def test_the_version_is_the_first_that_has_what_the_model_needs(written, version):
    example = (torch.ones(2), torch.zeros(2))
    made = export(Running(), example) if written else export(torch.nn.Identity(), example[:1])

    assert made.signature()["version"] == version


def test_it_takes_exported_programs_and_modules_of_the_device(tmp_path):
    linear = torch.nn.Linear(3, 2)
    program = torch.export.export(linear, (torch.ones(1, 3),))
    wanted = linear(torch.ones(1, 3)).detach().numpy()

    of_program = load_without_torch(export(program).save(tmp_path / "program"))
    moved = export(linear.to("pjrt"), (torch.ones(1, 3, device="pjrt"),), platforms=["cpu"])
    of_module = load_without_torch(moved.save(tmp_path / "module"))

    np.testing.assert_allclose(of_program(np.ones((1, 3), np.float32)), wanted, rtol=1e-6)
    np.testing.assert_allclose(of_module(np.ones((1, 3), np.float32)), wanted, rtol=1e-6)
    assert moved.jax().platforms == ("cpu",)


def test_a_folder_with_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")

    with pytest.raises(FileExistsError, match="something else"):
        export(torch.nn.Identity(), (torch.ones(1),)).save(tmp_path)
