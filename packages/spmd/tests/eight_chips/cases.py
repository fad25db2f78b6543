"""Programs that work on one chip. Each gets `put`, which brings a CPU tensor to the device, and returns what
is compared: tensors, numbers, texts, and containers of these.
"""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from training_cases import (
    OPTIMIZERS,
    Case,
    Put,
    accumulated,
    averaged,
    checkpoints,
    clipped,
    host,
    loss_of,
    network,
    normalized,
    scaled_gradients,
    second_derivatives,
    trained_by,
    whole_numbers,
)

import torch_pjrt

# --- functions of PyTorch's and ours


def compiled(put: Put) -> Any:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).relu().sum(0)

    run = torch.compile(f, backend="pjrt")
    x, w = put(host(16, 8)).requires_grad_(), put(host(8, 8, seed=1))
    y = run(x, w)
    y.sum().backward()
    return y, x.grad, run(put(host(16, 8, seed=2)), w)


def captured(put: Put) -> Any:
    model = network(put)
    optimizer = torch.optim.Adam(model.parameters(), capturable=True)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = torch_pjrt.capture(step)
    return [run(put(host(16, 8, seed=i))).clone() for i in range(6)], list(model.parameters())


def functional(put: Put) -> Any:
    x, w = put(host(16, 8)), put(host(8, 8, seed=1))

    def f(row: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (row @ w).sin().sum()

    return (
        torch.func.vmap(f, (0, None))(x, w),
        torch.func.grad(lambda w: f(x, w))(w),
        torch.func.vmap(torch.func.grad(f, argnums=1), (0, None))(x, w),
        torch.func.jacrev(lambda r: (r @ w).sin())(x[0]),
        torch.func.jvp(lambda w: f(x, w), (w,), (w,)),
        torch.func.hessian(lambda r: (r @ w).sin().sum())(x[0]),
    )


def by_jax(put: Put) -> Any:
    import jax.numpy as jnp

    f = torch_pjrt.jax_function(lambda x: jnp.sin(x) @ x.T)
    x = put(host(16, 8)).requires_grad_()
    y = f(x)
    y.sum().backward()
    return y, x.grad


def to_jax_and_back(put: Put) -> Any:
    array = torch_pjrt.to_jax(put(host(16, 8)))
    back = torch_pjrt.from_jax(array)
    twice = torch_pjrt.from_jax(array * 2)
    back.add_(1)
    return back, twice, back @ twice.t(), np.asarray(array)


def from_threads(put: Put) -> Any:
    x, found = put(host(16, 8)), {}

    def work(i: int) -> None:
        found[i] = (x * i).sum(0) + put(host(8, seed=i))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[i] for i in range(3)]


def cut_short(put: Put) -> Any:
    from torch_pjrt import config

    before, config.tape_limit = config.tape_limit, 3
    try:
        x = put(host(16, 8))
        for i in range(10):
            x = x * 1.5 + i
            x[i] = 0
        return x
    finally:
        config.tape_limit = before


def checked_for_nans(put: Put) -> Any:
    x = put(host(16, 8))
    try:
        with torch_pjrt.check_nans():
            (x - 10).log().sum().item()
    except Exception as error:
        return type(error).__name__, str(error).splitlines()[0]
    return "none found"


# --- sizes that values decide, random numbers


def with_sizes(put: Put) -> Any:
    x, i = put(host(16, 8)), put(whole_numbers(16))
    kept = x[x > 0]
    return (
        x.nonzero(),
        (x > 0).nonzero(as_tuple=True),
        kept,
        kept.sort().values,
        kept * 2 + 1,
        x[i > 3],
        x[i > 3] @ x.t(),
        torch.masked_select(x, x < 0),
        i.unique(),
        i.unique(return_inverse=True, return_counts=True),
        torch.unique_consecutive(i),
        i.bincount(),
        torch.repeat_interleave(x, i, dim=0),
        x.masked_scatter(x > 0, x),
        torch.argwhere(x > 1),
        torch.combinations(i[:4]),
    )


