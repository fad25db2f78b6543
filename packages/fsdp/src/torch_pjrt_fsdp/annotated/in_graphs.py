"""What Dynamo traces of a model in parts: a parameter that a forward asks for is gathered there.

    self.weight    in a compiled function    annotate(annotate(p, "fsdp.parts"), "fsdp.gathered")
                   elsewhere                 what is in `_parameters`: while its block runs the gathered one

Nothing is put into modules while Dynamo traces, so that checkpoints around blocks, which may change nothing,
are traced as well. A parameter that is asked for twice is gathered once: equal nodes are merged.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn

from torch_pjrt.extend import annotate
from torch_pjrt_fsdp.annotated.gathering import GATHERED, PARTS, Lying
from torch_pjrt_spmd import marks

# Where a module has, by the names of its parameters, how they are gathered in graphs.
_ATTRIBUTE = "_torch_pjrt_fsdp_in_graphs"


class InGraph:
    """How a parameter is gathered in graphs: what Dynamo's guards compare is a few tuples.

    block   whose `resharded` says whether backward gathers again.
    """

    def __init__(self, block: Any, lying: Lying) -> None:
        self.block, self.lying = block, lying
        self.parts, self.whole = lying.written_parts(), lying.written_whole()

    def gathered(self, p: torch.Tensor) -> torch.Tensor:
        """The parameter, gathered: nodes of the graph that is traced."""
        x = annotate(p, PARTS, *self.parts)
        dtype = self.lying.dtype
        if dtype is not None and x.dtype != dtype:
            x = annotate(x.to(dtype), marks.KIND_FORWARD, *self.parts[:4])
        return annotate(x, GATHERED if self.block.resharded else marks.KIND_FORWARD, *self.whole)


def gather_in_graphs(module: nn.Module, block: Any, lying: dict[str, Lying]) -> None:
    """Have a module's parameters gathered where Dynamo traces that they are asked for."""
    module.__dict__[_ATTRIBUTE] = {name: InGraph(block, how) for name, how in lying.items()}
    module.__class__ = _class_of(type(module), tuple(lying))


@cache
def _class_of(cls: type, names: tuple[str, ...]) -> type:
    """The class with a property for each of the parameters, under the class's name."""
    said = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, (cls,), {**said, **{name: _asked_for(name) for name in names}})


def _asked_for(name: str) -> property:
    def get(self: Any) -> Any:
        p = self._parameters[name]
        # What is gathered already, by a block that is not compiled, is no `nn.Parameter`.
        if torch.compiler.is_compiling() and isinstance(p, nn.Parameter):
            return getattr(self, _ATTRIBUTE)[name].gathered(p)
        return p

    return property(get)
