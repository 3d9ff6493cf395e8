"""Tests run on one thread each: small networks gain nothing from more, and results do not depend on the machine."""

import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)
if not torch.cuda.is_available():
    # The lanes' kernels then run in Triton's interpreter, which must be asked for before Triton is imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")
