"""How long each table and figure takes at the smallest scale, each in an empty folder.

OMP_NUM_THREADS=1 python benchmarks/reproduce_times.py > benchmarks/results/reproduce_times-….json
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time

import torch

from reprise.experiments import SHEETS
from reprise.machine import cores
from reprise.results import environment


def main() -> None:
    seconds = {}
    for name in SHEETS:
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            command = ["reproduce", name, "--scale", "smoke", "--out", folder]
            subprocess.run([sys.executable, "-m", "reprise", *command], check=True, stdout=sys.stderr)
            seconds[name] = time.perf_counter() - began
    content = {"what": "reprise reproduce NAME --scale smoke", "cores": cores(), "seconds": seconds}
    print(json.dumps(content | {"environment": environment(torch.device("cpu"))}, indent=1))


if __name__ == "__main__":
    main()