def random_numbers(put: Put) -> Any:
    torch.manual_seed(3)
    x = put(host(16, 8))
    state = torch.pjrt.get_rng_state()  # type: ignore[attr-defined]
    first = torch.rand_like(x)
    torch.pjrt.set_rng_state(state)  # type: ignore[attr-defined]
    generator = torch.Generator().manual_seed(4)
    return (
        first,
        torch.rand_like(x),
        F.dropout(x, 0.5),
        torch.randn_like(x),
        torch.randint_like(x, 100),
        torch.multinomial(x.softmax(1), 3),
        torch.multinomial(x.softmax(1), 3, replacement=True),
        torch.bernoulli(x.sigmoid()),
        torch.normal(x, 2.0),
        put(torch.empty(16, 8)).exponential_(),
        put(torch.empty(16, 8)).uniform_(generator=generator),
        torch.poisson(x.abs()),
        torch.distributions.Gamma(x.abs() + 1, x.abs() + 1).sample(),
        F.gumbel_softmax(x),
        F.rrelu(x, training=True),
        nn.init.trunc_normal_(put(torch.empty(16, 8))),
        torch.randperm(16, device="pjrt"),
    )


# --- writes and indices


def writes(put: Put) -> Any:
    i = put(whole_numbers(16))

    def on(change: Callable[[torch.Tensor], Any]) -> torch.Tensor:
        x = put(host(16, 8))
        change(x)
        return x

    def set_to(*index: Any) -> Callable[[torch.Tensor], Any]:
        return lambda x: x.__setitem__(index, 5.0)

    y = put(host(16, 8, seed=1))
    return [
        on(set_to(3)),
        on(set_to(slice(2, 13, 3))),
        on(set_to(slice(None), 2)),
        on(set_to(slice(1, 5), slice(2, 7))),
        on(set_to(i > 3)),
        on(set_to(i)),
        on(set_to(i, i % 8)),
        on(lambda x: x.t()[1:3].mul_(2)),
        on(lambda x: x.flatten()[5:70].add_(1)),
        on(lambda x: x.unflatten(0, (4, 4))[:, 1].zero_()),
        on(lambda x: x[::2].copy_(y[1::2])),
        on(lambda x: x.diagonal().fill_(9)),
        on(lambda x: x.index_put_((i,), y, accumulate=True)),
        on(lambda x: x.index_put_((i, i % 8), y[:, 0])),
        on(lambda x: x.index_add_(0, i, y)),
        on(lambda x: x.index_copy_(0, i[:1], y[:1])),
        on(lambda x: x.index_fill_(1, i[:3], 2.0)),
        on(lambda x: x.scatter_(0, i[:, None].expand(16, 8), y)),
        on(lambda x: x.scatter_add_(0, i[:, None].expand(16, 8).contiguous(), y)),
        on(lambda x: x.scatter_reduce_(0, i[:, None].expand(16, 8), y, "amax")),
        on(lambda x: x.masked_fill_(y > 0, 1)),
        on(lambda x: x.sort(0, descending=True).values.add_(x)),
        on(lambda x: torch.add(x, y, out=x)),
        on(lambda x: x.copy_(host(16, 8, seed=3))),
        on(lambda x: x[3:7].copy_(host(4, 8, seed=3))),
        on(lambda x: x.set_(cast("Any", y))),
        on(lambda x: x.resize_(4, 4)),
        on(lambda x: x.unsqueeze_(0).transpose_(1, 2)),
        on(lambda x: setattr(x, "data", y * 2)),
        on(lambda x: cast("Any", torch)._foreach_mul_([x, x[0]], 2.0)),
    ]


