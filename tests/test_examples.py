"""Examples: a task's rows of a shared source, asked for by position, in one lane or in several."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reprise.examples import Examples, Source
from reprise.types import Tree

quick = settings(max_examples=60, deadline=None, database=None)
N = 12
SOURCE = Source(
    {
        "x": torch.arange(N * 4, dtype=torch.uint8).view(N, 2, 2),
        "depth": torch.arange(N, dtype=torch.float32) / 2,
    }
)


def examples(rows: list[int], task: int = 0, source: Source = SOURCE) -> Examples:
    """Rows of the source; labels count up from 10·task, so that every column tells its examples apart."""
    y = 10 * task + torch.arange(len(rows))
    return Examples(source, torch.tensor(rows), {"y": y, "task": torch.full((len(rows),), task)})


def assert_same(found: Tree, expected: Tree) -> None:
    assert found.keys() == expected.keys()
    for name, column in found.items():
        assert column.dtype == expected[name].dtype, name
        assert torch.equal(column, expected[name]), name


def everything(part: Examples) -> Tree:
    index = torch.arange(len(part))
    return part.take(index if part.rows.dim() == 1 else index.expand(len(part.rows), -1))


def test_take_by_hand() -> None:
    found = examples([7, 2, 5], task=3).take(torch.tensor([2, 0, 2]))
    assert_same(
        found,
        {
            "x": torch.tensor([[[20, 21], [22, 23]], [[28, 29], [30, 31]], [[20, 21], [22, 23]]]).byte(),
            "depth": torch.tensor([2.5, 3.5, 2.5]),
            "y": torch.tensor([32, 30, 32]),
            "task": torch.tensor([3, 3, 3]),
        },
    )


@st.composite
def lanes(draw: st.DrawFn) -> tuple[list[Examples], torch.Tensor]:
    """The same task in some lanes, and positions for each of them."""
    count, n, batch = draw(st.integers(1, 4)), draw(st.integers(1, N)), draw(st.integers(0, 6))
    rows = [draw(st.permutations(range(N)))[:n] for _ in range(count)]
    index = [draw(st.lists(st.integers(0, n - 1), min_size=batch, max_size=batch)) for _ in range(count)]
    parts = [examples(own, task=lane) for lane, own in enumerate(rows)]
    return parts, torch.tensor(index, dtype=torch.long).view(count, batch)


@quick
@given(lanes())
def test_a_stack_takes_what_each_lane_takes(drawn: tuple[list[Examples], torch.Tensor]) -> None:
    parts, index = drawn
    stacked = Examples.stack(parts)
    assert len(stacked) == len(parts[0])
    assert stacked.source is SOURCE, "lanes share one copy of the images"
    found = stacked.take(index)
    for lane, part in enumerate(parts):
        assert_same({name: column[lane] for name, column in found.items()}, part.take(index[lane]))


def test_concatenated_parts_follow_one_another() -> None:
    parts = [examples([7, 2], task=0), examples([5], task=1), examples([1, 0, 3], task=2)]
    joined = Examples.concatenate(parts)
    assert len(joined) == 6
    assert joined.source is SOURCE
    assert everything(joined)["task"].tolist() == [0, 0, 1, 2, 2, 2]
    assert_same(
        everything(joined),
        {name: torch.cat([everything(part)[name] for part in parts]) for name in everything(joined)},
    )


def test_a_subset_holds_the_positions_asked_for_in_their_order() -> None:
    whole = examples([7, 2, 5, 9], task=1)
    part = whole.subset(np.array([3, 1]))
    assert len(part) == 2
    assert part.source is SOURCE
    assert_same(everything(part), whole.take(torch.tensor([3, 1])))
    assert len(whole.subset(np.empty(0, np.int64))) == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda part: part.subset(np.array([2, 0, 1])),
        lambda part: Examples.concatenate([part, part]),
    ],
    ids=["subset", "concatenate"],
)
def test_it_makes_no_difference_whether_lanes_are_stacked_before_or_after(
    change: Callable[[Examples], Examples],
) -> None:
    parts = [examples([7, 2, 5, 9], task=0), examples([1, 0, 3, 4], task=1)]
    before = change(Examples.stack(parts))
    after = Examples.stack([change(part) for part in parts])
    assert before.rows.tolist() == after.rows.tolist()
    assert_same(everything(before), everything(after))


def test_some_lanes_of_a_stack_are_a_stack_of_some_lanes() -> None:
    parts = [examples([lane, lane + 4], task=lane) for lane in range(4)]
    some = Examples.stack(parts).only([3, 1])
    assert_same(everything(some), everything(Examples.stack([parts[3], parts[1]])))


def test_labels_are_classes_on_the_host() -> None:
    one, other = examples([7, 2]), examples([5, 1], task=1)
    labels = one.labels
    assert isinstance(labels, np.ndarray)
    assert labels.tolist() == [0, 1]
    stacked = Examples.stack([one, other]).labels
    assert stacked is not None
    assert stacked.tolist() == [[0, 1], [10, 11]]


def test_targets_that_are_no_classes_give_no_labels() -> None:
    rows = torch.arange(3)
    assert Examples(SOURCE, rows, {}).labels is None, "targets may be maps in the source"
    assert Examples(SOURCE, rows, {"y": torch.rand(3)}).labels is None


def test_only_lanes_of_one_length_can_be_stacked() -> None:
    with pytest.raises(ValueError, match="equally many examples"):
        Examples.stack([examples([1, 2]), examples([1, 2, 3])])


@pytest.mark.parametrize("join", [Examples.stack, Examples.concatenate])
def test_only_examples_of_one_source_can_be_joined(join: Callable[[list[Examples]], Examples]) -> None:
    equal = Source(dict(SOURCE.columns))
    with pytest.raises(ValueError, match="index the same source"):
        join([examples([1, 2]), examples([1, 2], source=equal)])


def test_moving_examples_moves_the_source_once_for_everyone() -> None:
    source = Source({"x": torch.zeros(4, 2)})
    one, other = examples([0, 1], source=source), examples([2, 3], source=source)
    moved = one.to(torch.device("meta"))
    assert moved.source is source is other.source
    assert source.columns["x"].is_meta
    assert moved.rows.is_meta
    assert all(column.is_meta for column in moved.own.values())
