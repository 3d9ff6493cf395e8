"""Every kernel compiles for the GPU the tiles were measured on; no GPU is needed for that."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

SCRIPT = """
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from reprise.kernels import conv_triton, norm_triton

IMAGE = dict(HEIGHT=32, WIDTH=32, INPUTS=20, OUT_HEIGHT=16, OUT_WIDTH=16, OUTPUTS=40)
FILTER = dict(ROWS=3, COLUMNS=3, STRIDE=2, PAD_Y=1, PAD_X=1, RUN=True)
TILE = dict(BLOCK_P=64, BLOCK_O=64, BLOCK_I=32, BLOCK_K=64)
SUMS = dict(OPERANDS=tl.bfloat16, SUMS=tl.float32, PRECISION="ieee")
NORM = dict(CHANNELS=20, RUN=3, CHUNKS=16, BLOCK_R=64, BLOCK_C=64, PLUS=True, RELU=True, FIXED=False)
MERGE = dict(EPS=1e-5, MOMENTUM=0.1, PARTS=64, TRACK=True, ALL=64)
CONSTANTS = IMAGE | FILTER | TILE | SUMS | MERGE
NUMBERS = ("pixels", "chunk", "spots", "span", "images")

for module, constants in ((conv_triton, CONSTANTS), (norm_triton, CONSTANTS | NORM)):
    for name, kernel in vars(module).items():
        if not isinstance(kernel, triton.JITFunction) or name.startswith("_"):
            continue
        signature, fixed = {}, {}
        for index, argument in enumerate(kernel.arg_names):
            if argument in constants:
                signature[argument], fixed[(index,)] = "constexpr", constants[argument]
            else:
                stride = argument[:2] in ("x_", "w_")
                signature[argument] = "i32" if argument in NUMBERS or stride else "*fp32"
        source = ASTSource(fn=kernel, signature=signature, constexprs=fixed)
        triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "num_stages": 2})
        print(name)
"""


@pytest.mark.slow
def test_every_kernel_compiles_for_hopper() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert set(done.stdout.split()) == {
        *("product", "spread", "filters", "lines", "line_filters", "partial_moments", "merge_moments"),
        *("normalise", "partial_gradients", "merge_gradients", "gradient"),
    }
