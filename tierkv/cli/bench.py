"""`tierkv bench transport|disk|restart|policy`: speeds as ratios to a reference measured in the same run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tierkv.cli.output import print_json, progress_console, result_console

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

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
