"""What commands share: one JSON object on standard output, everything else on standard error, and exit codes.

Exit codes are a contract: 0 done, 1 failed, 2 the caller's mistake, 3 done but a check that was asked for failed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from rich.console import Console

from tierkv.errors import InvalidRequestError, TierKVError, UnavailableError


class ExitCode(IntEnum):
    DONE = 0
    FAILED = 1
    CALLER_MISTAKE = 2
    CHECK_FAILED = 3


SIGINT_EXIT_CODE = 130
"""128 + SIGINT, what shells expect of an interrupted command."""


def progress_console() -> Console:
    """Where progress, tables of a `--json` run and messages go: standard error."""
    return Console(stderr=True)


def result_console() -> Console:
    """Where a result for people goes: standard output."""
    return Console()


def print_json(result: Any) -> None:
    """Prints `result` as one JSON object on standard output. Dataclasses become objects; an unknown type raises TypeError."""
    sys.stdout.write(json.dumps(result, default=_plain, indent=2, allow_nan=False) + "\n")
    sys.stdout.flush()


def only_one(**options: object) -> None:
    """Refuses options that name the same thing twice. options — name of the flag → its value, None where it was not given."""
    given = {name: value for name, value in options.items() if value is not None}
    if len(given) > 1:
        raise InvalidRequestError(f"give one of {', '.join('--' + name.replace('_', '-') for name in given)}", **given)


def run_command(command: Callable[[], None]) -> int:
    """Runs a command and returns its exit code; TierKV's errors become one line on standard error, without a traceback."""
    try:
        command()
    except InvalidRequestError as error:
        return _fail(error, ExitCode.CALLER_MISTAKE)
    except TierKVError as error:
        return _fail(error, ExitCode.FAILED)
    except KeyboardInterrupt:
        return SIGINT_EXIT_CODE
    except BrokenPipeError:
        # The reader of our output left; the interpreter must not fail again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED
    except OSError as error:
        where = {} if error.filename is None else {"path": error.filename}
        return _fail(UnavailableError("the system refused", **where, error=error.strerror or error), ExitCode.FAILED)
    except SystemExit as stop:
        return _exit_code(stop)
    return ExitCode.DONE


def _fail(error: TierKVError, code: ExitCode) -> int:
    sys.stderr.write(f"tierkv: {error}\n")
    return code


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None or isinstance(stop.code, int):
        return stop.code or ExitCode.DONE
    sys.stderr.write(f"tierkv: {stop.code}\n")
    return ExitCode.FAILED


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"no JSON form of {type(value).__name__}")
