"""Pictures of hit-ratio curves; what is missing is told before the long work."""

import importlib.util

import pytest

from tierkv.errors import InvalidRequestError
from tierkv.simulator.plot import SUFFIXES, Panel, check_can_plot, draw
from tierkv.simulator.replay import Result

MAGIC = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


def result(policy, blocks, hit):
    return Result(policy, str(blocks), blocks, None, None, hit, hit, hit, 0.0, None, 0, 0, 1.0, None, None)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_picture_is_drawn(tmp_path, suffix):
    path = tmp_path / f"curve{suffix}"
    check_can_plot(path)
    curves = [result("arc", 5, 0.5), result("arc", 50, 0.8), result("lru", 5, 0.4)]
    draw([Panel("one", 100, curves), Panel("two", 200, curves)], path)
    assert path.read_bytes().startswith(MAGIC[suffix])


def test_a_suffix_or_folder_that_cannot_be_is_refused(tmp_path):
    with pytest.raises(InvalidRequestError, match="suffixes"):
        check_can_plot(tmp_path / "curve.jpg")
    with pytest.raises(InvalidRequestError, match="folder"):
        check_can_plot(tmp_path / "missing" / "curve.png")


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidRequestError, match=r"pip install 'tierkv\[plot\]'"):
        check_can_plot(tmp_path / "curve.png")
