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
        (["bench", "disk", "--folder", "/proc"], "folder='/proc'"),
        (["serve", "--http", "off", "--run-dir", "{tmp}/run", "--data", "/proc/no/data"], "path='/proc/no/data'"),
        (
            ["serve", "--http", "off", "--run-dir", "{tmp}/run", "--data", "{tmp}/data", "--arena-folder", "/proc/no"],
            "folder='/proc/no'",
        ),
        (["demo", "--host-memory", "much"], "size='much'"),
        (["status", "--address", "{tmp}", "--run-dir", "{tmp}"], "give one of --address, --run-dir"),
        (["verify", "--data", "{tmp}", "--run-dir", "{tmp}"], "give one of --data, --run-dir"),
        (["no-such-command"], "no-such-command"),
    ],
)
def test_a_mistake_is_named_and_exits_with_2(tmp_path, arguments, named):
    result = tierkv(*(argument.replace("{tmp}", str(tmp_path)) for argument in arguments))
    assert result.returncode == 2, result.stderr
    assert named in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("command", ["status", "verify"])
def test_a_missing_daemon_is_one_line(tmp_path, command):
    result = tierkv(command, "--run-dir", str(tmp_path / "none"))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("tierkv: no daemon here")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("module", ["tierkv", "tierkv.cli.main"])
def test_importing_loads_nothing_heavy(module):
    result = run("-c", f"import sys, {module}; print(*[name for name in {HEAVY!r} if name in sys.modules])")
    assert (result.stdout, result.stderr) == ("\n", "")
