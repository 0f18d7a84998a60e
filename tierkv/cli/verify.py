"""`tierkv verify`: reads every block at rest and compares it with its checksum; through the daemon, or on a folder that nobody serves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tierkv.answers import VerifyReport

    Progress = Callable[[int, int, int], None]


def register(app: typer.Typer) -> None:
    """Adds the command to `app`."""
    app.command("verify")(verify)


def verify(
    data: Annotated[Path | None, typer.Option(help="Data folder to read; needs that no daemon serves it.")] = None,
    address: Annotated[str | None, typer.Option(help="Run folder of the daemon, or host:port. Default: the user's.")] = None,
    run_dir: Annotated[str | None, typer.Option(help="The run folder; the same as --address with a folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check every frame's checksum. Exit code 3 when something is damaged; nothing is changed."""
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TransferSpeedColumn

    from tierkv.cli.output import ExitCode, only_one, print_json, progress_console

    only_one(data=data, address=address, run_dir=run_dir)
    console = progress_console()
    columns = (TextColumn("frames"), BarColumn(), MofNCompleteColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, disable=as_json or not console.is_terminal, transient=True) as bar:
        frames_bar = bar.add_task("frames", total=None)

        def show(frames: int, total: int, _num_bytes: int) -> None:
            bar.update(frames_bar, completed=frames, total=total)

        report = _verify_folder(data, show) if data is not None else _verify_daemon(address or run_dir, show)
    if as_json:
        damaged = [{"key": frame.key.hex(), "where": frame.where, "what": frame.what} for frame in report.damaged]
        print_json({"frames": report.frames, "bytes": report.num_bytes, "damaged": damaged})
    else:
        _print_report(report)
    if report.damaged:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _verify_folder(data: Path, progress: Progress) -> VerifyReport:
    from tierkv.assemble import verify_folder

    return verify_folder(data, progress)


def _verify_daemon(address: str | None, progress: Progress) -> VerifyReport:
    from tierkv.answers import DamagedFrame, VerifyReport
    from tierkv.client.observer import Observer
    from tierkv.model.keys import block_key

    with Observer(address) as daemon:
        done = daemon.verify(progress)
    damaged = tuple(DamagedFrame(block_key(frame.key), frame.where, frame.what) for frame in done.damaged)
    return VerifyReport(done.frames, done.bytes, damaged)


def _print_report(report: VerifyReport) -> None:
    from tierkv.cli.output import result_console

    console = result_console()
    console.print(f"{report.frames:,} frames, {report.num_bytes:,} bytes, {len(report.damaged)} damaged")
    for frame in report.damaged:
        console.print(f"  {frame.key.hex()[:16]}…  {frame.where}  {frame.what}")
