"""`tierkv bench transport|disk|restart|policy|engine`: speeds as ratios to a reference measured in the same run."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tierkv.cli.output import ExitCode, print_json, progress_console, result_console
from tierkv.errors import InvalidRequestError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tierkv_bench.engine_report import EngineResult

JsonFlag = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
BlocksOption = Annotated[int, typer.Option("--blocks", min=1, help="Number of blocks.")]
BlockBytesOption = Annotated[int, typer.Option("--block-bytes", min=1, help="Bytes of a block.")]
RoundsOption = Annotated[int, typer.Option("--rounds", min=1, help="Measured rounds.")]


def register(app: typer.Typer) -> None:
    """Adds the group `bench` to `app`."""
    group = typer.Typer(help="Measure this machine; every ratio has its reference in the same run.", no_args_is_help=True)
    group.command("transport")(bench_transport)
    group.command("disk")(bench_disk)
    group.command("restart")(bench_restart)
    group.command("policy")(bench_policy)
    group.command("engine")(bench_engine)
    app.add_typer(group, name="bench")


def bench_transport(
    *, blocks: BlocksOption = 64, block_bytes: BlockBytesOption = 1_572_864, rounds: RoundsOption = 30, as_json: JsonFlag = False
) -> None:
    """Blocks between a client and a daemon, beside a plain memory copy."""
    from tierkv_bench import transport

    with progress_console().status("measuring") as status:
        result = transport.measure_with_daemon(blocks=blocks, block_bytes=block_bytes, rounds=rounds, say=status.update)
    _show(result, as_json=as_json)


def bench_disk(
    *,
    num_bytes: Annotated[int, typer.Option("--bytes", min=1, help="Bytes to write and read, in whole blocks.")] = 1 << 30,
    block_bytes: BlockBytesOption = 1_572_864,
    rounds: RoundsOption = 5,
    folder: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="A folder on the disk to measure; default: that of temporary files."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Durable writes and cold reads, beside plain sequential file I/O with the same syncs."""
    from tierkv_bench import disk

    with progress_console().status("measuring") as status:
        result = disk.measure(num_bytes=num_bytes, block_bytes=block_bytes, rounds=rounds, folder=folder, say=status.update)
    _show(result, as_json=as_json)


def bench_restart(*, blocks: BlocksOption = 100_000, block_bytes: BlockBytesOption = 2048, as_json: JsonFlag = False) -> None:
    """Time until a daemon with a large index serves again, and its memory."""
    from tierkv_bench import restart

    with progress_console().status("measuring") as status:
        result = restart.measure(blocks=blocks, block_bytes=block_bytes, say=status.update)
    _show(result, as_json=as_json)


def bench_policy(
    *,
    blocks: BlocksOption = 1000,
    calls: Annotated[int, typer.Option("--calls", min=10, help="Measured calls.")] = 500,
    as_json: JsonFlag = False,
) -> None:
    """The policies' part of the daemon's work, and what keeping them warm and explaining them adds."""
    from tierkv_bench import policy

    with progress_console().status("measuring") as status:
        result = policy.measure(blocks=blocks, calls=calls, say=status.update)
    _show(result, as_json=as_json)


def bench_engine(
    *,
    batch: Annotated[str, typer.Option(help="Requests at once, with commas.")] = "1,4,8",
    prompt_len: Annotated[str, typer.Option(help="Tokens of a prompt, with commas.")] = "128,1024",
    new_tokens: Annotated[int, typer.Option(min=2, help="Tokens of an answer.")] = 32,
    suffix_len: Annotated[
        str, typer.Option(help="Tokens behind a cached prefix of 1,024, with commas; the bars are for the first.")
    ] = "8,64",
    rounds: RoundsOption = 5,
    model: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="A model folder; default: the bundled one.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of both engines; default: one a core.")] = None,
    block_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a page.")] = 16,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds: to see that it runs, not to quote.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit code 3 if a ratio misses its bar.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the result to this .json, or the runs to this .csv.")] = None,
    profile: Annotated[Path | None, typer.Option(help="Write a Chrome trace of one request to this .json.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw times to first token into this .png, .svg or .pdf.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """The reference engine beside transformers, with prefixes on each tier, killed and preempted."""
    from tierkv_bench import engine, engine_report

    engine_report.check_target(out, engine_report.REPORTS, "out")
    engine_report.check_target(profile, (".json",), "profile")
    engine_report.check_target(plot, engine_report.PICTURES, "plot")
    with progress_console().status("measuring") as status:
        options = engine.EngineOptions(
            model=model or _bundled_model(status.update),
            batches=_counts("batch", batch),
            prompt_lens=_counts("prompt_len", prompt_len),
            new_tokens=new_tokens,
            suffix_lens=_counts("suffix_len", suffix_len),
            rounds=rounds,
            block_tokens=block_tokens,
            dtype=dtype,
            threads=threads or len(os.sched_getaffinity(0)),
            profile=profile,
            curve_lens=engine.CURVE_LENGTHS if plot is not None else (),
        )
        result = engine.measure(options.quickly() if quick else options, say=status.update)
    if out is not None:
        engine_report.write(dataclasses.asdict(result), out)
    if plot is not None:
        engine_report.draw(result, plot)
    if as_json:
        print_json(result)
    else:
        _show_engine(result)
    missed = engine_report.missed(result)
    for sentence in missed:
        progress_console().print(sentence, style="yellow", markup=False, highlight=False, soft_wrap=True)
    if check and missed:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _bundled_model(report: Callable[[str], None]) -> Path:
    from tierkv.demo.model import bundled_model_folder

    return bundled_model_folder(report)


def _counts(option: str, text: str) -> tuple[int, ...]:
    """Positive numbers with commas between them."""
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 1:
        raise InvalidRequestError(f"--{option.replace('_', '-')} is one or more positive numbers with commas", **{option: text})
    return counts


def _show_engine(result: EngineResult) -> None:
    from rich import box
    from rich.table import Table

    from tierkv_bench.engine_report import BARS

    console = result_console()
    if not console.is_terminal:
        console.width = max(console.width, 140)
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("case", no_wrap=True)
    headings = ("batch", "prompt", "prefix", "prefill tok/s", "decode tok/s", "ttft p50 ms", "p99", "itl p50 ms", "p99", "copied")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for run in result.runs:
        names = ("prefill_tok_s", "decode_tok_s", "ttft_ms_p50", "ttft_ms_p99", "itl_ms_p50", "itl_ms_p99")
        numbers = ("–" if run[name] is None else f"{run[name]:,.1f}" for name in names)
        cells = [run["case"].replace("_", " "), str(run["batch"]), str(run["prompt_len"]), run["prefix_tier"] or "–"]
        table.add_row(*cells, *numbers, str(run["pages_copied"]))
    console.print(f"{result.model}, {result.dtype}, {result.threads} threads, pages of {result.block_tokens} tokens")
    console.print(table)
    ratios = Table(show_header=False, box=None)
    for name, ratio in result.ratios.items():
        ratios.add_row(name, f"{ratio:.3f}", " ".join(map(str, BARS.get(name, ()))))
    console.print(ratios)
    if result.parity is not None:
        console.print(
            f"{result.parity['identical']} of {result.parity['prompts']} answers are those of transformers, "
            f"logits within {result.parity['max_abs_logit_diff']:.1e}"
        )


def _show(result: DataclassInstance, *, as_json: bool) -> None:
    fields = dataclasses.asdict(result)
    if as_json:
        print_json(fields)
        return
    from rich.table import Table

    table = Table(show_header=False, box=None)
    for name, value in fields.items():
        table.add_row(name, _shown(value))
    result_console().print(table)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
