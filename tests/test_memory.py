"""Memory: rows of named columns, written and read back in the dtype of the source."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reprise.memory import Memory, Shelf, Spec
from reprise.types import Tree

quick = settings(max_examples=60, deadline=None, database=None)
CPU = torch.device("cpu")
SPEC: Spec = {
    "x": ((3, 4, 4), torch.uint8),
    "y": ((), torch.uint8),
    "task": ((), torch.int16),
    "activation": ((5,), torch.float32),
}


def shelf_of(*capacities: int, stacked: bool = False, spec: Spec = SPEC) -> Shelf:
    return Shelf(capacities, spec, stacked, CPU)


def examples(n: int, seed: int = 0) -> Tree:
    """n examples as a task hands them over: labels and task are still wide."""
    random = torch.Generator().manual_seed(seed)
    return {
        "x": torch.randint(0, 256, (n, 3, 4, 4), generator=random, dtype=torch.uint8),
        "y": torch.randint(0, 5, (n,), generator=random),
        "task": torch.full((n,), seed),
        "activation": torch.randn(n, 5, generator=random),
    }


def remember(shelf: Shelf, task: int, n: int, lane: int = 0) -> np.ndarray:
    rows = shelf.free_rows(lane, n)
    shelf.write(lane, rows, examples(n, task), task)
    return rows


def assert_same(found: Tree, written: Tree) -> None:
    """Equal values, in the dtype of the shelf."""
    assert found.keys() == written.keys() == SPEC.keys()
    for name, column in found.items():
        assert column.dtype == SPEC[name][1], name
        assert torch.equal(column, written[name].to(column.dtype)), name


# Writing and reading


def test_a_single_shelf_gives_back_what_was_written() -> None:
    shelf, written = shelf_of(6), examples(3)
    shelf.write(0, np.array([4, 0, 5]), written, task=2)
    assert_same(shelf.take(torch.tensor([4, 0, 5])), written)
    assert_same(shelf.take(torch.tensor([5, 4])), {name: c[[2, 0]] for name, c in written.items()})
    assert shelf.take(torch.tensor([1, 2, 3]))["x"].count_nonzero() == 0


def test_lanes_of_a_stacked_shelf_do_not_see_each_other() -> None:
    shelf = shelf_of(4, 4, 4, stacked=True)
    written = {lane: examples(2, seed=lane) for lane in (0, 2)}
    for lane, columns in written.items():
        shelf.write(lane, np.array([3, lane]), columns, task=1)
    found = shelf.take(torch.tensor([[3, 0], [0, 1], [3, 2]]))
    assert found["x"].shape == (3, 2, 3, 4, 4)
    assert found["y"].shape == (3, 2)
    for lane, columns in written.items():
        assert_same({name: column[lane] for name, column in found.items()}, columns)
    assert all(column[1].count_nonzero() == 0 for column in found.values())
    assert shelf.tasks(0) == shelf.tasks(2) == [1]
    assert shelf.tasks(1) == []


@quick
@given(st.lists(st.integers(0, 7), min_size=1, max_size=7, unique=True), st.data())
def test_a_stack_equals_its_lanes_one_by_one(rows: list[int], data: st.DataObject) -> None:
    stacked, singles = shelf_of(8, 8, stacked=True), [shelf_of(8), shelf_of(8)]
    for lane, single in enumerate(singles):
        written = examples(len(rows), seed=lane)
        stacked.write(lane, np.array(rows), written, task=lane)
        single.write(0, np.array(rows), written, task=lane)
    index = torch.tensor(
        data.draw(st.lists(st.lists(st.integers(0, 7), min_size=4, max_size=4), min_size=2, max_size=2))
    )
    found = stacked.take(index)
    for lane, single in enumerate(singles):
        assert_same({name: column[lane] for name, column in found.items()}, single.take(index[lane]))


def test_a_row_written_again_belongs_to_the_later_task() -> None:
    shelf = shelf_of(4)
    shelf.write(0, np.array([0, 1, 2]), examples(3), task=0, labels=np.array([0, 1, 2]))
    shelf.write(0, np.array([1]), examples(1, seed=9), task=3, labels=np.array([4]))
    assert shelf.rows_of(0, 0).tolist() == [0, 2]
    assert shelf.rows_of(0, 3).tolist() == [1]
    assert shelf.label[0].tolist() == [0, 4, 2, -1]
    assert_same(shelf.take(torch.tensor([1])), examples(1, seed=9))


def test_a_row_has_a_label_only_where_its_example_has_a_class() -> None:
    shelf = shelf_of(3)
    shelf.write(0, np.array([0, 1]), examples(2), task=0, labels=np.array([3, 1]))
    shelf.write(0, np.array([0]), examples(1), task=1)
    assert shelf.label[0].tolist() == [-1, 1, -1]


def test_writing_no_rows_changes_nothing() -> None:
    shelf = shelf_of(0)
    shelf.write(0, np.empty(0, np.int64), {}, task=0)
    assert shelf.tasks(0) == []
    assert shelf.take(torch.empty(0, dtype=torch.long))["x"].shape == (0, 3, 4, 4)


# Whose rows are whose


def test_rows_are_handed_out_from_the_front_and_freed_rows_first() -> None:
    shelf = shelf_of(8)
    assert remember(shelf, task=0, n=3).tolist() == [0, 1, 2]
    assert remember(shelf, task=1, n=3).tolist() == [3, 4, 5]
    shelf.shrink(0, task=0, count=1)
    assert shelf.free_rows(0, 0).tolist() == []
    assert remember(shelf, task=2, n=3).tolist() == [1, 2, 6]
    assert shelf.rows_of(0, 2).tolist() == [1, 2, 6], "in the order in which they were written"
    with pytest.raises(ValueError, match="2 rows were asked for, but only 1 are free"):
        shelf.free_rows(0, 2)


@quick
@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.data())
def test_shrinking_keeps_the_first_examples_of_a_task_and_all_of_the_others(
    sizes: list[int], data: st.DataObject
) -> None:
    shelf = shelf_of(20, 20, stacked=True)
    for lane in (0, 1):
        for task, n in enumerate(sizes):
            remember(shelf, task, n, lane)
    task = data.draw(st.integers(0, len(sizes) - 1))
    count = data.draw(st.integers(0, 6))
    before = {t: shelf.rows_of(1, t).tolist() for t in range(len(sizes))}
    shelf.shrink(1, task, count)
    after = {t: shelf.rows_of(1, t).tolist() for t in range(len(sizes))}
    assert after == before | {task: before[task][:count]}
    kept = torch.tensor(after[task], dtype=torch.long).expand(2, -1)
    first = {name: column[:count] for name, column in examples(sizes[task], task).items()}
    assert_same({name: column[1] for name, column in shelf.take(kept).items()}, first)
    assert all(len(shelf.rows_of(0, t)) == n for t, n in enumerate(sizes)), "the other lane is untouched"


@pytest.mark.parametrize("shelves", [1, 4])
def test_earlier_tasks_are_found_on_a_shared_shelf_or_each_on_its_own(shelves: int) -> None:
    memory = Memory([shelf_of(8) for _ in range(shelves)], tasks=4)
    for task, n in ((0, 2), (1, 0), (2, 3), (3, 1)):
        remember(memory.shelf(task), task, n)
    found = {task: rows.tolist() for task, rows in memory.rows_by_task(lane=0, before=3).items()}
    assert found == ({0: [0, 1], 2: [2, 3, 4]} if shelves == 1 else {0: [0, 1], 2: [0, 1, 2]})
    assert memory.rows_by_task(lane=0, before=0) == {}
    assert memory.columns(2) == {**memory.shelf(2).columns, "held": memory.shelf(2).held}
    assert memory.shelf(2).held.tolist() == (memory.shelf(2).owner[0] >= 0).tolist()
    assert (memory.shelf(2) is memory.shelf(0)) == (shelves == 1)


def test_a_memory_has_one_shelf_or_one_for_each_task() -> None:
    with pytest.raises(ValueError, match="one shelf, or one for each task"):
        Memory([shelf_of(2), shelf_of(2)], tasks=3)


# Bytes


def test_bytes_are_capacity_times_a_row_by_kind() -> None:
    memory = Memory([shelf_of(7)], tasks=3)
    # Images 3·4·4 of a byte, labels of one byte, tasks of two, activations 5 of four bytes; filled or not.
    assert memory.nbytes(0) == {"inputs": 7 * 48, "labels": 7, "tasks": 7 * 2, "activation": 7 * 20}
    remember(memory.shelf(0), task=0, n=4)
    assert sum(memory.nbytes(0).values()) == sum(c.nbytes for c in memory.shelf(0).columns.values())


def test_bytes_of_shelves_add_up() -> None:
    other: Spec = {"x": ((2,), torch.uint8), "mask": ((4, 4), torch.bool)}
    memory = Memory([shelf_of(7), shelf_of(3, spec=other)], tasks=2)
    assert memory.nbytes(0) == {
        "inputs": 7 * 48 + 3 * 2,
        "labels": 7,
        "tasks": 14,
        "activation": 140,
        "masks": 3 * 16,
    }


@pytest.mark.parametrize(
    ("capacity", "shape", "dtype", "megabytes"),
    [
        (425, (3, 32, 32), torch.uint8, 1.3),  # CIFAR images at m = 425
        (425, (3, 84, 84), torch.uint8, 9.0),  # mini-ImageNet
        (640, (2048, 8, 8), torch.float32, 335.5),  # the paper's activations, m = 64, 10 tasks
        (640, (64,), torch.float32, 0.16),  # compressed over channels
        (640, (2112,), torch.float32, 5.41),  # over space and channels
    ],
)
def test_bytes_of_the_papers_memories(
    capacity: int, shape: tuple[int, ...], dtype: torch.dtype, megabytes: float
) -> None:
    shelf = Shelf([capacity], {"x": (shape, dtype)}, False, torch.device("meta"))
    assert Memory([shelf], tasks=1).nbytes(0)["inputs"] / 1e6 == pytest.approx(megabytes, rel=0.03)


def test_lanes_may_have_different_capacities() -> None:
    shelf = shelf_of(2, 5, 0, stacked=True)
    memory = Memory([shelf], tasks=1)
    assert shelf.columns["x"].shape == (3, 5, 3, 4, 4)
    assert shelf.free_rows(0, 2).tolist() == [0, 1]
    assert shelf.free_rows(1, 5).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="3 rows were asked for, but only 2 are free"):
        shelf.free_rows(0, 3)
    with pytest.raises(ValueError, match="only 0 are free"):
        shelf.free_rows(2, 1)
    assert [memory.nbytes(lane)["inputs"] for lane in range(3)] == [2 * 48, 5 * 48, 0]
