"""What `torch.pjrt` says of memory is what arrays hold; running out of it is PyTorch's error, with a list."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
from torch import nn

import torch_pjrt
from torch_pjrt.client import memory
from torch_pjrt.client.client import client
from torch_pjrt.compile import programs
from torch_pjrt.errors import DeviceError, DeviceFull, LostValue, TorchPjrtError
from torch_pjrt.graph import tape
from torch_pjrt.tensor.storage.view import value_of

pytestmark = pytest.mark.usefixtures("no_garbage")

pjrt: Any = torch.pjrt  # type: ignore[attr-defined]

MB = 1_000_000


def used_by(make: Callable[[], object]) -> int:
    """How many bytes more are in use while what `make` makes is there."""
    pjrt.synchronize()
    before = pjrt.memory_allocated()
    made = make()
    pjrt.synchronize()
    used = pjrt.memory_allocated() - before
    del made
    return used


def test_tensor_takes_its_bytes_and_gives_them_back() -> None:
    assert used_by(lambda: torch.ones(MB, device="pjrt")) == 4 * MB
    assert used_by(lambda: torch.ones(MB, dtype=torch.int8).to("pjrt")) == MB
    assert used_by(lambda: None) == 0


def test_views_that_share_an_array_are_counted_once() -> None:
    def make() -> object:
        x = torch.ones(MB, device="pjrt")
        return x, x.view(1000, 1000), x.detach(), x.data

    assert used_by(make) == 4 * MB


def test_the_one_chip_is_chip_0_and_no_other_is_there() -> None:
    x = torch.ones(MB, device="pjrt")
    pjrt.synchronize()

    assert pjrt.memory_allocated(chip=0) == pjrt.memory_allocated() >= x.nbytes
    assert pjrt.max_memory_allocated(chip=0) == pjrt.max_memory_allocated()
    assert pjrt.memory_stats(chip=0) == pjrt.memory_stats()
    assert pjrt.mem_get_info(chip=0)[1] == pjrt.mem_get_info()[1]
    assert "chip" not in pjrt.memory_summary()
    for call in (pjrt.memory_allocated, pjrt.memory_stats, pjrt.mem_get_info, pjrt.memory_reserved):
        for number in (-1, len(client().chips)):
            with pytest.raises(DeviceError, match="no such chip"):
                call(chip=number)


def test_array_that_jax_shows_twice_is_counted_once() -> None:
    def make() -> object:
        x = torch.ones(MB, device="pjrt")
        pjrt.synchronize()
        array = value_of(x).array
        assert array is not None
        return x, jax.device_put(array, array.device, may_alias=True)

    assert used_by(make) == 4 * MB


def test_what_is_pending_takes_no_memory() -> None:
    x = torch.ones(MB, device="pjrt")
    pjrt.synchronize()
    before = pjrt.memory_allocated()

    y = x * 2

    assert pjrt.memory_allocated() == before
    assert y.shape == x.shape


def test_peak_counts_what_was_dropped_since() -> None:
    pjrt.synchronize()
    pjrt.reset_peak_memory_stats()
    before = pjrt.memory_allocated()
    assert pjrt.max_memory_allocated() == before

    x = torch.ones(MB, device="pjrt")
    pjrt.synchronize()
    del x

    assert pjrt.memory_allocated() == before
    assert pjrt.max_memory_allocated() >= before + 4 * MB
    pjrt.reset_peak_memory_stats()
    assert pjrt.max_memory_allocated() == before


def test_peak_counts_what_a_program_needs_while_it_runs() -> None:
    x = torch.ones(500, 500, device="pjrt")
    pjrt.synchronize()
    pjrt.reset_peak_memory_stats()

    x.exp().sort().values.sum().item()

    assert pjrt.max_memory_allocated() >= 2 * 4 * x.numel()  # `x`, and as much for the program


def test_peak_of_an_upload_that_was_dropped_is_seen() -> None:
    pjrt.reset_peak_memory_stats()
    before = pjrt.memory_allocated()

    torch.ones(MB).to("pjrt")

    assert pjrt.max_memory_allocated() >= before + 4 * MB


def test_launches_are_looked_at_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    x = torch.ones(3, device="pjrt")
    torch_pjrt.sync()
    programs.forget_programs()
    monkeypatch.setattr(memory, "in_use_by_chip", lambda: looks.append(1) or [0])

    for _ in range(20):
        x.mul_(1)
        torch_pjrt.sync()

    assert len(looks) == 5  # after 1, 2, 4, 8 and 16


def test_statistics_have_the_names_of_cuda() -> None:
    x = torch.ones(1000, device="pjrt")
    pjrt.synchronize()

    stats = pjrt.memory_stats()

    assert stats["allocated_bytes.all.current"] == pjrt.memory_allocated() >= 4 * x.numel()
    assert stats["allocated_bytes.all.peak"] == pjrt.max_memory_allocated()
    assert pjrt.memory_reserved() >= pjrt.memory_allocated()
    assert pjrt.max_memory_reserved() >= pjrt.max_memory_allocated()


def test_free_memory_is_less_than_all() -> None:
    free, total = pjrt.mem_get_info()

    assert 0 < free < total == pjrt.get_device_properties().total_memory


def test_properties_name_the_device() -> None:
    properties = pjrt.get_device_properties(0)

    assert properties.name == pjrt.get_device_name()
    assert properties.platform == "cpu"


def test_device_without_a_compute_capability_says_so() -> None:
    with pytest.raises(NotImplementedError, match="no CUDA GPU"):
        pjrt.get_device_capability()


def test_summary_lists_the_largest_first() -> None:
    x = torch.ones(12345, 77, device="pjrt")
    y = [torch.full((54321,), float(i), device="pjrt") for i in range(3)]
    pjrt.synchronize()

    text = pjrt.memory_summary()

    assert text.index("float32[12345, 77]") < text.index("3 x float32[54321]")
    assert "3.6 MiB" in text
    assert len(y) * len(x)


def test_exhaustion_is_an_error_of_pytorch_and_of_ours_that_lists_what_is_held() -> None:
    held = torch.ones(34567, device="pjrt")
    pjrt.synchronize()

    huge = torch.empty(1 << 45, device="pjrt").fill_(1.0)
    with pytest.raises(torch.OutOfMemoryError, match=r"ran out of memory") as raised:
        torch_pjrt.sync()

    assert huge.shape == (1 << 45,)
    assert isinstance(raised.value, (DeviceFull, TorchPjrtError))
    assert "float32[34567]" in str(raised.value)
    assert held.sum().item() == 34567


def test_exhaustion_that_the_device_tells_later_is_the_same_error() -> None:
    x = torch.ones(1 << 21, device="pjrt")

    with pytest.raises(torch.OutOfMemoryError, match="RESOURCE_EXHAUSTED"):
        (x[:, None] * x[None, :]).exp().cpu()

    assert x.sum().item() == 1 << 21


def test_tensor_of_the_program_that_had_no_room_is_lost_with_the_reason() -> None:
    huge = torch.empty(1 << 45, device="pjrt").fill_(1.0)
    with pytest.raises(torch.OutOfMemoryError):
        torch_pjrt.sync()

    with pytest.raises(LostValue, match="ran out of memory"):
        huge[:2].tolist()


def test_step_without_room_can_be_tried_again_with_less() -> None:
    def step(n: int, room: int = 1) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(n, 5, device="pjrt")).square().mean()
        loss.backward()
        filler = torch.empty(room, device="pjrt").fill_(1.0)
        optimizer.step()
        return loss + filler[0]

    torch.manual_seed(0)
    model = torch.nn.Linear(5, 3).to("pjrt")
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
    for _ in range(3):
        step(4).item()
    before = [x.cpu() for x in model.parameters()]
    state = [x.cpu() for s in optimizer.state.values() for x in s.values()]

    with pytest.raises(torch.OutOfMemoryError):
        step(8, room=1 << 45)

    assert [x.cpu().tolist() for x in model.parameters()] == [x.tolist() for x in before]
    after = [x.cpu() for s in optimizer.state.values() for x in s.values()]
    assert [x.tolist() for x in after] == [x.tolist() for x in state]
    assert step(2).item() > 0
    assert not torch.equal(next(model.parameters()).cpu(), before[0])


@pytest.mark.parametrize("where", ["compile", "launch"])
def test_exhaustion_while_compiling_and_launching_is_told(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise jax.errors.JaxRuntimeError(
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm."
        )

    x = torch.ones(3, 7, device="pjrt")
    torch_pjrt.sync()
    programs.forget_programs()
    if where == "compile":
        monkeypatch.setattr(jax.stages.Lowered, "compile", refuse)
    else:
        (x * 3).sum().item()
        monkeypatch.setattr(jax.stages.Compiled, "__call__", refuse)
    y = x * 3

    with pytest.raises(torch.OutOfMemoryError, match="memory space hbm"):
        torch_pjrt.sync()

    monkeypatch.undo()
    assert (x + 1).sum().item() == 42
    assert y.shape == x.shape


def test_number_of_exhaustions_is_counted() -> None:
    before = pjrt.memory_stats()["num_ooms"]

    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 45, device="pjrt").fill_(1.0).cpu()

    assert pjrt.memory_stats()["num_ooms"] > before


def test_size_past_64_bits_is_refused_as_on_the_cpu() -> None:
    with pytest.raises(RuntimeError, match="Storage size calculation overflowed") as there:
        torch.empty(1 << 62)
    with pytest.raises(RuntimeError, match="Storage size calculation overflowed") as here:
        torch.empty(1 << 62, device="pjrt")

    assert str(here.value) == str(there.value)


def test_many_absurd_sizes_do_not_use_addresses_up() -> None:
    for _ in range(40):
        torch.empty(1 << 58, device="pjrt")

    assert torch.ones(2, device="pjrt").view(2, 1).sum().item() == 2


def test_traced_memory_names_the_line(python: Any) -> None:
    script = """
