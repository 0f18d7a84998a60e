"""`tierkv explain`: where a block is and what happened to it, or what a request found and why it missed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tierkv.errors import InvalidRequestError

if TYPE_CHECKING:
    from rich.table import Table

    from tierkv.answers import Explanation

_REQUEST_PREFIX = "request:"
_KEY_DIGITS = 64
_SHORTEST_KEY_DIGITS = 8
_TOKENS_BYTES = 4 << 20
"""Longest file of token ids: the first block's are wanted, and no block has that many."""
_TOKENS_LIMIT = 65_536


def register(app: typer.Typer) -> None:
    """Adds the command to `app`."""
    app.command("explain")(explain)


def explain(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="KEY|REQUEST",
            help="A block's key (64 hex digits, or at least the first 8), or the id of a request; `request:ID` where an id looks like a key.",
        ),
    ],
    address: Annotated[str | None, typer.Option(help="Run folder, or host:port. Default: the user's run folder.")] = None,
    run_dir: Annotated[str | None, typer.Option(help="The run folder; the same as --address with a folder.")] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(help="File with the token ids (integers) of the subject's first block: finds it under other namespaces."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say why a block is held or not, or why a request hit or missed. A miss is an answer: exit code 0."""
    from tierkv.cli.output import only_one, print_json, result_console
    from tierkv.client.observer import Observer

    only_one(address=address, run_dir=run_dir)
    parsed = parse_subject(subject)
    token_ids = [] if tokens is None else read_token_ids(tokens)
    with Observer(address or run_dir) as daemon:
        explanation = daemon.explain(parsed, token_ids)
    if as_json:
        print_json(_plain(explanation))
        return
    console = result_console()
    console.print(_headline(explanation), highlight=False, soft_wrap=True)
    if explanation.events:
        console.print(_events_table(explanation))


def parse_subject(text: str) -> bytes | str:
    """A key's bytes, or a request id. Raises InvalidRequestError for digits that are no whole bytes, and for an empty id."""
    if text.startswith(_REQUEST_PREFIX):
        text = text.removeprefix(_REQUEST_PREFIX)
    elif re.fullmatch(r"[0-9a-fA-F]+", text) and _SHORTEST_KEY_DIGITS <= len(text) <= _KEY_DIGITS:
        if len(text) % 2:
            raise InvalidRequestError(
                "an abbreviated key has an even number of digits; write `request:` before it if it is a request", key=text
            )
        return bytes.fromhex(text)
    if not text:
        raise InvalidRequestError("a request id is not empty", request=text)
    return text


def read_token_ids(path: Path) -> list[int]:
    """The leading integers of a file, separated by spaces, commas or lines, with or without brackets.

    Raises InvalidRequestError for a file that cannot be read or holds something else.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_TOKENS_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError("the token ids cannot be read", tokens=path, error=error) from error
    words = text.replace("[", " ").replace("]", " ").replace(",", " ").split()
    for word in words:
        if not word.isascii() or not word.isdigit():
            raise InvalidRequestError("token ids are integers, separated by spaces or commas", tokens=path, found=word)
    if not words:
        raise InvalidRequestError("the file holds no token ids", tokens=path)
    return [int(word) for word in words[:_TOKENS_LIMIT]]


def _plain(explanation: Explanation) -> dict[str, object]:
    subject = {"request": explanation.request_id} if explanation.key is None else {"key": explanation.key.hex()}
    return {
        **subject,
        "found": explanation.found,
        "tier": explanation.tier,
        "reason": explanation.miss,
        "sentence": explanation.reason,
        "events": [{"at": event.at_s, "what": event.what, "why": event.why} for event in explanation.events],
    }


def _headline(explanation: Explanation) -> str:
    from rich.markup import escape

    what = f"request {explanation.request_id}" if explanation.key is None else f"block {explanation.key.hex()}"
    miss = f" [bold red]{explanation.miss}[/]:" if explanation.miss else ""
    return f"{escape(what)}:{miss} {escape(explanation.reason)}"


def _events_table(explanation: Explanation) -> Table:
    from rich.markup import escape
    from rich.table import Table

    from tierkv.clock import SystemClock

    now_s = SystemClock().now_ns() / 1e9
    table = Table()
    for column in ("when", "what", "why"):
        table.add_column(column, justify="right" if column == "when" else "left", overflow="fold")
    for event in explanation.events:
        table.add_row(ago(now_s - event.at_s), event.what.replace("_", " "), escape(event.why))
    return table


def ago(seconds: float) -> str:
    """A span of time as a person says it: `3.2 s ago`, `12 min ago`, `5.0 h ago`, `3 days ago`."""
    if seconds < 120:
        return f"{max(0.0, seconds):.1f} s ago"
    if seconds < 7_200:
        return f"{seconds / 60:.0f} min ago"
    if seconds < 172_800:
        return f"{seconds / 3_600:.1f} h ago"
    return f"{seconds / 86_400:.0f} days ago"
