"""Groups that fit a real GPU, of which most is taken: `pytest -m gpu`."""

from pathlib import Path
from typing import Any

import pytest
import torch
from test_results import experiment

from reprise.errors import InputError
from reprise.progress import Notice
from reprise.results import read_store
from reprise.runner import run_experiments

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine shows no GPU"),
]
ROOM = 3 * 2**29
FIELDS: dict[str, Any] = {"encoder": "resnet18-reduced", "steps": 12}


def test_a_gpu_that_is_nearly_full(tmp_path: Path) -> None:
    taken = torch.empty(torch.cuda.mem_get_info()[0] - ROOM, dtype=torch.uint8, device="cuda")
    points = [experiment("er", **FIELDS), experiment("car", **FIELDS)]
    said: list[Any] = []
    records = [*run_experiments(points, range(60), store=tmp_path, device="cuda", watch=said.append)]
    assert len(records) == len([*read_store(tmp_path)]) == 120
    notices = [one.text for one in said if isinstance(one, Notice)]
    assert notices[0].startswith("120 lanes do not fit into the GPU's memory; going on with ")
    with pytest.raises(
        InputError, match="lanes: 300 do not fit into the GPU's .* GiB; at most \\d+ do; give"
    ):
        [*run_experiments(points[:1], range(300), device="cuda", lanes=300)]
    del taken
