"""`tierkv simulate`: replays request traces through the policies, to see what each would have hit before one is trusted."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from tierkv.simulator.replay import Result, Run, Settings
    from tierkv.simulator.trace import OnError, Trace

E = TypeVar("E", bound=StrEnum)

POLICIES = "arc,arc-paper,lru,s3fifo,belady"
CAPACITIES = "1%,5%,10%,20%"

_MIN_WIDTH = 120
"""Columns that the table needs."""


def register(app: typer.Typer) -> None:
    """Adds the command to `app`."""
    app.command("simulate")(simulate)


def simulate(
    *,
    traces: Annotated[list[Path], typer.Argument(metavar="TRACE...", help="Mooncake JSONL; .gz, .xz and .zst are unpacked.")],
    policy: Annotated[str, typer.Option(help="Policies, with commas; also arc-size and lru-chain.")] = POLICIES,
    capacity: Annotated[str, typer.Option(help="Host capacities, with commas: % of the unique blocks, or blocks.")] = CAPACITIES,
    disk: Annotated[str | None, typer.Option(help="Capacity of a disk below the host, for arc, arc-size, lru-chain.")] = None,
    write_back: Annotated[bool, typer.Option("--write-back", help="Write to disk what leaves the host, not all at once.")] = False,
    hints: Annotated[
        str | None, typer.Option(help="closed, idle or all: run also with what an agent framework would tell of its sessions.")
    ] = None,
    block_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of a block; default: told from the trace.")] = None,
    on_error: Annotated[str, typer.Option(help="stop or skip: what a malformed line does to the run.")] = "stop",
    plot: Annotated[Path | None, typer.Option(help="Draw hit-ratio curves into this .png, .svg or .pdf.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Replay request traces through eviction policies and compare their hit ratios.

    Exit code 3 if a policy of the daemon left a block behind that its chain could not reach.
    """
    from tierkv.cli.output import ExitCode, print_json, progress_console, result_console
    from tierkv.simulator import plot as plotting
    from tierkv.simulator.catalogue import is_daemon_policy
    from tierkv.simulator.trace import OnError

    console = progress_console()
    settings = _settings(policy, capacity, disk, hints, write_back=write_back)
    if plot is not None:
        plotting.check_can_plot(plot)
    outcomes = _run(traces, settings, console, block_tokens=block_tokens, on_error=_one_of(OnError, on_error, "on_error"))
    if plot is not None:
        plotting.draw([plotting.Panel(Path(trace.name).name, trace.num_unique, results) for trace, results in outcomes], plot)
    if as_json:
        reports = [_as_json(trace, results) for trace, results in outcomes]
        print_json(reports[0] if len(reports) == 1 else {"runs": reports})
    else:
        for trace, results in outcomes:
            _show(trace, results, result_console())
    if any(result.orphans for _, results in outcomes for result in results if is_daemon_policy(result.policy.split("+")[0])):
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _settings(policy: str, capacity: str, disk: str | None, hints: str | None, *, write_back: bool) -> Settings:
    from tierkv.errors import InvalidRequestError
    from tierkv.simulator.capacity import parse_capacity
    from tierkv.simulator.catalogue import check_policy
    from tierkv.simulator.oracle import HintKind
    from tierkv.simulator.replay import Settings

    if write_back and disk is None:
        raise InvalidRequestError("--write-back says when to write to a disk; give one with --disk")
    return Settings(
        policies=[check_policy(name.strip()) for name in dict.fromkeys(policy.split(","))],
        capacities=[parse_capacity(text) for text in dict.fromkeys(capacity.split(","))],
        disk=None if disk is None else parse_capacity(disk),
        write_back=write_back,
        hints=None if hints is None else _one_of(HintKind, hints, "hints"),
    )


def _one_of(choices: type[E], value: str, option: str) -> E:
    from tierkv.errors import InvalidRequestError

    if value not in list(choices):
        raise InvalidRequestError(f"--{option.replace('_', '-')} is one of {', '.join(choices)}", **{option: value})
    return choices(value)