import torch, torch_pjrt
model = torch.nn.Linear(123, 321).to("pjrt")
x = torch.ones(45, 123, device="pjrt")
y = model(x)                                    # line 5
torch_pjrt.sync()
print(torch.pjrt.memory_summary())
try:
    torch.empty(1 << 45, device="pjrt").fill_(1.0).cpu()
except torch.OutOfMemoryError as error:
    print(error)
"""
    text = python(script, TORCH_PJRT_TRACE_MEMORY="1").stdout
    summary, _, error = text.partition("ran out of memory")

    for part in (summary, error):
        assert "float32[321, 123]  made at <string>:3" in part
        assert "float32[45, 321]  made at <string>:5" in part


def test_traced_memory_names_the_lines_of_a_training_step(python: Any) -> None:
    script = """
import torch, torch_pjrt
model = torch.nn.Linear(123, 321, device="pjrt")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loss = model(torch.ones(45, 123, device="pjrt")).square().sum()   # line 5
loss.backward()
optimizer.step()                                                  # line 7
buffer = torch.zeros(77, device="pjrt")
buffer += 2                                                       # line 9
of_list = torch.tensor([1.0, 2.0, 3.0], device="pjrt")            # line 10
for size in (2, 3): kept = torch.arange(size * 11, device="pjrt") # line 11
torch_pjrt.sync()
print(torch.pjrt.memory_summary())
"""
    text = python(script, TORCH_PJRT_TRACE_MEMORY="1").stdout

    made = re.findall(r"(?:(\d) x )?(\w+\[[\d, ]*\])  made at <string>:(\d+)", text)
    of = {(what, int(line)) for _, what, line in made}
    assert ("float32[321, 123]", 7) in of  # the weight, after the step
    assert ("float32[321, 123]", 5) in of  # its gradient: the line of the operator
    assert ("float32[77]", 9) in of
    assert ("float32[3]", 10) in of
    assert ("int64[33]", 11) in of


def test_traced_memory_is_off_by_default() -> None:
    assert "made at" not in pjrt.memory_summary()
    assert tape.on_array is None


def test_memory_of_a_training_step_does_not_grow() -> None:
    model = nn.Linear(64, 64).to("pjrt")
    optimizer = torch.optim.AdamW(model.parameters())
    peaks = []
    for _ in range(6):
        pjrt.reset_peak_memory_stats()
        model(torch.ones(8, 64, device="pjrt")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        peaks.append(pjrt.max_memory_allocated())

    assert peaks[3] == peaks[-1]


@pytest.mark.slow
def test_peak_of_a_program_from_disk_is_seen_too(python: Any, tmp_path: Any) -> None:
    script = """
import torch, torch_pjrt
x = torch.ones(500, 500, device="pjrt")
torch_pjrt.sync()
x.exp().sort().values.sum().item()
print(torch.pjrt.max_memory_allocated() >= 8 * x.numel(), torch.pjrt.programs_compiled())
"""
    told = [python(script, TORCH_PJRT_CACHE_DIR=str(tmp_path)).stdout.split() for _ in range(2)]

    assert told == [["True", "1"], ["True", "0"]]
