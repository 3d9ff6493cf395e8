"""Split streams: which classes form which task, how labels count, and what is normalised."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from reprise.errors import InputError
from reprise.examples import Examples
from reprise.streams import STREAMS, make_stream, stream_kind
from reprise.streams.files import Images
from reprise.streams.loading import Wanted
from reprise.streams.split import Pool, make_pool, split_stream
from reprise.streams.stream import Stream

TRAIN, TEST = 4, 2
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def images(classes: int, each: int, part: int, seed: int) -> Images:
    """Random pictures in random order; two corner pixels tell the class and the part it belongs to."""
    random = np.random.default_rng(seed)
    y = random.permutation(np.repeat(np.arange(classes), each))
    x = random.integers(0, 256, (len(y), 3, 8, 8), dtype=np.uint8)
    x[:, 0, 0, 0], x[:, 1, 0, 0] = y, part
    return Images(x, y, tuple(f"class {label}" for label in range(classes)))


def pool_of(classes: int) -> Pool:
    return make_pool(images(classes, TRAIN, 0, 1), images(classes, TEST, 1, 2), MEAN, STD, "fingerprint")


@pytest.fixture(scope="module")
def pool() -> Pool:
    return pool_of(100)


def stream_of(pool: Pool, seed: int = 0, **options: str) -> Stream:
    return split_stream("split-test", pool, seed, **options)


def columns(examples: Examples) -> tuple[list[int], list[int], list[int]]:
    """Class in the data set (from the picture itself), label and task of every example."""
    found = examples.take(torch.arange(len(examples)))
    return found["x"][:, 0, 0, 0].tolist(), found["y"].tolist(), found["task"].tolist()


def groups(stream: Stream) -> list[list[int]]:
    """The classes of each task, in the order of their labels."""
    found = []
    for task in stream.tasks:
        classes, labels, _ = columns(task.train)
        found.append([c for _, c in sorted(set(zip(labels, classes, strict=True)))])
    return found


# Which classes


@pytest.mark.parametrize("seed", range(5))
def test_labels_0_to_14_are_never_reported_and_all_others_once(pool: Pool, seed: int) -> None:
    tasks = groups(stream_of(pool, seed))
    assert [len(group) for group in tasks] == [5] * 17
    assert sorted(c for group in tasks for c in group) == list(range(15, 100))


@pytest.mark.parametrize("seed", range(3))
def test_validation_uses_labels_0_to_14_and_nothing_else(pool: Pool, seed: int) -> None:
    stream = stream_of(pool, seed, split="validation")
    assert [len(group) for group in groups(stream)] == [5] * 3
    assert sorted(c for group in groups(stream) for c in group) == list(range(15))
    for task in stream.tasks:
        assert set(columns(task.test)[0]) == set(columns(task.train)[0])
    assert stream.full_tasks == 17, "a class's share of m is that of the reported stream"


def test_the_grouping_belongs_to_the_seed(pool: Pool) -> None:
    first = groups(stream_of(pool, 1))
    assert groups(stream_of(pool, 1)) == first
    assert groups(stream_of(pool, 1, scenario="class")) == first
    assert groups(stream_of(pool_of(100), 1, normalise="mean_image")) == first
    others = [groups(stream_of(pool, seed)) for seed in (0, 2, 3)]
    sets = [{frozenset(group) for group in tasks} for tasks in (first, *others)]
    assert all(one.isdisjoint(other) for i, one in enumerate(sets) for other in sets[:i])
    assert first != [list(range(start, start + 5)) for start in range(15, 100, 5)]


def test_every_picture_is_in_one_task_and_in_its_own_part(pool: Pool) -> None:
    stream = stream_of(pool)
    for part, each in ((0, TRAIN), (1, TEST)):
        rows: list[int] = []
        for task in stream.tasks:
            examples = task.test if part else task.train
            assert len(examples) == 5 * each
            shown = examples.take(torch.arange(len(examples)))["x"]
            assert shown.dtype == torch.uint8
            assert shown[:, 1, 0, 0].tolist() == [part] * len(examples)
            rows += examples.rows.tolist()
        assert len(set(rows)) == len(rows) == 85 * each


def test_all_tasks_and_seeds_index_one_copy_of_the_pictures(pool: Pool) -> None:
    parts = [e for seed in (0, 1) for t in stream_of(pool, seed).tasks for e in (t.train, t.test)]
    assert all(part.source is pool.source for part in parts)


# How labels count


@pytest.mark.parametrize(
    ("scenario", "outputs", "offset"), [("task", 5, 0), ("class", 85, 5)], ids=["task", "class"]
)
def test_labels_count_within_a_task_or_over_all_tasks(
    pool: Pool, scenario: str, outputs: int, offset: int
) -> None:
    stream = stream_of(pool, scenario=scenario)
    assert stream.scenario == scenario
    for j, task in enumerate(stream.tasks):
        assert task.kind.outputs == outputs
        names = dict(enumerate(stream.class_names[j], start=offset * j))
        for examples in (task.train, task.test):
            classes, labels, tasks = columns(examples)
            assert set(labels) == set(names)
            assert [names[label] for label in labels] == [f"class {c}" for c in classes]
            assert set(tasks) == {j}


def test_class_labels_of_the_validation_tasks_count_over_them_alone(pool: Pool) -> None:
    stream = stream_of(pool, scenario="class", split="validation")
    assert [task.kind.outputs for task in stream.tasks] == [15, 15, 15]
    assert sorted({y for task in stream.tasks for y in columns(task.train)[1]}) == list(range(15))


def test_a_stream_tells_what_it_is(pool: Pool) -> None:
    stream = stream_of(pool)
    assert stream.name == "split-test"
    assert stream.input_shape == (3, 8, 8)
    assert (stream.full_tasks, stream.classes_per_task, stream.shared_head) == (17, 5, True)
    assert stream.fingerprint == "fingerprint"
    assert [task.name for task in stream.tasks] == [f"task-{j}" for j in range(17)]


@pytest.mark.parametrize("classes", [5, 15, 19, 21, 99])
def test_classes_that_make_no_whole_tasks_are_refused(classes: int) -> None:
    with pytest.raises(InputError, match=f"split-test: {classes} classes were found"):
        stream_of(pool_of(classes))


def test_the_smallest_stream_has_one_task() -> None:
    assert [sorted(group) for group in groups(stream_of(pool_of(20)))] == [[15, 16, 17, 18, 19]]


# Parts of a stream


def test_first_keeps_the_first_tasks_and_remembers_how_many_there_were(pool: Pool) -> None:
    whole = stream_of(pool)
    short = whole.first(3)
    assert groups(short) == groups(whole)[:3]
    assert short.class_names == whole.class_names[:3]
    assert short.full_tasks == 17
    assert whole.first(None) is whole
    assert len(whole.first(17).tasks) == 17
    assert groups(make_stream("split-test", pool, 0, tasks=3)) == groups(short)


@pytest.mark.parametrize("tasks", [-1, 0, 18])
def test_more_tasks_than_there_are_and_none_at_all_are_refused(pool: Pool, tasks: int) -> None:
    with pytest.raises(InputError, match=f"tasks: {tasks} was asked for, but split-test has 17"):
        stream_of(pool).first(tasks)


def test_tasks_are_trained_one_after_another(pool: Pool) -> None:
    stream = stream_of(pool).first(4)
    assert [phase.name for phase in stream.phases] == ["task-0", "task-1", "task-2", "task-3"]
    assert [(phase.last, phase.epochs_of) for phase in stream.phases] == [(j, 1) for j in range(4)]
    for phase, task in zip(stream.phases, stream.tasks, strict=True):
        assert phase.parts == ((None, task.train),)
        assert phase.train is task.train


def test_a_merged_stream_trains_all_tasks_in_one_phase(pool: Pool) -> None:
    stream = stream_of(pool).first(4)
    (phase,) = stream.merged().phases
    ((index, examples),) = phase.parts
    assert index is None, "each example carries its own task"
    assert (phase.last, phase.epochs_of) == (3, 4)
    for merged, *parts in zip(
        columns(examples), *(columns(task.train) for task in stream.tasks), strict=True
    ):
        assert merged == [value for part in parts for value in part]
    assert stream.merged().tasks == stream.tasks, "evaluation still tells the tasks apart"
    assert len(stream.phases) == 4, "the stream itself is as it was"


def test_where_heads_differ_a_phase_names_its_task_and_a_merged_one_has_a_part_for_each(pool: Pool) -> None:
    stream = replace(stream_of(pool).first(3), shared_head=False)
    assert [phase.parts[0][0] for phase in stream.phases] == [0, 1, 2]
    same = stream.tasks[0].train
    labelled = (same, same.subset(np.array([3, 1, 0])), same.subset(np.array([5, 3, 2, 1])))
    tasks = tuple(replace(task, train=own) for task, own in zip(stream.tasks, labelled, strict=True))
    (phase,) = replace(stream, tasks=tasks).merged().phases
    assert [j for j, _ in phase.parts] == [0, 1, 2]
    assert (phase.last, phase.epochs_of) == (2, 1)
    both = sorted(same.rows[[1, 3]].tolist())
    assert all(part.rows.tolist() == both for _, part in phase.parts), (
        "images that all tasks have, in one order"
    )
    with pytest.raises(InputError, match="no image has labels for all of its tasks"):
        stream.merged().phases  # noqa: B018 (the property refuses)


def test_two_tasks_of_one_name_are_refused(pool: Pool) -> None:
    stream = stream_of(pool)
    twice = (*stream.tasks[:3], replace(stream.tasks[3], name="task-1"))
    with pytest.raises(InputError, match="stream 'split-test' names task 'task-1' twice"):
        replace(stream, tasks=twice)


# Normalisation


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_channel_normalisation_is_that_of_numpy(pool: Pool, dtype: torch.dtype) -> None:
    x = pool.source.columns["x"][:50]
    by_numpy = (x.numpy() / 255 - np.reshape(MEAN, (3, 1, 1))) / np.reshape(STD, (3, 1, 1))
    for batch in (x, x.view(5, 10, 3, 8, 8)):  # with and without lanes
        found = stream_of(pool, normalise="channel").normalise(batch, dtype)
        assert found.dtype == dtype
        assert found.shape == batch.shape
        np.testing.assert_allclose(found.reshape(x.shape).numpy(), by_numpy, atol=1e-5)


def test_mean_image_normalisation_is_that_of_numpy_over_all_training_pictures(pool: Pool) -> None:
    x = pool.source.columns["x"].numpy()
    by_numpy = x / 255 - x[: 100 * TRAIN].mean(0, dtype=np.float64) / 255
    normalise = stream_of(pool, normalise="mean_image").normalise
    found = normalise(pool.source.columns["x"], torch.float64).numpy()
    np.testing.assert_allclose(found, by_numpy, atol=1e-12)
    np.testing.assert_allclose(found[: 100 * TRAIN].mean(0), 0, atol=1e-12)


def test_a_normaliser_moved_to_a_dtype_says_the_same(pool: Pool) -> None:
    normalise = stream_of(pool).normalise
    moved = normalise.to(torch.device("cpu"), torch.float32)
    x = pool.source.columns["x"]
    assert moved.mean.dtype == moved.std.dtype == torch.float32
    assert torch.equal(moved(x, torch.float32), normalise(x, torch.float32))


# The table of streams


def test_an_unknown_stream_is_refused_and_the_known_ones_named() -> None:
    with pytest.raises(InputError, match="stream: 'cifar' is not known; choose one of split-cifar,"):
        stream_kind("cifar")


@pytest.mark.parametrize("name", ["split-cifar", "split-mini-imagenet"])
def test_a_stream_that_needs_data_says_so(name: str) -> None:
    with pytest.raises(InputError, match=f"data: {name} needs a folder"):
        STREAMS[name].load(None, Wanted())
