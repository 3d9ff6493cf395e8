"""N ranks take the same steps as one: every method, in every world, in float64.

Planted faults that these tests caught: a loss averaged over the own share, BatchNorm by the own share's statistics,
gradients averaged instead of summed, HAL's running means of the own share, MMD of the own share.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from conformance import World, assert_close, contents, written
from scenes import scene_cell
from test_conformance import CASES
from tiny import CPU

from reprise import ranks as ranks_module
from reprise.ranks import Ranks
from reprise.train import Trainer

EXACT = 1e-10
ROOMS = ("sgd", "er", "car", "agem", "ewc", "lwf", "side_tuning", "multitask")
Case = tuple[str, str, dict[str, Any]]

VARIANTS: list[Case] = [
    ("task", "car", {"distance": "mmd"}),
    ("task", "car", {"distance": "weighted_l1"}),
    ("task", "er", {"bn": "separate", "batch": 3, "replay": 1}),
    ("task", "er", {"clip": 0.01}),
    ("task", "er", {"scenario": "class", "fill": "reservoir"}),
    ("task", "hal", {"second_order": True}),
    ("mixed", "car", {"optimizer": "adam", "lr": 0.001}),
    ("mixed", "multitask", {"batch": 2}),
]
"""What changes how ranks meet: distances of sets, shares that are empty, second derivatives, clipping."""


def train(world: World, name: str, fields: dict[str, Any], ranks: Ranks | None) -> Trainer:
    trainer = Trainer([world.cell(name, 1, **fields)], CPU, ranks=ranks)
    trainer.run()
    return trainer


def compare(ranks: Ranks, cases: list[Case]) -> None:
    """Each case by all ranks together and by this one alone."""
    worlds = {world.name: world for world, _ in CASES} | {"rooms": World("rooms", scene_cell)}
    for world, name, fields in cases:
        what = f"{world} {name} {fields}"
        together = train(worlds[world], name, fields, ranks)
        alone = train(worlds[world], name, fields, None)
        assert_close(contents(together), contents(alone), EXACT, what)
        mine, straight = written(together.outcomes[0]), written(alone.outcomes[0])
        assert mine["accuracy"] == straight["accuracy"], what
        assert mine["bytes"] == straight["bytes"], f"{what}: memory is counted once"
        for row, twin in zip(mine["loss"], straight["loss"], strict=True):
            assert row == pytest.approx(twin, abs=1e-9), what


def shares(ranks: Ranks, counts: list[int]) -> None:
    """Every row belongs to exactly one rank, and gathering them gives all in their order, with a gradient."""
    for count in counts:
        rows = torch.arange(count, dtype=torch.float64).requires_grad_()
        own = rows[ranks.share(count)]
        assert ranks.rows(own).tolist() == list(range(count))
        whole = (ranks.rows(own) * torch.arange(count)).sum() * (ranks.rank + 1)
        (grad,) = torch.autograd.grad(whole, rows)
        factor = sum(range(1, ranks.size + 1))
        expected = [factor * i if i in range(count)[ranks.share(count)] else 0 for i in range(count)]
        assert grad.tolist() == expected


def many_buckets(ranks: Ranks, cases: list[Case]) -> None:
    ranks_module.BUCKET_BYTES = 100
    compare(ranks, cases)


def messages(ranks: Ranks, _: object) -> None:
    said, tree = (
        {"a": [1, None, "é"]},
        {
            "x": torch.arange(3),
            "none": torch.zeros(0, 2),
            "flag": torch.tensor(True),
            "y": torch.ones(2).short(),
        },
    )
    if ranks.first:
        ranks.tell(said)
        ranks.send(tree)
    else:
        assert ranks.hear() == said
        found = ranks.receive()
        assert {n: (t.dtype, t.tolist()) for n, t in found.items()} == {
            n: (t.dtype, t.tolist()) for n, t in tree.items()
        }
    numbers = {
        dtype: torch.full((2, 2), ranks.rank, dtype=dtype).T
        for dtype in (torch.int16, torch.float64, torch.bool)
    }
    ranks.agree(numbers.values())
    assert all(t.sum() == 0 for t in numbers.values())
    assert ranks.greatest(ranks.rank * 3) == 3 * (ranks.size - 1)


def on_ranks(size: int, work: Callable[[Ranks, Any], None], argument: Any, folder: Path) -> None:
    """Run `work` in so many processes; what one of them says is raised here."""
    context = mp.get_context("spawn")
    complaints = context.Queue()
    processes = [
        context.Process(target=_rank, args=(rank, size, work, argument, folder / "meet", complaints))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    try:
        said = complaints.get(timeout=0.5)
    except queue.Empty:
        said = None
    assert said is None, said
    assert [process.exitcode for process in processes] == [0] * size


def _rank(rank: int, size: int, work: Any, argument: Any, meet: Path, complaints: Any) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "GLOO_SOCKET_IFNAME": "lo"}
    dist.init_process_group(
        "gloo", init_method=f"file://{meet}", rank=rank, world_size=size, timeout=ranks_module.PATIENCE
    )
    try:
        work(Ranks(), argument)
    except BaseException as error:
        complaints.put(f"rank {rank}: {type(error).__name__}: {error}")
        raise
    ranks_module.leave()


def test_two_ranks_are_one(tmp_path: Path) -> None:
    on_ranks(2, compare, [("task", "car", {}), ("mixed", "er", {})], tmp_path)


def test_shares_and_messages(tmp_path: Path) -> None:
    on_ranks(3, shares, [7, 3, 2, 1], tmp_path)
    (tmp_path / "meet").unlink(missing_ok=True)
    on_ranks(2, messages, None, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_every_method_in_every_world(size: int, tmp_path: Path) -> None:
    cases: list[Case] = [(world.name, name, {}) for world, name in CASES]
    on_ranks(size, compare, cases + VARIANTS, tmp_path)


def test_maps_whose_labels_are_kept_in_16_bits(tmp_path: Path) -> None:
    """Depth is remembered as the files have it."""
    fields = {"sequence": "depth,segment_semantic", "steps": 2}
    on_ranks(2, compare, [("rooms", "er", fields)], tmp_path)


@pytest.mark.slow
def test_every_method_on_rooms(tmp_path: Path) -> None:
    names = [name for world, name in CASES if world.name == "mixed" and name in ROOMS]
    assert len(names) == len(ROOMS)
    on_ranks(2, compare, [("rooms", name, {}) for name in names], tmp_path)


@pytest.mark.slow
def test_gradients_in_many_buckets(tmp_path: Path) -> None:
    on_ranks(2, many_buckets, [("task", "er", {}), ("mixed", "car", {})], tmp_path)