def along_a_spread_dim(put: Put) -> Any:
    x, i = put(host(16, 8)), put(whole_numbers(16))
    return (
        [x.sort(d) for d in (0, 1)],
        [x.topk(3, d) for d in (0, 1)],
        [x.kthvalue(3, d) for d in (0, 1)],
        [x.cumsum(d) for d in (0, 1)],
        [x.cummax(d) for d in (0, 1)],
        [x.logcumsumexp(d) for d in (0, 1)],
        [x.cumprod(d) for d in (0, 1)],
        [x.softmax(d) for d in (0, 1)],
        [x.median(d) for d in (0, 1)],
        [x.mode(d) for d in (0, 1)],
        [x.flip(d) for d in (0, 1)],
        [x.roll(3, d) for d in (0, 1)],
        [x.diff(dim=d) for d in (0, 1)],
        [x.unfold(d, 3, 2) for d in (0, 1)],
        [x.chunk(3, d) for d in (0, 1)],
        [torch.cat([x, x[:, :8]], d) for d in (0, 1)],
        [torch.gather(x, d, i[:8, None].expand(8, 8)) for d in (0, 1)],
        [x.index_select(d, i) for d in (0, 1)],
        [x.renorm(2, d, 1.0) for d in (0, 1)],
        x.argsort(dim=0, stable=True),
        torch.searchsorted(x[:, 0].sort().values, x.contiguous()),
        torch.histc(x, 5),
        torch.quantile(x, 0.3, dim=0),
        F.pad(x, (1, 2, 3, 4)),
        F.interpolate(x[None], scale_factor=2),
        F.max_pool1d(x, 2),
        F.conv1d(x.t()[None], put(host(4, 8, 3))),
        F.unfold(x[None, None], 3),
        x.as_strided((5, 3), (9, 2), 4),
        torch.block_diag(x, x[:2]),
        torch.tril_indices(4, 4, device="pjrt") + i[:1],
    )


def bounds(put: Put) -> Any:
    """What is out of range is an error at the next read; nothing else is lost."""
    x, i = put(host(16, 8)), put(whole_numbers(16)) * 3
    kept = x + 1
    errors = []
    for call in (lambda: x[i], lambda: F.embedding(i, x), lambda: x.index_select(0, i)):
        try:
            call().sum().item()
        except Exception as error:
            errors.append((type(error).__name__, str(error).splitlines()[0]))
    return errors, kept


# --- dtypes and kinds of tensors


def dtypes_of_all_kinds(put: Put) -> Any:
    x = host(16, 8)
    wide = put(x.double())
    number = put(whole_numbers(16, 8, below=1 << 40))
    z = put(torch.complex(x, host(16, 8, seed=1)))
    return (
        wide @ wide.t(),
        wide.exp(),
        number * 3_000_000,
        number.sum(),
        number.to(torch.int32),
        z @ z.mH,
        z.conj() * 2,
        z.abs(),
        torch.view_as_real(z),
        torch.fft.fft(z, dim=0),
        put(x > 0) & put(x < 1),
        put(x.to(torch.float8_e4m3fn)).float(),
        put(x.bfloat16()).sum(0),
        put(x.half()) * 2,
        put(whole_numbers(16, 8).to(torch.uint8)) << 1,
        wide.to(torch.int64),
        number.view(torch.int32),
        put(x).view(torch.int16),
    )


def quantized(put: Put) -> Any:
    x, w = put(host(16, 8)), put(host(8, 8, seed=1))
    q = torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127)
    numbers = put(whole_numbers(32, 16, below=100).to(torch.int8))
    return (
        q,
        cast("Any", torch)._int_mm(numbers, numbers.t().contiguous()),
        (x.to(torch.float8_e5m2).float() @ w),
    )


def sparse(put: Put) -> Any:
    x = put(host(16, 8) * (whole_numbers(16, 8) > 4))
    s = x.to_sparse()
    return s.to_dense(), s @ x.t(), (s * 2).coalesce().values(), s.indices()


def nested(put: Put) -> Any:
    x = put(host(16, 8))
    n = torch.nested.nested_tensor([x[:3], x[3:8]], layout=torch.jagged, device="pjrt")
    return n.values() * 2, (n * 2).values()


