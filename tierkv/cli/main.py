"""The `tierkv` command. Each sub-command lives in a module of its own that imports its heavy parts when it is run."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import tierkv
from tierkv.cli import bench, demo, engine, explain, record, serve, simulate, status, verify
from tierkv.cli.output import run_command

app = typer.Typer(
    name="tierkv",
    help="A memory-tiered, restart-safe KV cache beside LLM engines.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

# One line a command; the order is that of the help.
serve.register(app)
status.register(app)
explain.register(app)
record.register(app)
simulate.register(app)
verify.register(app)
engine.register(app)
demo.register(app)
bench.register(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tierkv {tierkv.__version__}")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """A memory-tiered, restart-safe KV cache beside LLM engines."""


def main() -> None:
    """Entry point: runs the command and exits with its code. The command line is `sys.argv`."""
    sys.exit(run_command(app))


if __name__ == "__main__":
    main()
