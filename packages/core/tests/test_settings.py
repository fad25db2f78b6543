"""A setting that is one of some words is none other, whether a variable says it or the program."""

from __future__ import annotations

import pytest

import torch_pjrt
from torch_pjrt.errors import SettingError
from torch_pjrt.settings import WORDS, Settings

VARIABLES = {name: f"TORCH_PJRT_{name.upper()}" for name in WORDS}


@pytest.mark.parametrize("name", WORDS)
def test_each_of_its_words_can_be_set(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for word in WORDS[name]:
        monkeypatch.setattr(torch_pjrt.config, name, word)
        monkeypatch.setenv(VARIABLES[name], word)

        assert getattr(torch_pjrt.config, name) == getattr(Settings(), name) == word


@pytest.mark.parametrize("name", WORDS)
def test_the_first_word_holds_where_nobody_says_another(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLES[name], raising=False)

    assert getattr(Settings(), name) == WORDS[name][0]


@pytest.mark.parametrize("word", ["onn", "", True, None])
@pytest.mark.parametrize("name", WORDS)
def test_another_word_is_refused_and_the_setting_stays(name: str, word: object) -> None:
    before = getattr(torch_pjrt.config, name)

    with pytest.raises(SettingError, match=rf"`config.{name}` cannot be this(.|\n)*expected: "):
        setattr(torch_pjrt.config, name, word)

    assert getattr(torch_pjrt.config, name) == before


@pytest.mark.parametrize("name", WORDS)
def test_a_variable_with_another_word_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLES[name], "onn")

    with pytest.raises(SettingError, match=f"{VARIABLES[name]} cannot be read"):
        Settings()


def test_a_setting_that_there_is_not_is_refused() -> None:
    with pytest.raises(AttributeError):
        torch_pjrt.config.roll_layer = "on"  # type: ignore[attr-defined]
