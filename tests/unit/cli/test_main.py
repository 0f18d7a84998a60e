"""The command line as a user meets it, in a process of its own: help, version, mistakes; and how light it is."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "grpc", "lmdb")


def run(*arguments):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False)


def tierkv(*arguments):
    return run("-m", "tierkv.cli.main", *arguments)


def test_version_is_printed_alone():
    import tierkv as package

    result = tierkv("--version")
    assert (result.returncode, result.stdout, result.stderr) == (0, f"tierkv {package.__version__}\n", "")


def test_help_lists_the_commands():
    result = tierkv("--help")
    assert result.returncode == 0
    assert "bench" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["bench", "transport", "--blocks", "many"], "--blocks"),
        (["bench", "disk", "--block-bytes", "1000"], "block_bytes='1000'"),
        (["bench", "restart", "--blocks", "1"], "blocks='1'"),
        (["no-such-command"], "no-such-command"),
    ],
)
def test_a_mistake_is_named_and_exits_with_2(arguments, named):
    result = tierkv(*arguments)
    assert result.returncode == 2, result.stderr
    assert named in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("module", ["tierkv", "tierkv.cli.main"])
def test_importing_loads_nothing_heavy(module):
    result = run("-c", f"import sys, {module}; print(*[name for name in {HEAVY!r} if name in sys.modules])")
    assert (result.stdout, result.stderr) == ("\n", "")
