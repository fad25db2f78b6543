"""An exported model is a SavedModel of TensorFlow's, with the values of PyTorch's."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import Tensor
from torch.export import Dim

from torch_pjrt_quant import EntryPoint, Float8, Int4, Int8, export, quantize_, save_tensorflow
from torch_pjrt_quant.exporting.saved_model import without_composites

BATCH, LENGTH = Dim("batch", max=64), Dim("length", max=64)
Linear, Sequential = torch.nn.Linear, torch.nn.Sequential


class Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.norm = torch.nn.Embedding(20, 16), torch.nn.LayerNorm(16)
        self.qkv, self.out = Linear(16, 48), Linear(16, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.tokens(tokens))
        q, k, v = self.qkv(x).view(*tokens.shape, 3, 2, 8).permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(torch.nn.functional.gelu(mixed.transpose(1, 2).flatten(2)))


class Counter(torch.nn.Module):
    """Two methods that share a buffer."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        self.count.add_(x)
        return {"now": self.count * 2, "sum": x.sum()}

    def peek(self, x: Tensor) -> Tensor:
        return self.count + x


CONVOLUTION = Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Softmax(1))
TOKENS = torch.randint(0, 20, (2, 5))
#   name, module, an input, dims that vary, another input
CASES: dict[str, tuple[torch.nn.Module, Tensor, dict[int, Any], Tensor]] = {
    "encoder": (Encoder(), TOKENS, {0: BATCH, 1: LENGTH}, torch.randint(0, 20, (3, 11))),
    "convolution": (
        CONVOLUTION, torch.randn(2, 3, 8, 8), {0: BATCH}, torch.randn(5, 3, 8, 8),
    ),
    "int8": (
        quantize_(Sequential(Linear(64, 16), torch.nn.GELU()), Int8(dynamic=True)),
        torch.randn(2, 64), {0: BATCH}, torch.randn(5, 64),
    ),
    "int4": (
        quantize_(Sequential(Linear(64, 16)), Int4(32)),
        torch.randn(2, 64), {0: BATCH}, torch.randn(5, 64),
    ),
    "float8": (
        quantize_(Sequential(Linear(64, 16)), Float8()),
        torch.randn(2, 64), {0: BATCH}, torch.randn(5, 64),
    ),
}  # fmt: skip


def loaded(model: Any, folder: Any) -> tuple[Any, Any]:
    """TensorFlow, and the model that it has loaded."""
    tf = pytest.importorskip("tensorflow")
    return tf, tf.saved_model.load(str(save_tensorflow(model, folder)))


@pytest.mark.slow("rows")
@pytest.mark.filterwarnings("ignore")  # TensorFlow's own
@pytest.mark.parametrize("name", CASES)
def test_values_are_pytorchs_for_other_sizes_too(name, tmp_path):
    model, x, dims, other = CASES[name]
    made = export(copy.deepcopy(model).eval(), (x,), dynamic_shapes=(dims,))

    tf, there = loaded(made, tmp_path / "model")

    given = made.signature()["entries"]["forward"]["inputs"][0]["name"]
    for inputs in (x, other):
        results = there.signatures["serving_default"](**{given: tf.constant(inputs.numpy())})
        wanted = model.eval()(inputs).detach()
        got = torch.from_numpy(results["output_0"].numpy())
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.slow("rows")
@pytest.mark.filterwarnings("ignore")
def test_state_goes_on_and_is_shared_by_entry_points(tmp_path):
    x = torch.tensor([1.0, 2.0, 3.0])
    entries = {"add": EntryPoint((x,)), "peek": EntryPoint((x,), method="peek")}
    tf, there = loaded(export(Counter(), entries=entries), tmp_path / "model")

    for n in (1, 2):
        added = there.signatures["add"](x=tf.constant(x.numpy()))
        assert added["output_0"].numpy().tolist() == (2 * n * x).tolist()
        assert added["output_1"].numpy() == 6

    peeked = there.signatures["peek"](x=tf.constant(x.numpy()))["output_0"]
    assert peeked.numpy().tolist() == (3 * x).tolist()


def test_composites_become_calls_with_the_same_values():
    made = export(torch.nn.GELU(), (torch.randn(2, 8),), dynamic_shapes=({0: BATCH},)).jax()
    before = made.mlir_module_serialized

    after = without_composites(before)

    assert b"composite_v" in before and b"composite_v" not in after
    x = jnp.linspace(-3, 3, 40).reshape(5, 8)
    with jax.enable_x64(True):
        changed = dataclasses.replace(made, mlir_module_serialized=after)
        (got,), (wanted,) = changed.call(x), made.call(x)
    # Where it knows `erf`, XLA computes it by another polynomial than that of the composite.
    assert jnp.abs(got - wanted).max() < 2e-6


@pytest.mark.slow("rows")
@pytest.mark.filterwarnings("ignore")
def test_it_has_the_tag_and_the_signature_that_serving_asks_for(tmp_path):
    model = Sequential(Linear(8, 4)).eval()
    made = export(model, (torch.randn(2, 8),), dynamic_shapes=({0: BATCH},))
    tf, _ = loaded(made, tmp_path / "model" / "1")
    v1 = tf.compat.v1

    # As TensorFlow Serving does it: a session, the tag, names of tensors in the signature.
    with v1.Session(graph=tf.Graph()) as session:
        graph = v1.saved_model.loader.load(session, ["serve"], str(tmp_path / "model" / "1"))
        signature = graph.signature_def["serving_default"]
        given, result = signature.inputs["input"], signature.outputs["output_0"]
        assert signature.method_name == "tensorflow/serving/predict"
        assert [d.size for d in given.tensor_shape.dim] == [-1, 8]
        assert [d.size for d in result.tensor_shape.dim] == [-1, 4]
        for batch in (1, 2, 5):
            x = torch.randn(batch, 8)
            got = session.run(result.name, {given.name: x.numpy()})
            wanted = model(x).detach()
            torch.testing.assert_close(torch.from_numpy(got), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.slow("rows")
@pytest.mark.filterwarnings("ignore")
def test_what_is_written_to_an_argument_is_a_result(tmp_path):
    class Running(torch.nn.Module):
        def forward(self, x: Tensor, total: Tensor) -> Tensor:
            return total.add_(x) * 2

    tf, there = loaded(export(Running(), (torch.ones(2), torch.zeros(2))), tmp_path / "model")

    results = there.signatures["serving_default"](x=tf.ones(2), total=tf.fill([2], 3.0))

    assert results["output_0"].numpy().tolist() == [8, 8]
    assert results["written_total"].numpy().tolist() == [4, 4]
