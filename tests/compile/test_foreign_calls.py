"""A program that calls foreign functions runs in a process that loads it, or it is not kept on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from fixture_types import Run
from torch_pjrt.client.client import client
from torch_pjrt.compile.executables import from_bytes, to_bytes
from torch_pjrt.graph.boundary import Boundary
from torch_pjrt.plugin import ForeignCalls
from written_plugins import with_plugin

pytestmark = pytest.mark.slow

#    what calls LAPACK                     on a symmetric, positive definite matrix `a` and a vector `b`
LAPACK = {
    "inv": "torch.linalg.inv(a)",
    "det": "torch.linalg.det(a)",
    "slogdet": "torch.linalg.slogdet(a).logabsdet",
    "cholesky": "torch.linalg.cholesky(a)",
    "cholesky_solve": "torch.cholesky_solve(b[:, None], a.tril())",
    "cholesky_inverse": "torch.cholesky_inverse(a.tril())",
    "qr": "torch.linalg.qr(a).R.abs()",
    "svd": "torch.linalg.svd(a).S",
    "svdvals": "torch.linalg.svdvals(a)",
    "eigh": "torch.linalg.eigh(a).eigenvalues",
    "eigvalsh": "torch.linalg.eigvalsh(a)",
    "eig": "torch.linalg.eig(a).eigenvalues.real.sort().values",
    "eigvals": "torch.linalg.eigvals(a).abs().sort().values",
    "solve": "torch.linalg.solve(a, b)",
    "lstsq": "torch.linalg.lstsq(a, b[:, None]).solution",
    "pinv": "torch.linalg.pinv(a)",
    "matrix_rank": "torch.linalg.matrix_rank(a)",
    "matrix_exp": "torch.linalg.matrix_exp(a / 8)",
    "lu": "torch.linalg.lu(a).U",
    "lu_factor": "torch.linalg.lu_factor(a).LU",
    "ldl": "torch.linalg.ldl_factor(a).LD",
    "solve_triangular": "torch.linalg.solve_triangular(a, b[:, None], upper=True)",
    "householder_product": "torch.linalg.householder_product(a, b)",
    "cond": "torch.linalg.cond(a)",
    "nuclear norm": "torch.linalg.matrix_norm(a, 'nuc')",
    "in double": "torch.linalg.inv(a.double())",
    "complex": "torch.linalg.inv(a.cfloat()).abs()",
    "complex in double": "torch.linalg.svdvals(a.cdouble())",
    "a batch": "torch.linalg.inv(a.expand(3, 4, 4))",
    "MultivariateNormal": "torch.distributions.MultivariateNormal(b, a).log_prob(b + 1)",
    "a gradient": "torch.func.grad(lambda m: torch.linalg.slogdet(m).logabsdet)(a)",
}

CALL = """
import json, warnings
import torch
import torch_pjrt

warnings.simplefilter("ignore")
values = {}
here = torch.tensor([[4., 1, 0, 1], [1, 5, 2, 0], [0, 2, 6, 1], [1, 0, 1, 7]])
for name, call in json.loads(CALLS).items():
    both = []
    for a in (here, here.to("pjrt")):
        b = a[0] / 2
        both.append(eval(call).cpu().double())
    torch.testing.assert_close(both[1], both[0], rtol=1e-4, atol=1e-4)
    values[name] = both[1].flatten().tolist()
counts = torch_pjrt.report().as_dict()
print(json.dumps([values, counts["programs_compiled"], counts["programs_loaded"], counts["not_kept"]]))
"""


QUICKLY = {"XLA_FLAGS": "--xla_backend_optimization_level=0"}  # compiled, not run


@pytest.fixture
def called(python: Run, tmp_path: Path) -> Callable[..., Any]:
    """What the calls gave in a process of its own; how many programs were compiled, loaded, and not kept."""

    def run(calls: dict[str, str], **variables: str) -> Any:
        script = f"CALLS = {json.dumps(calls)!r}\n{CALL}"
        variables = {"TORCH_PJRT_CACHE_DIR": str(tmp_path / "programs"), **QUICKLY, **variables}
        return json.loads(python(script, **variables).stdout)

    return run


def test_programs_that_call_lapack_run_where_they_are_loaded(called: Any) -> None:
    values, compiled, _, not_kept = called(LAPACK)
    again, compiled_again, loaded, _ = called(LAPACK)

    assert (compiled_again, loaded, not_kept) == (0, compiled, {})
    assert again == values


CALLS_BACK = """
import jax, numpy as np, torch
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.plugin import impl

table = LoweringTable("theirs")

@table.lowers(torch.ops.aten.sinc.default)
def sinc(x):
    return jax.pure_callback(np.sinc, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

@impl
def torch_pjrt_lowerings(device):
    return table
"""


def test_a_program_with_a_call_that_no_plugin_sets_up_is_not_kept(
    called: Any, tmp_path: Path
) -> None:
    variables = with_plugin(tmp_path, "calls_back", CALLS_BACK)
    calls = {"sinc": "torch.sinc(a)", "sin": "torch.sin(a)"}

    (values, compiled, _, not_kept), (again, *counts, _) = (
        called(calls, **variables),
        called(calls, **variables),
    )

    assert again == values
    assert sum(not_kept.values()) == 1
    assert "unknown custom call `" in next(iter(not_kept))
    assert counts == [1, compiled - 1]


SETS_UP = """
from pathlib import Path
from torch_pjrt.plugin import ForeignCalls, impl

def set_up():
    path = Path(__file__).with_suffix(".ran")
    path.write_text((path.read_text() if path.exists() else "") + "x")

@impl
def torch_pjrt_foreign_calls(device):
    return [ForeignCalls(["lapack_*"], set_up)]
"""


def test_a_plugin_sets_up_its_calls_once_and_only_in_a_process_that_loads(
    called: Any, tmp_path: Path
) -> None:
    variables = with_plugin(tmp_path, "sets_up", SETS_UP)
    calls = {name: LAPACK[name] for name in ("inv", "eigh")}

    called(calls, **variables)
    assert not (tmp_path / "sets_up.ran").exists()
    called(calls, **variables)
    assert (tmp_path / "sets_up.ran").read_text() == "x"


def test_a_set_up_that_fails_costs_the_program_on_disk_and_nothing_else() -> None:
    program = jax.jit(jnp.sin).lower(jax.ShapeDtypeStruct((2,), jnp.float32)).compile()
    content = to_bytes(program, Boundary((), (), ()), ["theirs"])
    assert content is not None

    def with_row(*rows: ForeignCalls) -> Any:
        return from_bytes(content, replace(client(), foreign_calls=rows))

    assert with_row(ForeignCalls(["theirs"])) is not None
    assert with_row(ForeignCalls(["theirs"], lambda: 1 / 0)) is None
    assert with_row() is None
