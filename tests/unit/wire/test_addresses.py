"""Where daemon and clients meet when nobody says where."""

import os
from pathlib import Path

import pytest

from tierkv.wire.addresses import default_run_folder

OWN = f"/tmp/tierkv-{os.getuid()}"


@pytest.mark.parametrize(
    ("chosen", "runtime", "folder"),
    [
        ("/srv/run", "/run/user/7", "/srv/run"),
        ("", "/run/user/7", "/run/user/7/tierkv"),
        ("", "relative", OWN),
        ("", "", OWN),
    ],
)
def test_the_default_run_folder_is_the_chosen_one_then_the_users(monkeypatch, chosen, runtime, folder):
    monkeypatch.setenv("TIERKV_RUN_DIR", chosen)
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    assert default_run_folder() == Path(folder)
