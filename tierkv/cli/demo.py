"""`tierkv demo`: a real model, a long document, SIGKILL, and the same answer again without computing the document again."""

from __future__ import annotations

import dataclasses
import signal
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Self

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from tierkv.cli.output import ExitCode, print_json, progress_console, result_console
from tierkv.errors import InvalidRequestError

if TYPE_CHECKING:
    from tierkv.demo.story import Story

NEW_TOKENS = 24
BLOCK_TOKENS = 16
HOST_MEMORY = "512MiB"
DISK = "2GiB"


def register(app: typer.Typer) -> None:
    """Adds the command to `app`."""
    app.command("demo")(demo)


def demo(
    model: Annotated[
        Path | None, typer.Option(help="A local Hugging Face folder with a causal language model; default: the bundled one.")
    ] = None,
    new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each answer.")] = NEW_TOKENS,
    block_tokens: Annotated[int, typer.Option(min=1, help="Tokens of one block.")] = BLOCK_TOKENS,
    host_memory: Annotated[str, typer.Option(help="Memory of the daemon, e.g. 2GiB; larger models need more.")] = HOST_MEMORY,
    disk: Annotated[str, typer.Option(help="Disk space of the daemon.")] = DISK,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the private folder with data and logs behind.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
) -> None:
    """Answer a question about a long document, kill everything, and answer it again.

    Exit code 3 if an answer differs from the first one, or if a restart restored nothing.
    """
    from tierkv.config import parse_size
    from tierkv.demo.model import bundled_model_folder
    from tierkv.demo.story import StoryOptions, tell

    for size in (host_memory, disk):
        parse_size(size)  # a mistake is the caller's; out of the daemon it would be a failure
    # A polite end must clean up as much as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with _Steps(progress_console()) as steps:
        folder = _checked(model) if model is not None else bundled_model_folder(steps.step)
        story = tell(StoryOptions(folder, new_tokens, block_tokens, host_memory, disk, keep), steps)
    if as_json:
        print_json(_as_json(story))
    else:
        _show(story, result_console())
    if not story.passed:
        raise typer.Exit(ExitCode.CHECK_FAILED)


class _Steps:
    """Steps of the story on a console: the running one with a spinner, finished ones with their time."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            SpinnerColumn(finished_text="•"), TextColumn("{task.description}"), TimeElapsedColumn(), console=console
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._finish()
        self._progress.stop()

    def step(self, text: str) -> None:
        self._finish()
        self._task = self._progress.add_task(text, total=1)

    def _finish(self) -> None:
        if self._task is not None:
            self._progress.update(self._task, completed=1)
            self._task = None


def _checked(model: Path) -> Path:
    if not (model / "config.json").is_file():
        raise InvalidRequestError("not a Hugging Face model folder (it has no config.json)", model=model)
    return model.resolve()


def _as_json(story: Story) -> dict[str, object]:
    return {**dataclasses.asdict(story), "runs": [dataclasses.asdict(run) for run in story.runs]}


def _show(story: Story, console: Console) -> None:
    console.print(f"\n[bold]{story.question}[/bold]\n{story.answer}\n", highlight=False)
    table = Table(title=f"{story.model}, {story.prompt_tokens} tokens of prompt, {story.new_tokens} of answer")
    table.add_column("run")
    for heading in ("first token", "tokens restored", "from", "identical", "sooner"):
        table.add_column(heading, justify="right")
    for run in story.runs:
        table.add_row(
            run.name.replace("_", " "),
            f"{run.ttft_ms:,.0f} ms",
            f"{run.restored_tokens:,}",
            run.tier or "-",
            "yes" if run.identical else "[red]no[/red]",
            f"{run.faster:.0f} x" if run.restored_tokens else "-",
        )
    console.print(table)
    if story.folder is not None:
        console.print(f"kept: {story.folder}")
    if not story.passed:
        console.print("[red]an answer differs from the first one, or a restart restored nothing[/red]")
