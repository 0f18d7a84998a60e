"""`tierkv record`: live requests of a daemon as a trace file, for `tierkv simulate`. Hashed ids, lengths and times only."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tierkv.client.observer import Recording
    from tierkv.simulator.trace import TraceWriter


@dataclass(slots=True)
class _Recorded:
    """What a recording has brought so far; printed at its end."""

    requests: int = 0
    accesses: int = 0
    unique_blocks: int = 0
    dropped: int = 0
    seconds: float = 0.0
    complete: bool = True
    """False where the daemon ended it, not we."""


def register(app: typer.Typer) -> None:
    """Adds the command to `app`."""
    app.command("record")(record)


def record(
    out: Annotated[Path, typer.Argument(metavar="OUT.jsonl[.gz|.xz|.zst]", help="File to write; made anew.")],
    seconds: Annotated[float | None, typer.Option(min=0.0, help="Stop after so many seconds.")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="Stop after so many requests.")] = None,
    address: Annotated[str | None, typer.Option(help="Run folder, or host:port. Default: the user's run folder.")] = None,
    run_dir: Annotated[str | None, typer.Option(help="The run folder; the same as --address with a folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Record the requests of a running daemon until Ctrl-C. Nothing of their content is written."""
    from tierkv.cli.output import ExitCode, only_one, print_json, progress_console, result_console
    from tierkv.client.observer import Observer
    from tierkv.simulator.trace import TraceWriter

    only_one(address=address, run_dir=run_dir)
    recorded = _Recorded()
    # The daemon first: a file of an earlier recording is not to be lost because nobody answers.
    with (
        Observer(address or run_dir) as daemon,
        _stopped_after(daemon.record(), seconds) as recording,
        contextlib.suppress(KeyboardInterrupt),  # the way to end it
        TraceWriter(out) as writer,
        progress_console().status("recording; Ctrl-C ends it") as status,
    ):
        _write_all(recording, writer, recorded, requests, status.update)
    if as_json:
        print_json({"out": out, **{name: getattr(recorded, name) for name in _Recorded.__slots__}})
    else:
        result_console().print(f"{_told(recorded)}; written to {out}", highlight=False, markup=False, soft_wrap=True)
    if not recorded.complete:
        progress_console().print("the daemon ended the recording; what came until then is in the file", style="yellow")
        raise typer.Exit(ExitCode.FAILED)


@contextlib.contextmanager
def _stopped_after(recording: Recording, seconds: float | None) -> Iterator[Recording]:
    """Ends a recording when its time is over, and in any case."""
    timer = None if seconds is None else threading.Timer(seconds, recording.stop)
    if timer is not None:
        timer.start()
    try:
        yield recording
    finally:
        if timer is not None:
            timer.cancel()
            timer.join()
        recording.stop()


def _write_all(
    recording: Recording, writer: TraceWriter, recorded: _Recorded, limit: int | None, say: Callable[[str], None]
) -> None:
    """Writes what comes until the recording ends, by itself, by Ctrl-C or by the limit."""
    from tierkv.clock import SystemClock
    from tierkv.errors import UnavailableError

    clock = SystemClock()
    began_at_s = clock.monotonic_s()
    try:
        for request in recording:
            writer.append(
                request.hash_ids,
                timestamp_ms=round(request.timestamp_ms),
                input_tokens=request.input_length,
                session=request.session,
                block_tokens=[request.block_tokens] * len(request.hash_ids),
                is_save=request.is_save,
            )
            recorded.requests += not request.is_save
            recorded.accesses += 0 if request.is_save else len(request.hash_ids)
            recorded.dropped += request.dropped
            recorded.unique_blocks = writer.num_unique
            say(_told(recorded))
            if recorded.requests == limit:
                return
        recorded.complete = recording.is_stopped
    except UnavailableError:  # killed, not stopped: what came until then is a trace all the same
        recorded.complete = False
    finally:
        recorded.seconds = clock.monotonic_s() - began_at_s


def _told(recorded: _Recorded) -> str:
    left_out = f", {recorded.dropped:,} requests left out" if recorded.dropped else ""
    return f"{recorded.requests:,} requests, {recorded.accesses:,} blocks, {recorded.unique_blocks:,} of them different{left_out}"
