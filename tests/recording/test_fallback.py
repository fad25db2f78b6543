"""An operator without a rule gives the right answer: decomposed, or on the CPU with one warning."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

import torch_pjrt


@pytest.fixture(scope="module")
def ops() -> Iterator[torch.library.Library]:
    """Operators that nobody has heard of."""
    library = torch.library.Library("torch_pjrt_tests", "DEF")
    library.define("plus_one(Tensor x) -> Tensor")
    library.define("count_up_(Tensor(a!) x, int by) -> Tensor(a!)")
    library.define("ends(Tensor x) -> (Tensor, Tensor)")
    library.define("all_plus(Tensor[] xs, float by) -> Tensor[]")
    library.define("how_many(Tensor x) -> int")
    library.define("twice_then_one_more(Tensor x) -> Tensor")

    def ends(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[:1].clone(), x[-1:].clone()

    library.impl("plus_one", lambda x: x + 1, "CPU")
    library.impl("count_up_", lambda x, by: x.add_(by), "CPU")
    library.impl("ends", ends, "CPU")
    library.impl("all_plus", lambda xs, by: [x + by for x in xs], "CPU")
    library.impl("how_many", lambda x: x.numel(), "CPU")
    library.impl("twice_then_one_more", lambda x: x * 2 + 1, "CompositeImplicitAutograd")
    yield library
    library._destroy()


def fallbacks(name: str) -> int:
    return torch_pjrt.report().as_dict()["fallbacks"].get(f"torch_pjrt_tests.{name}.default", 0)


def test_unknown_operator_is_right_warned_of_once_and_counted(ops: torch.library.Library) -> None:
    x = torch.arange(3.0, device="pjrt") * 2

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = [torch.ops.torch_pjrt_tests.plus_one(x) for _ in range(3)]

    assert [r.tolist() for r in results] == [[1, 3, 5]] * 3
    assert {r.device.type for r in results} == {"pjrt"}
    texts = [str(w.message) for w in caught]
    assert len(texts) == 1
    assert "`torch_pjrt_tests.plus_one.default` runs on the CPU" in texts[0]
    assert fallbacks("plus_one") == 3


@pytest.mark.filterwarnings("ignore:.*runs on the CPU:UserWarning")
def test_unknown_operator_writes_through_a_view(ops: torch.library.Library) -> None:
    x = torch.zeros(2, 3, device="pjrt")

    result = torch.ops.torch_pjrt_tests.count_up_(x[:, 1], 4)

    assert x.tolist() == [[0, 4, 0], [0, 4, 0]]
    assert result.tolist() == [4, 4]
    assert result.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


@pytest.mark.filterwarnings("ignore:.*runs on the CPU:UserWarning")
def test_unknown_operator_may_return_several_tensors_lists_and_numbers(
    ops: torch.library.Library,
) -> None:
    x = torch.arange(4.0, device="pjrt")

    first, last = torch.ops.torch_pjrt_tests.ends(x)
    listed = torch.ops.torch_pjrt_tests.all_plus([x, first], 0.5)

    assert (first.tolist(), last.tolist()) == ([0], [3])
    assert [t.tolist() for t in listed] == [[0.5, 1.5, 2.5, 3.5], [0.5]]
    assert torch.ops.torch_pjrt_tests.how_many(x) == 4


def test_composite_operator_is_not_a_fallback(ops: torch.library.Library) -> None:
    x = torch.arange(3.0, device="pjrt")

    assert torch.ops.torch_pjrt_tests.twice_then_one_more(x).tolist() == [1, 3, 5]
    assert fallbacks("twice_then_one_more") == 0


@pytest.mark.filterwarnings("ignore:.*runs on the CPU:UserWarning")
def test_error_of_the_cpu_kernel_arrives(ops: torch.library.Library) -> None:
    with pytest.raises(RuntimeError, match="result type Long can't be cast"):
        torch.ops.torch_pjrt_tests.count_up_(torch.ones(2, dtype=torch.bool, device="pjrt"), 1)


def test_no_kernel_at_all_is_an_error(ops: torch.library.Library) -> None:
    ops.define("nothing(Tensor x) -> Tensor")

    with (
        warnings.catch_warnings(),
        pytest.raises(NotImplementedError, match="torch_pjrt_tests::nothing"),
    ):
        warnings.simplefilter("ignore")
        torch.ops.torch_pjrt_tests.nothing(torch.ones(2, device="pjrt"))


def test_custom_operator_trains(ops: torch.library.Library) -> None:
    @torch.library.custom_op("torch_pjrt_tests::cube", mutates_args=())
    def cube(x: torch.Tensor) -> torch.Tensor:
        return x.cpu().pow(3).to(x.device)

    cube.register_autograd(
        lambda ctx, g: g * 3 * ctx.saved_tensors[0] ** 2,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    x = torch.tensor([2.0, 3.0], device="pjrt", requires_grad=True)

    y = cube(x)
    y.sum().backward()

    assert y.tolist() == [8, 27]
    assert x.grad.tolist() == [12, 27]


def test_generator_of_the_cpu_draws_the_cpus_numbers() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = torch.empty(4, device="pjrt").normal_(generator=torch.Generator().manual_seed(5))

    assert torch.equal(
        ours.cpu(), torch.empty(4).normal_(generator=torch.Generator().manual_seed(5))
    )
