"""The daemon helper against small stand-in processes: ready, early end, silence, stop and kill."""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tierkv.errors import UnavailableError
from tierkv.testing.daemon import DaemonOptions, DaemonProcess, start_daemon

READY = """print('{"event": "ready"}', flush=True)\n"""
SERVE = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n" + READY + "while True: signal.pause()\n"


@dataclass(frozen=True, slots=True)
class ScriptOptions(DaemonOptions):
    script: str = ""

    def command(self):
        return [sys.executable, "-c", self.script]


def daemon_of(tmp_path, script):
    options = ScriptOptions(data=tmp_path / "data", run_dir=tmp_path / "run", script=script)
    return DaemonProcess(options, log=tmp_path / "logs" / "daemon.log")


def test_flags_are_those_of_serve():
    options = DaemonOptions(data=Path("/d"), run_dir=Path("/r"), durability="strict", extra=("--listen", "127.0.0.1:0"))
    assert options.command()[1:] == [
        "-m", "tierkv.cli.main", "serve", "--data", "/d", "--run-dir", "/r", "--host-memory", "64MiB", "--disk", "256MiB",
        "--http", "off", "--durability", "strict", "--listen", "127.0.0.1:0",
    ]  # fmt: skip


def test_serves_until_it_is_asked_to_stop(tmp_path):
    with daemon_of(tmp_path, SERVE) as daemon:
        daemon.start()
        assert daemon.wait_ready() > 0
        assert daemon.is_running
        assert daemon.log_events() == [{"event": "ready"}]
        assert daemon.stop() == 7
        assert not daemon.is_running


def test_a_second_start_waits_for_its_own_ready_line(tmp_path):
    with daemon_of(tmp_path, SERVE) as daemon:
        daemon.start()
        daemon.wait_ready()
        with pytest.raises(UnavailableError, match="runs already"):
            daemon.start()
        daemon.kill()
        daemon.start()
        daemon.wait_ready()
        assert daemon.log_events() == [{"event": "ready"}]
        assert daemon.log.read_text().count("ready") == 2


def test_an_early_end_is_told_with_the_log(tmp_path):
    with daemon_of(tmp_path, "import sys; sys.exit('the folder is locked')") as daemon:
        daemon.start()
        with pytest.raises(UnavailableError, match=r"ended before it was ready.*exit_code='1'.*the folder is locked"):
            daemon.wait_ready()


def test_settings_of_the_users_own_daemon_do_not_reach_the_child(tmp_path, monkeypatch):
    monkeypatch.setenv("TIERKV_LISTEN", "127.0.0.1:9999")
    script = f"import os; print([name for name in os.environ if name.startswith('TIERKV_L')])\n{SERVE}"
    with daemon_of(tmp_path, script) as daemon:
        daemon.start()
        daemon.wait_ready()
        assert daemon.log_tail().startswith("[]")


def test_silence_is_told_after_the_deadline(tmp_path):
    with daemon_of(tmp_path, "import signal; signal.pause()") as daemon:
        daemon.start()
        with pytest.raises(UnavailableError, match="not ready in time"):
            daemon.wait_ready(timeout_s=0.05)
    assert not daemon.is_running


def test_start_daemon_leaves_no_process_when_it_fails(tmp_path):
    options = ScriptOptions(data=tmp_path, run_dir=tmp_path, script="raise SystemExit(2)")
    with pytest.raises(UnavailableError, match="exit_code='2'"):
        start_daemon(options, log=tmp_path / "log")


def test_asking_a_daemon_that_was_not_started_is_an_error(tmp_path):
    daemon = daemon_of(tmp_path, SERVE)
    with pytest.raises(UnavailableError, match="not started"):
        daemon.stop()
    daemon.kill()
    assert not daemon.log.parent.exists()
