"""What a device must do beside operators: aliasing, donation, memory, threads, random numbers."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

import torch_pjrt

File = Callable[[str], None]


def test_writes_through_views_are_seen(pjrt_kind: File) -> None:
    pjrt_kind("aliasing")
    there, here = (torch.arange(12.0).to(device).view(3, 4) for device in ("pjrt", "cpu"))

    for x in (there, here):
        x[1].mul_(2)
        x.t()[2].fill_(7)
        x.view(-1)[::5] += 1

    torch.testing.assert_close(there.cpu(), here)


def test_tensors_that_share_memory_see_each_others_writes(pjrt_kind: File) -> None:
    pjrt_kind("aliasing")
    there, here = (torch.arange(8.0).to(device) for device in ("pjrt", "cpu"))

    for x in (there, here):
        x.detach().add_(1)
        x.data[2] = 9
        torch.mul(x[:4], 2, out=x[4:])
        x.view(torch.int32)[0] = 0
        other = torch.empty(0, device=x.device).set_(x)  # pyright: ignore[reportArgumentType]
        other.neg_()

    assert there.untyped_storage().data_ptr() == there[1:].untyped_storage().data_ptr()
    torch.testing.assert_close(there.cpu(), here)


def test_training_step_reuses_memory_where_the_device_says_so(pjrt_kind: File) -> None:
    pjrt_kind("donation")
    from torch_pjrt.client.client import client
    from torch_pjrt.observe.counters import counters

    weight = torch.ones(64, 64, device="pjrt", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    before = counters.donated
    for _ in range(3):
        weight.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    torch.testing.assert_close(weight.detach().cpu(), torch.full((64, 64), 0.8**3))
    if not client().donates:
        pytest.skip("the device declares no donation")
    assert counters.donated > before


def test_memory_grows_and_is_given_back(pjrt_kind: File) -> None:
    pjrt_kind("memory")
    before = torch.pjrt.memory_allocated()  # type: ignore[attr-defined]

    x = torch.ones(1 << 20).to("pjrt")
    torch.pjrt.synchronize()  # type: ignore[attr-defined]
    during = torch.pjrt.memory_allocated()  # type: ignore[attr-defined]
    del x

    assert during - before >= 4 << 20
    assert torch.pjrt.memory_allocated() < during  # type: ignore[attr-defined]


def test_peak_counts_what_is_gone_by_now(pjrt_kind: File) -> None:
    pjrt_kind("memory")
    torch.pjrt.reset_peak_memory_stats()  # type: ignore[attr-defined]
    before = torch.pjrt.memory_allocated()  # type: ignore[attr-defined]

    x = torch.ones(1 << 20).to("pjrt")
    torch.pjrt.synchronize()  # type: ignore[attr-defined]
    del x

    assert torch.pjrt.max_memory_allocated() >= before + (4 << 20)  # type: ignore[attr-defined]
    free, total = torch.pjrt.mem_get_info()  # type: ignore[attr-defined]
    assert 0 < free <= total


def test_threads_record_and_read_at_once(pjrt_kind: File) -> None:
    pjrt_kind("threads")
    sums: dict[int, float] = {}

    def work(n: int) -> None:
        x = torch.full((10,), float(n)).to("pjrt")
        for _ in range(5):
            x = x + 1
        sums[n] = x.sum().item()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sums == {n: 10.0 * (n + 5) for n in range(4)}


def test_seed_gives_the_same_random_numbers(pjrt_kind: File) -> None:
    pjrt_kind("random numbers")

    def draw() -> torch.Tensor:
        torch.manual_seed(3)
        return torch.rand(1000, device="pjrt").cpu()

    first = draw()
    assert torch.equal(first, draw())
    assert 0.4 < first.mean() < 0.6


def test_programs_are_compiled_once(pjrt_kind: File) -> None:
    pjrt_kind("programs")
    x = torch.ones(7).to("pjrt")

    def step() -> None:
        (x * 3).cpu()

    step()
    before = torch.pjrt.programs_compiled()  # type: ignore[attr-defined]
    for _ in range(5):
        step()
    torch_pjrt.sync()

    assert torch.pjrt.programs_compiled() == before  # type: ignore[attr-defined]
