"""Commands print one JSON object and turn errors into exit codes without tracebacks."""

import errno
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

from tierkv.cli.output import print_json, run_command
from tierkv.errors import ClosedError, InvalidRequestError


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    where: Path


def test_a_result_is_one_json_object_on_standard_output(capsys):
    print_json({"blocks": 2, "point": Point(1, Path("/data")), "key": b"\x01\xff"})
    out, err = capsys.readouterr()
    assert json.loads(out) == {"blocks": 2, "point": {"x": 1, "where": "/data"}, "key": "01ff"}
    assert err == ""


@pytest.mark.parametrize("value", [object(), float("nan")])
def test_what_json_cannot_say_is_refused(value):
    with pytest.raises((TypeError, ValueError)):
        print_json({"value": value})


def _raises(error):
    def command():
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (
            InvalidRequestError("host memory must be at least 1MiB", host_memory=5),
            2,
            "tierkv: host memory must be at least 1MiB: host_memory='5'\n",
        ),
        (ClosedError("the session is gone"), 1, "tierkv: the session is gone\n"),
        (KeyboardInterrupt(), 130, ""),
        (SystemExit(3), 3, ""),
        (SystemExit(None), 0, ""),
        (SystemExit("out of paper"), 1, "tierkv: out of paper\n"),
    ],
)
def test_errors_become_exit_codes(capsys, error, code, text):
    assert run_command(_raises(error)) == code
    assert capsys.readouterr().err == text


def test_success_is_zero_and_a_bug_keeps_its_traceback():
    assert run_command(lambda: None) == 0
    with pytest.raises(ZeroDivisionError):
        run_command(_raises(ZeroDivisionError()))


def test_typer_exits_with_its_code(capsys):
    app = typer.Typer()

    @app.command()
    def fail():
        raise typer.Exit(3)

    assert run_command(lambda: app([])) == 3
    assert capsys.readouterr().err == ""


def test_what_the_system_refuses_is_one_line_that_names_the_path(capsys):
    def command():
        raise OSError(errno.EROFS, "Read-only file system", "/data/LOCK")

    assert run_command(command) == 1
    assert capsys.readouterr().err == "tierkv: the system refused: path='/data/LOCK', error='Read-only file system'\n"
