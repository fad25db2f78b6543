"""Where there is no room the error is PyTorch's, the process goes on, and what was there before is whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_pjrt
from torch_pjrt.client.live import live_parts
from torch_pjrt.errors import LostValue

pjrt: Any = torch.pjrt  # type: ignore[attr-defined]
N = 200_000  # N x N floats are 160 GB


def columns() -> tuple[torch.Tensor, torch.Tensor]:
    a, b = torch.ones(N, 1, device="pjrt"), torch.ones(1, N, device="pjrt")
    torch_pjrt.sync()
    return a, b


@pytest.mark.parametrize(
    "use",
    [
        lambda c: c[0, 0].item(),
        lambda c: c.cpu(),
        str,
        lambda c: torch_pjrt.sync(),
        lambda c: pjrt.synchronize(),
        torch_pjrt.to_jax,
        lambda c: c.__dlpack__(),
        lambda c: c.clone().tolist(),
        lambda c: c.add_(1).cpu(),
    ],
)
def test_product_without_room_is_an_error_and_the_process_goes_on(
    use: Callable[[torch.Tensor], object],
) -> None:
    a, b = columns()

    with pytest.raises(torch.OutOfMemoryError, match="ran out of memory"):
        use(a @ b)

    assert pjrt.memory_allocated() < 1 << 32
    assert pjrt.max_memory_allocated() > 0
    assert "held by" in pjrt.memory_summary()
    assert str(torch_pjrt.report())
    assert (a + 1).sum().item() == 2 * N


def test_array_that_failed_can_be_asked_counted_and_dropped() -> None:
    import jax

    a, b = (torch_pjrt.to_jax(x) for x in columns())
    failed = jax.jit(lambda a, b: a @ b)(a, b)
    x = torch_pjrt.from_jax(failed)

    for look in (x.cpu, x.__dlpack__, (x + 1)[0, 0].item, x.clone().tolist, x.tolist):
        with pytest.raises((torch.OutOfMemoryError, LostValue)):
            look()
    del look
    held = pjrt.memory_allocated()
    assert held < 1 << 32
    assert all(array is not failed for array, _, _ in live_parts())
    del x, failed
    assert torch.ones(3, device="pjrt").sum().item() == 3


@pytest.mark.parametrize("how", ["plain", "captured"])
def test_parameters_written_in_place_are_whole_without_room(how: str) -> None:
    a, b = columns()
    p = torch.ones(1000, device="pjrt")

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        p.add_(1)
        return (x @ y).sort(dim=0).values

    run = torch_pjrt.capture(step) if how == "captured" else step
    small = torch.ones(2, 1, device="pjrt"), torch.ones(1, 2, device="pjrt")
    for _ in range(4):
        run(*small)
        torch_pjrt.sync()

    with pytest.raises(torch.OutOfMemoryError):
        kept = run(a, b)
        torch_pjrt.sync()
        del kept

    assert p.tolist() == [5.0] * 1000
    run(*small)
    assert p.tolist() == [6.0] * 1000


# `t` is made between, and is held.
_SHARES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "another's new content": lambda p, q: (p.add_(1), q.copy_(p))[:0],
    "both a third's": lambda p, q: [x.copy_(t) for t in [p * 2 + q] for x in (p, q)][:0],
    "by a list": lambda p, q: (p.mul_(3), torch._foreach_copy_([q], [p]))[:0],
    "changed after": lambda p, q: (p.add_(1), q.copy_(p), q.add_(1))[:0],
    "both changed after": lambda p, q: (p.add_(1), q.copy_(p), q.add_(1), p.mul_(3))[:0],
    "in turns": lambda p, q: (q.copy_(p.add_(1)), p.copy_(q.mul_(2)), q.sub_(7))[:0],
    "the first is new": lambda p, q: (p.add_(1), q.copy_(p), p.zero_(), q.add_(1))[:0],
    "a new one's, which is held": lambda p, q: [(q.copy_(t), t)[1] for t in [p + q]],
    "a new one's, which is changed": lambda p, q: [(q.copy_(t), t.add_(1))[1] for t in [p + q]],
    "given to a new one": lambda p, q: [torch.empty_like(p).copy_(p.add_(1)), p.clone()],
    "a view's": lambda p, q: (p[1:].add_(1), q[:2].copy_(p[1:]), q.mul_(2))[:0],
}


@pytest.mark.parametrize("how", _SHARES)
def test_tensors_that_share_a_value_are_whole_without_room(how: str) -> None:
    """Each is what it was before; what was made since is what it should be, or lost."""
    a, b = columns()
    p, q = torch.ones(3, device="pjrt"), torch.full((3,), 5.0, device="pjrt")
    torch_pjrt.sync()
    before = p.tolist(), q.tolist()
    expected = _SHARES[how](p.cpu(), q.cpu())

    made = _SHARES[how](p, q)
    with pytest.raises(torch.OutOfMemoryError):
        kept = (a @ b).sort(dim=0).values
        torch_pjrt.sync()
        del kept

    assert (p.tolist(), q.tolist()) == before
    for x, y in zip(made, expected, strict=True):
        try:
            assert x.tolist() == y.tolist()
        except LostValue:
            continue


def test_a_new_tensor_has_nothing_of_one_that_is_gone_without_room() -> None:
    a, b = columns()
    p, q = torch.ones(3, device="pjrt"), torch.full((3,), 5.0, device="pjrt")
    torch_pjrt.sync()
    new = p + q
    q.copy_(new)
    new.add_(1)
    del q

    with pytest.raises(torch.OutOfMemoryError):
        kept = (a @ b).sort(dim=0).values
        torch_pjrt.sync()
        del kept

    try:
        assert new.tolist() == [7.0] * 3
    except LostValue as error:
        assert "its program failed" in str(error)


_MAKES: dict[str, Callable[[], torch.Tensor]] = {
    "ones": lambda: torch.ones(N, N, device="pjrt"),
    "full": lambda: torch.full((N, N), 2.0, device="pjrt"),
    "rand": lambda: torch.rand(N, N, device="pjrt"),
    "arange": lambda: torch.arange(N * N, dtype=torch.float32, device="pjrt"),
    "uploaded and expanded": lambda: torch.ones(N).to("pjrt").expand(N, N).clone(),
    "compiled": lambda: torch.compile(torch.matmul, backend="pjrt")(*columns()),
}


@pytest.mark.parametrize("how", _MAKES)
def test_what_is_made_without_room_is_an_error_and_the_process_goes_on(how: str) -> None:
    kept = torch.arange(3.0, device="pjrt")
    torch_pjrt.sync()

    with pytest.raises(torch.OutOfMemoryError):
        made = _MAKES[how]()
        torch_pjrt.sync()
        made.cpu()

    assert pjrt.memory_allocated() < 1 << 32
    assert (kept + 1).tolist() == [1.0, 2.0, 3.0]


def test_check_for_nans_of_what_has_no_room_is_an_error() -> None:
    a, b = columns()

    with pytest.raises(torch.OutOfMemoryError), torch_pjrt.check_nans():
        (a @ b).cpu()

    assert (a + 1).sum().item() == 2 * N


def test_upload_that_the_host_has_no_room_for_is_an_error_and_the_process_goes_on() -> None:
    kept = torch.arange(3.0, device="pjrt")
    large = torch.ones(1).expand(1 << 24, 1 << 24)  # more than a process can address

    for send in (
        lambda: large.to("pjrt"),
        lambda: kept.add_(large[0].expand(1 << 24, 1 << 24).double().to("pjrt")),
    ):
        with pytest.raises(RuntimeError, match="allocate memory"):
            send()

    assert (kept + 1).tolist() == [1.0, 2.0, 3.0]
    assert pjrt.memory_allocated() < 1 << 32


def test_upload_that_the_device_has_no_room_for_is_an_error_and_the_process_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if the device were full: the CPU's memory is the host's."""
    import jax

    kept = torch.arange(3.0, device="pjrt")
    torch_pjrt.sync()
    kept.add_(1)

    def full(*_: Any) -> Any:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 12 bytes")

    for send in (
        lambda: torch.arange(3.0).to("pjrt"),
        lambda: torch.tensor([1.0, 2.0], device="pjrt"),
        lambda: kept.copy_(torch.zeros(3)),
        lambda: kept.add_(torch.zeros(3).to("pjrt")),
    ):
        with monkeypatch.context() as patched, pytest.raises(torch.OutOfMemoryError):
            patched.setattr(jax, "device_put", full)
            send()

    assert kept.tolist() == [1.0, 2.0, 3.0]
    assert torch.arange(3.0).to("pjrt").tolist() == [0.0, 1.0, 2.0]
