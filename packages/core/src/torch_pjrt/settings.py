"""What a user may set: by environment variable when the process starts, or on `torch_pjrt.config` later."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_pjrt.errors import SettingError
from torch_pjrt.options import COMPILE, Option, from_environment

#   what can be logged    when
LOGGED = {
    "recompile": "each program that is compiled after the first, with the reason",
    "sync": "each sync, with its cause",
}


def _integer(variable: str, default: int, least: int = 1) -> int:
    text = os.environ.get(variable)
    if text is None:
        return default
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise SettingError(
            f"{variable} cannot be read.", saw=repr(text), expected=f"an integer >= {least}"
        )
    return number


def _renamed(variable: str, former: str) -> str:
    """The one of the two that is set; a warning for the former name, which works for one more release."""
    if variable in os.environ or former not in os.environ:
        return variable
    warnings.warn(
        f"{former} is {variable} now; the old name goes away", FutureWarning, stacklevel=2
    )
    return former


def _folder(variable: str) -> Path | None:
    """What the variable names, None if it is empty; the user's folder of caches if it is not set."""
    text = os.environ.get(variable)
    if text is not None:
        return Path(text).expanduser() if text.strip() else None
    try:
        caches = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    except RuntimeError:  # there is no home
        return None
    return Path(caches) / "torch-pjrt"


def _one_of(variable: str, *words: str) -> str:
    """The first of `words` unless the variable says another."""
    return _checked(os.environ.get(variable) or words[0], words, f"{variable} cannot be read.")


def _checked(word: str, words: Collection[str], happened: str) -> str:
    if word not in words:
        raise SettingError(happened, saw=repr(word), expected=" or ".join(words))
    return word


def _flag(variable: str) -> bool:
    return _one_of(variable, "0", "1") == "1"


def _names(variable: str, known: Collection[str]) -> frozenset[str]:
    text = os.environ.get(variable, "")
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    if not names <= frozenset(known):
        raise SettingError(
            f"{variable} cannot be read.",
            saw=repr(text),
            expected=f"any of {', '.join(known)}, separated by commas",
        )
    return names


# Settings that are one of some words, the first if nobody says another.
WORDS = {
    "roll_layers": ("auto", "on", "off"),
    "check_nans": ("0", "1", "inf"),
    "step_ends": ("optimizer", "batch"),
}


