"""Where in the user's program an operator was called."""

from __future__ import annotations

from typing import NamedTuple


class Line(NamedTuple):
    """A position in the user's program.

    file, number  the innermost line that is neither PyTorch's, JAX's, the standard library's nor ours.
    function      the name of the function it is in.
    module        the path of the module that was running, `GPT/blocks.3/attn`; "" where none was.
    backward      the operator computes a gradient of what that line computed.

        >>> Line("model.py", 12, "forward", module="GPT/blocks.3/attn").described()
        'model.py:12, GPT/blocks.3/attn'
    """

    file: str
    number: int
    function: str
    module: str = ""
    backward: bool = False

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"

    def described(self) -> str:
        """As people read it: `model.py:12, GPT/blocks.3/attn, in backward`."""
        backward = "in backward" if self.backward else ""
        return ", ".join(filter(None, (str(self), self.module, backward)))
