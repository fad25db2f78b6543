"""Options by name: of a PJRT client when it is made, of XLA when it compiles. The user's win over a plugin's.

    TORCH_PJRT_CLIENT_OPTIONS=memory_fraction=0.5,preallocate=false
    TORCH_PJRT_COMPILE_OPTIONS=xla_embed_ir_in_executable=true

A value is a bool (`true`, `false`), an integer, a float, or else text.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from torch_pjrt.errors import SettingError

Option = str | int | float | bool
Options = Mapping[str, Option]

CLIENT = "TORCH_PJRT_CLIENT_OPTIONS"
COMPILE = "TORCH_PJRT_COMPILE_OPTIONS"


def client_options(defaults: Options | None = None) -> dict[str, Option]:
    """The options of a new client: a plugin's, with the user's over them.

    >>> client_options({"threads": 2})
    {'threads': 2}
    """
    return {**(defaults or {}), **from_environment(CLIENT)}


def from_environment(variable: str) -> dict[str, Option]:
    """The options that an environment variable holds. `SettingError` if it cannot be read."""
    options = {}
    for item in os.environ.get(variable, "").split(","):
        if not item.strip():
            continue
        name, equals, text = item.partition("=")
        if not equals or not name.strip():
            raise SettingError(
                f"{variable} cannot be read.", saw=repr(item), expected="name=value,name=value"
            )
        options[name.strip()] = _value(text.strip())
    return options


def _value(text: str) -> Option:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
