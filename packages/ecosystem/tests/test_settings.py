"""TORCH_PJRT_ECOSYSTEM switches rows of the table on and off, by library or by name."""

from __future__ import annotations

import pytest

from torch_pjrt.errors import SettingError
from torch_pjrt_ecosystem import settings

KNOWN = ("accelerate", "lightning", "accelerate.device", "lightning.auto")
ROWS = KNOWN[2:]


@pytest.mark.parametrize(
    ("value", "on"),
    [
        ("", ROWS),
        ("1", ROWS),
        ("0", ()),
        ("accelerate", ("accelerate.device",)),
        ("lightning.auto, accelerate", ROWS),
        ("-accelerate", ("lightning.auto",)),
        ("-lightning.auto", ("accelerate.device",)),
        ("-accelerate,-lightning", ()),
    ],
)
def test_a_value_leaves_these_on(
    value: str, on: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(settings.VARIABLE, value)

    is_on = settings.read(KNOWN)

    assert tuple(name for name in ROWS if is_on(name)) == on


@pytest.mark.parametrize("value", ["diffusers", "-accelerat", "accelerate,-lightning", "no"])
def test_another_value_is_refused_by_name(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.VARIABLE, value)

    with pytest.raises(SettingError, match="TORCH_PJRT_ECOSYSTEM cannot be read"):
        settings.read(KNOWN)