def linear_algebra(put: Put) -> Any:
    x = put(host(16, 8))
    a = x.t() @ x + torch.eye(8, device="pjrt")
    return (
        torch.linalg.cholesky(a),
        torch.linalg.inv(a),
        torch.linalg.solve(a, x.t()),
        torch.linalg.det(a),
        torch.linalg.eigvalsh(a),
        torch.linalg.lstsq(x, x[:, :1]).solution,
        torch.linalg.svdvals(x),
        torch.linalg.matrix_norm(x),
    )


# --- tensors as things


def looked_at(put: Put) -> Any:
    x = put(host(16, 8))
    return (
        repr(x),
        str(x[3]),
        f"{x[2, 3]:.3f}",
        x.tolist(),
        x[1, 2].item(),
        float(x[0, 0]),
        bool(x[0, 0] > 100),
        len(x),
        list(x)[3],
        [row.sum().item() for row in x][:3],
        x.cpu().numpy(),
        np.asarray(x.cpu()),
        x.numpy(force=True),
        torch.equal(x, x.clone()),
        x.allclose(x + 1e-9),
        (x[0] == x[0]).all().item(),
        int(x.argmax()),
        x[3:5].t().cpu(),
        x.t().contiguous().cpu(),
        x.to(torch.float64).cpu(),
        x.to("cpu", torch.int32),
    )


def copied(put: Put) -> Any:
    x = put(host(16, 8))
    model = network(put)
    loss_of(model, put).backward()
    file = io.BytesIO()
    torch.save({"x": x, "view": x[2:5], "model": model.state_dict()}, file)
    file.seek(0)
    loaded = torch.load(file)
    file.seek(0)
    on_cpu = torch.load(file, map_location="cpu")
    deep = copy.deepcopy(model)
    loss_of(deep, put).backward()
    x_again, view = copy.deepcopy((x, x[2:5]))
    x_again.add_(1)
    return (
        loaded,
        on_cpu,
        list(deep.parameters()),
        [p.grad for p in deep.parameters()],
        (x_again, view),
        copy.copy(x),
        pickle.loads(pickle.dumps(x)),
        pickle.loads(pickle.dumps(model)).state_dict(),
        x.untyped_storage().clone().tolist()[:16],
        x.untyped_storage().cpu().tolist()[:16],
    )


def loaded(put: Put) -> Any:
    state = network(lambda x: x, seed=20).state_dict()
    one, two, three = network(put), network(put), network(put)
    one.load_state_dict(state)
    two.load_state_dict({k: put(v) for k, v in state.items()}, assign=True)
    for p, q in zip(three.parameters(), state.values(), strict=True):
        p.data = put(q)
    optimizer = torch.optim.Adam(one.parameters())
    loss_of(one, put).backward()
    optimizer.step()
    other = torch.optim.Adam(two.parameters())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    loss_of(two, put).backward()
    loss_of(three, put).backward()
    other.step()
    return [
        [*m.parameters(), *(p.grad for p in m.parameters())] for m in (one, two, three)
    ], other.state_dict()["state"]


CASES: dict[str, Case] = {
    **{f"trained by {name}": trained_by(make) for name, make in OPTIMIZERS.items()},
    **{
        case.__name__.replace("_", " "): case
        for case in (
            scaled_gradients,
            clipped,
            checkpoints,
            accumulated,
            second_derivatives,
            averaged,
            normalized,
            compiled,
            captured,
            functional,
            by_jax,
            to_jax_and_back,
            from_threads,
            cut_short,
            checked_for_nans,
            with_sizes,
            random_numbers,
            writes,
            along_a_spread_dim,
            bounds,
            dtypes_of_all_kinds,
            quantized,
            sparse,
            nested,
            linear_algebra,
            looked_at,
            copied,
            loaded,
        )
    },
}