def _run(
    paths: Sequence[Path], settings: Settings, console: Console, *, block_tokens: int | None, on_error: OnError
) -> list[tuple[Trace, list[Result]]]:
    """Reads every trace and plans every run before the first one starts, so that a mistake costs no wait."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from tierkv.clock import SystemClock
    from tierkv.simulator.replay import plan_runs, replay, with_belady_gaps
    from tierkv.simulator.trace import read_trace

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("reading", total=None)
        traces = [read_trace(path, block_tokens=block_tokens, on_error=on_error) for path in paths]
        plans = [plan_runs(trace, settings) for trace in traces]
        for trace, plan in zip(traces, plans, strict=True):
            _warn(trace, plan, console)
        total = sum(trace.num_accesses * len(plan) for trace, plan in zip(traces, plans, strict=True))
        bar.update(task, total=total, completed=0)
        outcomes = []
        for trace, plan in zip(traces, plans, strict=True):
            results = []
            for run in plan:
                bar.update(task, description=f"{Path(trace.name).name}: {run.policy} at {run.capacity}")
                results.append(
                    replay(
                        trace,
                        run,
                        write_back=settings.write_back,
                        clock=SystemClock(),
                        progress=lambda num_accesses: bar.advance(task, num_accesses),
                    )
                )
            outcomes.append((trace, with_belady_gaps(results)))
    return outcomes


def _warn(trace: Trace, plan: Sequence[Run], console: Console) -> None:
    """Says on standard error what may surprise in the figures."""
    from tierkv.simulator.trace import BlockSizeSource

    def say(sentence: str) -> None:
        console.print(f"{trace.name}: {sentence}", style="yellow", markup=False, highlight=False, soft_wrap=True)

    if trace.num_malformed:
        say(f"{trace.num_malformed:,} malformed lines were skipped")
    if trace.block_size_source is BlockSizeSource.UNKNOWN:
        say("no block size fits every prompt, so every block counts as full; give --block-tokens")
    if trace.num_sessions == 1 and any(run.hints is not None for run in plan):
        say("the trace names one session only, which hints take for one conversation: they will look worse than they are")
    sizes = {run.capacity: run.capacity_blocks for run in plan}
    sizes |= {f"{run.disk_capacity_blocks} on disk": run.disk_capacity_blocks for run in plan if run.disk_capacity_blocks}
    for given, blocks in sizes.items():
        if blocks >= trace.num_unique:
            say(f"a capacity of {given} holds everything: the trace has {trace.num_unique:,} unique blocks")


def _as_json(trace: Trace, results: Sequence[Result]) -> dict[str, object]:
    return {
        "trace": trace.name,
        "requests": trace.num_requests,
        "accesses": trace.num_accesses,
        "unique_blocks": trace.num_unique,
        "sessions": trace.num_sessions,
        "block_tokens": trace.block_tokens,
        "block_tokens_from": trace.block_size_source,
        "malformed_lines": trace.num_malformed,
        "results": [dataclasses.asdict(result) for result in results],
    }


def _show(trace: Trace, results: Sequence[Result], console: Console) -> None:
    from rich import box
    from rich.table import Table

    has_disk = any(result.disk_capacity_blocks is not None for result in results)
    size = f"blocks of {trace.block_tokens} tokens" if trace.block_tokens else "full blocks"
    counts = f"{trace.num_requests:,} requests, {trace.num_accesses:,} accesses, {trace.num_unique:,} unique, {size}; hits in %"
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("policy", no_wrap=True)
    headings = ["capacity", "blocks", "prefix %", "block %", "to Belady"]
    headings += ["host %", "disk %", "disk writes"] if has_disk else []
    for heading in [*headings, "orphans", "accesses/s"]:
        table.add_column(heading, justify="right", no_wrap=True)
    if not console.is_terminal:
        console.width = max(console.width, _MIN_WIDTH)  # a file or a pipe has no width to respect
    policy = None
    for result in results:
        if policy is not None and result.policy != policy:
            table.add_section()
        policy = result.policy
        table.add_row(*_cells(result, has_disk=has_disk))
    console.print(f"{Path(trace.name).name}: {counts}", markup=False, highlight=False, soft_wrap=True)
    console.print(table)


def _cells(result: Result, *, has_disk: bool) -> list[str]:
    gap = "–" if result.belady_gap is None else _percent(result.belady_gap)
    cells = [result.policy, result.capacity, f"{result.capacity_blocks:,}"]
    cells += [_percent(result.prefix_hit), _percent(result.block_hit), gap]
    if has_disk and result.disk_capacity_blocks is None:
        cells += ["–"] * 3
    elif has_disk:
        cells += [_percent(result.host_hit), _percent(result.disk_hit), f"{result.disk_writes:,}"]
    return [*cells, f"{result.orphans:,}", f"{result.accesses_per_s:,.0f}"]


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"
