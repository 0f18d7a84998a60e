"""The result of the engine's benchmark: its bars, as JSON or CSV in a file, and as a picture. matplotlib is imported only when asked for."""

from __future__ import annotations

import csv
import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tierkv.errors import InvalidRequestError

BARS: dict[str, tuple[str, float]] = {
    "prefill": (">=", 0.9),
    "decode": (">=", 0.9),
    "streams_8": (">=", 2.0),
    "device_hit_ttft": ("<=", 1.2),
    "device_hit_vs_held": ("<=", 1.2),
    "engine_restart_ttft": ("<=", 1.2),
    "resume_vs_recompute": (">=", 5.0),
}
"""Of `ratios`. The first two are the engine's speed as a share of that of transformers; the next, 8 requests one after another against at once;
then times to first token with a prefix on the device against that of its suffix alone, against transformers with the prefix still in its hands,
and against the suffix alone after the engine was killed; and computing a prompt against resuming it."""
PICTURES = (".png", ".svg", ".pdf")
REPORTS = (".json", ".csv")


@dataclass(frozen=True, slots=True)
class EngineResult:
    """Fields of `tierkv bench engine --json`; docs/engine.md says what each is.

    single_stream — the engine's side of what `transformers` was held against; runs — one row for each load or prefix, its `case` first;
    resume — of preempted sequences.
    """

    model: str
    dtype: str
    threads: int
    block_tokens: int
    quick: bool
    parity: dict[str, Any] | None
    transformers: dict[str, Any]
    single_stream: dict[str, Any]
    runs: list[dict[str, Any]]
    ratios: dict[str, float]
    resume: dict[str, Any]
    peak_pages: int
    pages_copied_on_device_hits: int
    passed: bool


def missed(result: EngineResult) -> list[str]:
    """What does not meet its bar, as sentences."""
    sentences = []
    for name, (sign, bar) in BARS.items():
        ratio = result.ratios.get(name)
        if ratio is not None and not (ratio >= bar if sign == ">=" else ratio <= bar):
            sentences.append(f"{name} is {ratio:.3f}, not {sign} {bar}")
    if result.pages_copied_on_device_hits:
        sentences.append(f"hits on the device copied {result.pages_copied_on_device_hits} pages, not 0")
    if result.parity is not None and result.parity["identical"] != result.parity["prompts"]:
        sentences.append(f"{result.parity['identical']} of {result.parity['prompts']} answers are those of transformers")
    return sentences


def check_target(path: Path | None, suffixes: Sequence[str], option: str) -> None:
    """Raises InvalidRequestError where `path` could not be written; to be asked before the long work."""
    if path is None:
        return
    if path.suffix not in suffixes:
        raise InvalidRequestError(f"--{option} names a file with a known suffix", path=path, known=", ".join(suffixes))
    if not path.parent.is_dir():
        raise InvalidRequestError(f"the folder for --{option} does not exist; make it first", path=path)
    if path.suffix in PICTURES and importlib.util.find_spec("matplotlib") is None:
        raise InvalidRequestError("pictures need matplotlib; pip install 'tierkv[plot]'", path=path)


def write(fields: Mapping[str, Any], path: Path) -> None:
    """All fields as JSON, or the runs as CSV, one a line. OSError where the file cannot be written."""
    if path.suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(fields["runs"][0]))
            writer.writeheader()
            writer.writerows(fields["runs"])
        return
    path.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


def draw(result: EngineResult, path: Path) -> None:
    """Time to first token over the length of the prompt, one request at a time: computed, and with its prefix held on each tier."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.subplots()
    lines = {"curve": "computed", "curve_again": "prompt on the device"}
    for case, label in lines.items():
        points = sorted((run["prompt_len"], run["ttft_ms_p50"]) for run in result.runs if run["case"] == case)
        if points:
            lengths, times_ms = zip(*points, strict=True)
            axes.plot(lengths, times_ms, marker="o", markersize=4, label=label)
    markers = {"device": "o", "host": "s", "disk": "^"}
    for run in result.runs:
        if run["case"].startswith("prefix"):
            label = f"{run['case'].replace('_', ' ')}, {run['prefix_tier']}"
            marker = markers.get(run["prefix_tier"], "x")
            axes.plot([run["prompt_len"]], [run["ttft_ms_p50"]], linestyle="", marker=marker, label=label)
    axes.set_xlabel("prompt, tokens")
    axes.set_ylabel("time to first token, ms")
    axes.set_yscale("log")
    axes.set_title(f"{result.model}, {result.dtype}, {result.threads} threads")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
