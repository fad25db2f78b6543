"""However a weight comes to be, its buffer looks like it, and is no view: kernels read it without a look.

What counts as viewed costs each of its uses more, and a view of bytes is another program, too.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import data

import torch_pjrt
from torch_pjrt.extend import buffer_of

HOST = torch.randn(4, 3)


def there() -> Tensor:
    return HOST.to("pjrt")


def layer(device: Any = "pjrt") -> nn.Linear:
    return nn.Linear(3, 4, bias=False, device=device)


def weight(made: Any) -> Tensor:
    return made.weight


def loaded(thing: Any) -> Any:
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, map_location="pjrt")


def state_loaded(into: nn.Linear, *, assign: bool = False) -> Tensor:
    into.load_state_dict(loaded({"weight": HOST}), assign=assign)
    return into.weight


def under_the_device() -> Tensor:
    with torch.device("pjrt"):
        return nn.Linear(3, 4, bias=False).weight


def with_data() -> Tensor:
    made = nn.Parameter(torch.zeros(4, 3, device="pjrt"))
    made.data = there()
    return made


def swapped() -> Tensor:
    one, other = torch.zeros(4, 3, device="pjrt"), there()
    torch.utils.swap_tensors(one, other)
    return one


def reset(made: nn.Linear) -> Tensor:
    made.reset_parameters()
    return made.weight


def pruned() -> Tensor:
    from torch.nn.utils import prune

    made = layer()
    prune.l1_unstructured(made, "weight", 0.3)
    prune.remove(made, "weight")
    return made.weight


def normed() -> Tensor:
    made: Any = nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)).to("pjrt")
    return made.parametrizations.weight.original1


def averaged() -> Tensor:
    average = torch.optim.swa_utils.AveragedModel(layer())
    average.update_parameters(layer())
    average.update_parameters(layer())
    return average.module.weight  # type: ignore[return-value]


def gradient() -> Tensor:
    made = there().requires_grad_()
    (made * 2).sum().backward()
    assert made.grad is not None
    return made.grad


def state_of(reload: Callable[[Any], Any]) -> Tensor:
    made = nn.Parameter(there())
    first, second = torch.optim.Adam([made]), torch.optim.Adam([made])
    made.grad = torch.ones_like(made)
    first.step()
    second.load_state_dict(reload(first.state_dict()))
    return second.state[made]["exp_avg"]


WAYS: dict[str, Callable[[], Tensor]] = {
    "to": there,
    "to, and back and to": lambda: weight(layer().cpu().to("pjrt")),
    "to two dtypes": lambda: weight(layer().to(torch.bfloat16).float()),
    "clone": lambda: there().clone(),
    "detach": lambda: there().detach(),
    "copy": lambda: copy.copy(there()),
    "deep copy": lambda: copy.deepcopy(there()),
    "deep copy of a layer": lambda: weight(copy.deepcopy(layer())),
    "deep copy, written to": lambda: copy.deepcopy(there()).lerp_(there(), 0.1),
    "parameter": lambda: nn.Parameter(there()),
    "data": with_data,
    "swapped": swapped,
    "shared": lambda: there().share_memory_(),
    "numbers": lambda: torch.tensor(HOST.tolist(), device="pjrt"),
    "NumPy's": lambda: torch.from_numpy(HOST.numpy()).to("pjrt"),
    "a loader's": lambda: next(iter(data.DataLoader(list(HOST), batch_size=4))).to("pjrt"),  # type: ignore[arg-type]
    "empty, copied to": lambda: torch.empty(4, 3, device="pjrt").copy_(HOST),
    "empty, initialized": lambda: nn.init.kaiming_uniform_(torch.empty(4, 3, device="pjrt")),
    "layer on the device": lambda: weight(layer()),
    "layer under the device": under_the_device,
    "layer from meta": lambda: reset(layer("meta").to_empty(device="pjrt")),
    "layer from meta, loaded": lambda: state_loaded(layer("meta").to_empty(device="pjrt")),
    "layer from meta, assigned": lambda: state_loaded(layer("meta"), assign=True),
    "layer, skipped": lambda: weight(
        nn.utils.skip_init(nn.Linear, 3, 4, bias=False, device="pjrt")
    ),
    "layer, loaded": lambda: state_loaded(layer()),
    "layer, assigned": lambda: state_loaded(layer(), assign=True),
    "layer, pruned": pruned,
    "layer, of a norm": normed,
    "layer, averaged": averaged,
    "gradient": gradient,
    "file": lambda: loaded(HOST),
    "state, copied": lambda: state_of(copy.deepcopy),
    "state, from a file": lambda: state_of(loaded),
}


@pytest.mark.parametrize("way", WAYS)
def test_buffer_looks_like_the_tensor_and_is_not_viewed(way: str) -> None:
    made = WAYS[way]()
    torch_pjrt.sync()
    buffer = buffer_of(made)

    assert (buffer.spec.shape, buffer.spec.dtype) == (made.shape, made.dtype)
    assert not buffer.viewed
