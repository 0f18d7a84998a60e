"""`import tierkv` is light: it loads none of the heavy packages and takes no time to speak of."""

import json
import statistics
import subprocess
import sys

SCRIPT = """
import json, sys, time
start = time.perf_counter()
import tierkv
seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "heavy": [name for name in ("torch", "grpc", "lmdb", "numpy") if name in sys.modules]}))
"""


def test_import_loads_nothing_heavy_and_is_quick():
    runs = [
        json.loads(subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    ]
    assert all(run["heavy"] == [] for run in runs)
    # A bound against gross faults; the promise is 150 ms and the usual figure is under 10.
    assert statistics.median(run["seconds"] for run in runs) < 0.15