@dataclass(slots=True)
class Settings:
    """All settings, each with the variable that sets it.

    tape_limit    TORCH_PJRT_TAPE_LIMIT: the tape is run when it holds more operators than this.
    max_programs  TORCH_PJRT_MAX_PROGRAMS: one more distinct program than this is `TooManyPrograms`.
    max_program_bytes   TORCH_PJRT_MAX_PROGRAM_BYTES: how much of the process's memory they may take, about,
                  2 GiB if it is not set; beyond that, those that ran longest ago are given back.
    log           TORCH_PJRT_LOG: what is logged at once, names of `LOGGED`.
    cache_dir     TORCH_PJRT_CACHE_DIR: where compiled programs are saved for the next process; None (the
                  variable is empty): nowhere. If it is not set: `torch-pjrt` in the user's folder of caches.
    cache_bytes   TORCH_PJRT_CACHE_BYTES: how large that folder may become, 2 GiB if it is not set.
    dump          TORCH_PJRT_DUMP: the folder to which each program that is compiled is written, or None.
                  While it is set, none is loaded from `cache_dir`.
    source_lines  TORCH_PJRT_SOURCE_LINES=1: lines of the user's program in XLA's metadata and in dumps.
    trace_memory  TORCH_PJRT_TRACE_MEMORY=1: note the line that makes each value, for lists of what holds
                  memory, and look for the peak of memory after each launch. Lines are noted from the start
                  of the device on.
    eager         TORCH_PJRT_EAGER=1: each operator runs at once.
    roll_layers   TORCH_PJRT_ROLL_LAYERS: layers that repeat become loops where that pays ("auto"), wherever
                  it can be ("on"), nowhere ("off"). For programs that are compiled from now on.
    step_ends     TORCH_PJRT_STEP_ENDS: a step's program ends with the optimizer's ("optimizer"), or where
                  the loader's next batch is fetched, with all that comes before it ("batch").
    check_nans    TORCH_PJRT_CHECK_NANS: "1" to raise where an operator makes a NaN, "inf" an infinity too.
    gc_threshold  TORCH_PJRT_GC_THRESHOLD: how many young objects there may be before Python looks for
                  garbage in the middle of a step, 20,000 if it is not set (`run/garbage.py`); 0: Python's
                  own number. Read when the device starts.
    compile_options   TORCH_PJRT_COMPILE_OPTIONS=name=value,...: XLA's options for programs that are
                  compiled from now on, over those of the device's plugin.

    From `source_lines` to `check_nans` they are read when the device starts. For a block there are
    `torch_pjrt.source_lines()`, `torch_pjrt.eager()` and `torch_pjrt.check_nans()`.

        >>> torch_pjrt.config.max_programs = 4096
    """

    tape_limit: int = field(
        default_factory=lambda: _integer(
            _renamed("TORCH_PJRT_TAPE_LIMIT", "TORCH_PJRT_TAPE_BOUND"), 10_000
        )
    )
    max_programs: int = field(default_factory=lambda: _integer("TORCH_PJRT_MAX_PROGRAMS", 10_000))
    max_program_bytes: int = field(
        default_factory=lambda: _integer("TORCH_PJRT_MAX_PROGRAM_BYTES", 2 << 30)
    )
    log: Collection[str] = field(default_factory=lambda: _names("TORCH_PJRT_LOG", LOGGED))
    cache_dir: Path | None = field(default_factory=lambda: _folder("TORCH_PJRT_CACHE_DIR"))
    cache_bytes: int = field(default_factory=lambda: _integer("TORCH_PJRT_CACHE_BYTES", 2 << 30))
    dump: str | None = field(default_factory=lambda: os.environ.get("TORCH_PJRT_DUMP") or None)
    source_lines: bool = field(default_factory=lambda: _flag("TORCH_PJRT_SOURCE_LINES"))
    trace_memory: bool = field(default_factory=lambda: _flag("TORCH_PJRT_TRACE_MEMORY"))
    eager: bool = field(default_factory=lambda: _flag("TORCH_PJRT_EAGER"))
    roll_layers: str = field(
        default_factory=lambda: _one_of("TORCH_PJRT_ROLL_LAYERS", *WORDS["roll_layers"])
    )
    step_ends: str = field(
        default_factory=lambda: _one_of("TORCH_PJRT_STEP_ENDS", *WORDS["step_ends"])
    )
    check_nans: str = field(
        default_factory=lambda: _one_of("TORCH_PJRT_CHECK_NANS", *WORDS["check_nans"])
    )
    gc_threshold: int = field(
        default_factory=lambda: _integer("TORCH_PJRT_GC_THRESHOLD", 20_000, least=0)
    )
    compile_options: dict[str, Option] = field(default_factory=lambda: from_environment(COMPILE))

    def __setattr__(self, name: str, value: Any) -> None:
        """`SettingError` for a word that a setting cannot be: it would be taken for another one."""
        if name in WORDS:
            _checked(value, WORDS[name], f"`config.{name}` cannot be this.")
        object.__setattr__(self, name, value)

    @property
    def tape_bound(self) -> int:
        """The former name of `tape_limit`: it works for one more release, with a warning."""
        warnings.warn("config.tape_bound is config.tape_limit now", FutureWarning, stacklevel=2)
        return self.tape_limit

    @tape_bound.setter
    def tape_bound(self, limit: int) -> None:
        warnings.warn("config.tape_bound is config.tape_limit now", FutureWarning, stacklevel=2)
        self.tape_limit = limit


settings = config = Settings()
