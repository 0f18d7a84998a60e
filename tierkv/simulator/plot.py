"""Hit-ratio curves as a picture: one line a policy, one panel a trace. matplotlib is imported here only, and only when asked for."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tierkv.errors import InvalidRequestError
from tierkv.simulator.replay import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg", ".pdf")

_PANEL_INCHES = (6.4, 4.4)
_DPI = 150


@dataclass(frozen=True, slots=True)
class Panel:
    """The results of one trace."""

    title: str
    unique_blocks: int
    results: Sequence[Result]


def check_can_plot(path: Path) -> None:
    """Raises InvalidRequestError where a picture could not be drawn or written to `path`; to be asked before the long work."""
    if path.suffix not in SUFFIXES:
        raise InvalidRequestError("a picture's name ends in one of the known suffixes", plot=path, known=", ".join(SUFFIXES))
    if not path.parent.is_dir():
        raise InvalidRequestError("the folder for the picture does not exist; make it first", plot=path)
    if importlib.util.find_spec("matplotlib") is None:
        raise InvalidRequestError("pictures need matplotlib; pip install 'tierkv[plot]'", plot=path)


def draw(panels: Sequence[Panel], path: Path) -> None:
    """Writes the picture; OSError where the file cannot be written."""
    from matplotlib.figure import Figure

    width, height = _PANEL_INCHES
    figure = Figure(figsize=(width * len(panels), height), layout="constrained")
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, panel in zip(all_axes, panels, strict=True):
        _draw_panel(axes, panel)
    figure.savefig(path, dpi=_DPI)


def _draw_panel(axes: Axes, panel: Panel) -> None:
    lines: dict[str, list[tuple[float, float]]] = {}
    for result in panel.results:
        percent = 100 * result.capacity_blocks / panel.unique_blocks
        lines.setdefault(result.policy, []).append((percent, 100 * result.prefix_hit))
    for policy, points in lines.items():
        percents, hits = zip(*sorted(points), strict=True)
        axes.plot(percents, hits, marker="o", markersize=4, label=policy)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("capacity, % of unique blocks")
    axes.set_ylabel("prefix hit ratio, %")
    axes.set_title(panel.title)
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
