"""Scene streams in training: targets, flips, splits, reading ahead, lanes, resume, one batch's memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scenes import FIELDS, experiment, folder, scene_cell, scenes
from test_resume import interrupted, same
from tiny import CPU, furthest, train, weights

from reprise.config import Experiment, make_experiment
from reprise.engine import Engine
from reprise.errors import InputError
from reprise.ledger import make_reader, settle
from reprise.plan import draw_flips
from reprise.reference import reference_of, run_compared
from reprise.streams import STREAMS, stream_kind, stream_of
from reprise.streams.loading import Wanted, load_rooms, load_taskonomy
from reprise.streams.rooms.worlds import Worlds, number_of
from reprise.streams.scenes import divide_points, task_names
from reprise.streams.taskonomy import TASKS, load_pack
from reprise.train import Trainer

METHODS = ("sgd", "multitask", "er", "car", "agem", "ewc", "side_tuning")


def pooled(method: str, **fields: Any) -> list[Any]:
    """Two seeds of one method on one pool, whose lanes may be stacked."""
    pool = scenes()
    return [scene_cell(method, seed, pool=pool, **fields) for seed in range(2)]


@pytest.mark.parametrize("name", list(TASKS))
def test_targets_and_flips_on_the_device_are_those_of_the_reader(name: str) -> None:
    """`Packed.batch` in NumPy is the reference for what a training step sees."""
    pool = scenes()
    wanted = experiment("sgd", sequence=name, precision="float32")
    stream = stream_of(wanted, 0, pool)
    reader, train = make_reader(wanted, stream, CPU), stream.tasks[0].train
    flipped = np.arange(len(train)) % 3 == 1
    rows = train.rows.numpy()
    batch = reader.batch(train.take(torch.arange(len(train))), 0, flipped=torch.from_numpy(flipped))
    x, y, mask = pool.packed.batch(name, rows, flipped)
    assert torch.equal(batch.x, reader.normalise(torch.from_numpy(x), torch.float32))
    assert np.allclose(batch.y.numpy(), y, atol=2e-6)
    assert (batch.mask is None) == (mask is None)
    assert mask is None or np.array_equal(batch.mask.numpy(), mask)
    plain = reader.batch(train.take(torch.arange(len(train))), 0)
    assert not torch.equal(plain.x, batch.x), "the flip must be seen"


def test_images_are_scaled_to_one_and_centred_on_the_training_mean() -> None:
    stream = scene_cell("sgd").stream
    everything = torch.arange(len(stream.tasks[0].train))
    reader = make_reader(experiment("sgd"), stream, CPU)
    x = reader.batch(stream.tasks[0].train.take(everything), 0).x
    assert x.mean((0, 2, 3)).abs().max() < 1e-6
    spans = x.amax((0, 2, 3)) - x.amin((0, 2, 3))
    assert (spans > 1.0).all()
    assert (spans <= 2.0).all()


@pytest.mark.parametrize("split", ["report", "validation"])
def test_worlds_to_train_and_to_score_on_are_different_ones(split: str) -> None:
    pool = scenes()
    stream = stream_of(experiment("sgd", split=split), 0, pool)
    names = np.array([building.name for building in pool.packed.buildings])
    for task in stream.tasks:
        trained, scored = (set(names[pool.packed.views[e.rows, 0]]) for e in (task.train, task.test))
        assert trained == {"train-0000", "train-0001"}
        assert scored == {"test-0000" if split == "report" else "validation-0000"}


def test_the_points_of_a_building_stay_together_and_are_divided_alike_every_time() -> None:
    packed = load_pack(folder())
    first, again = divide_points(packed), divide_points(load_pack(folder()))
    assert (first == again).all()
    for part in ("train", "validation", "test"):
        points = {tuple(view[:2]) for view in packed.views[first == part]}
        others = {tuple(view[:2]) for view in packed.views[first != part]}
        assert not points & others
    assert (first == "train").sum() > len(first) / 2


def test_sequences_are_the_papers_or_ones_own() -> None:
    assert task_names("1")[0] == "curvature"
    assert task_names("2")[:2] == ("depth", "keypoints2d")
    assert task_names("normal, depth") == ("normal", "depth")
    with pytest.raises(InputError, match="'nomral' is no Taskonomy task; choose from"):
        scene_cell("sgd", sequence="nomral")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_and_ends_with_finite_losses(method: str) -> None:
    outcome = train(scene_cell(method)).outcomes[0]
    last = outcome.loss[-1]
    assert len(last) == 4
    assert np.isfinite(np.array(last, float)).all()
    assert outcome.accuracy[-1][0] is None
    assert outcome.accuracy[-1][1] is not None, "scenes are classified, and so are pixels"


@pytest.mark.parametrize("method", ["multitask", "er", "car", "agem", "ewc", "side_tuning"])
def test_lanes_equal_single_runs(method: str) -> None:
    cells = pooled(method)
    together = train(*cells, stacked=True)
    for lane, cell in enumerate(cells):
        assert furthest(weights(together, lane), weights(train(cell))) < 1e-10


@pytest.mark.parametrize("method", ["multitask", "car", "side_tuning"])
def test_a_resumed_run_ends_as_one_left_alone(method: str, tmp_path: Path) -> None:
    cells = [scene_cell(method, 1)]
    steps = (2,) if method == "multitask" else (3, 6)
    same(interrupted(cells, tmp_path, steps), train(*cells))


def test_the_number_of_readers_changes_nothing() -> None:
    alone = train(scene_cell("er", workers=0))
    for workers in (1, 3):
        assert furthest(weights(alone), weights(train(scene_cell("er", workers=workers)))) == 0


def test_reading_ahead_is_noticed_where_it_would_mix_up_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison above can fail: the columns of a neighbouring step give other weights."""
    from reprise.feed import Feed

    right, fetch = train(scene_cell("sgd")), Feed._fetch
    monkeypatch.setattr(Feed, "_fetch", lambda self, row: fetch(self, row ^ 1 if row < 4 else row))
    assert furthest(weights(right), weights(train(scene_cell("sgd", workers=2)))) > 1e-6


def test_current_images_are_flipped_and_remembered_ones_are_not() -> None:
    trainer = Trainer([scene_cell("er", steps=12)], CPU)
    feed = trainer.skip_to(1)
    assert feed.flipped is not None
    expected = draw_flips(0, 1, (12, 4))
    assert np.array_equal(feed.flipped.numpy(), expected)
    assert 0 < expected.mean() < 1
    examples, shelf = feed.phase.train, trainer.memory.shelf(0)
    seen = {"current": 0, "replay": 0}
    for step in range(feed.steps):
        for batch in feed.batches(step):
            seen[batch.role] += 1
            if batch.replayed:
                rows = feed.replay["replay"][feed._replay_row[step]]
                assert torch.equal(batch.x, trainer.reader.images(shelf.take(rows)["x"], None))
            else:
                row = feed._current_row[step]
                plain = trainer.reader.images(examples.take(feed.current[row])["x"], None)
                turned = torch.from_numpy(expected[row])
                assert torch.equal(batch.x[turned], plain[turned].flip(-1))
                assert torch.equal(batch.x[~turned], plain[~turned])
    assert min(seen.values()) > 0


def test_the_memory_holds_labels_in_the_files_formats() -> None:
    trainer = train(scene_cell("er"))
    dtypes = [shelf.columns["y"].dtype for shelf in trainer.memory.shelves]
    assert dtypes == [torch.uint8, torch.float32, torch.uint8, torch.int16]
    pixels = 16 * 16
    bytes_per_row = [pixels * 3 + pixels, 63 * 4, pixels, 2 * pixels + pixels]
    kept = trainer.outcomes[0].bytes
    assert kept["inputs"] == 4 * 6 * 3 * pixels
    assert kept["labels"] + kept["masks"] == 6 * sum(bytes_per_row)


def test_multi_task_steps_show_every_task_the_same_mirrored_images() -> None:
    trainer = Trainer([scene_cell("multitask")], CPU)
    batches = trainer.skip_to(0).batches(0)
    assert [batch.task for batch in batches] == [0, 1, 2, 3]
    assert all(batch.x is batches[0].x for batch in batches)


def _gradients(trainer: Trainer, batches: list[Any], whole: bool) -> dict[str, torch.Tensor]:
    method, engine = trainer.method, trainer.engine
    ask = Engine.gradient if whole else type(engine).gradient
    before = {name: b.clone() for name, b in engine.buffers.items()}
    grads, loss = ask(engine, method.objective, batches)
    for name, buffer in engine.buffers.items():
        buffer.copy_(before[name])
    return grads | {"loss": loss}


@pytest.mark.parametrize("method", ["multitask", "er"])
def test_heads_and_batches_one_by_one_give_the_gradient_of_all(method: str) -> None:
    trainer = Trainer([scene_cell(method, p_replay=0.0) if method == "er" else scene_cell(method)], CPU)
    batches = trainer.skip_to(0 if method == "multitask" else 1).batches(0)
    assert len(batches) > 1
    whole, parts = _gradients(trainer, batches, True), _gradients(trainer, batches, False)
    assert whole.keys() == parts.keys()
    assert max((whole[name] - parts[name]).abs().max().item() for name in whole) < 1e-10


def test_heads_one_by_one_keep_the_graph_of_one_head_at_most() -> None:
    """What autograd holds on to at a time: 4 heads together hold more than the largest of them."""
    trainer = Trainer([scene_cell("multitask")], CPU)
    batches = trainer.skip_to(0).batches(0)

    def most(whole: bool) -> int:
        alive = peak = 0

        def pack(tensor: torch.Tensor) -> Any:
            nonlocal alive, peak
            alive += tensor.nbytes
            peak = max(peak, alive)
            return _Held(tensor)

        class _Held:
            def __init__(self, tensor: torch.Tensor) -> None:
                self.tensor = tensor

            def __del__(self) -> None:
                nonlocal alive
                alive -= self.tensor.nbytes

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda held: held.tensor):
            _gradients(trainer, batches, whole)
        return peak

    assert most(whole=False) < 0.75 * most(whole=True)


def test_stochastic_replay_is_the_habit_of_scene_streams() -> None:
    assert scene_cell("er").experiment.p_replay == 0.5
    assert scene_cell("er", p_replay=0.0).experiment.p_replay == 0.0
    assert scene_cell("er", p_replay=0.3).experiment.p_replay == 0.3
    assert scene_cell("agem").experiment.p_replay == 0.0, "a habit gives way to what a method needs"
    assert scene_cell("sgd").experiment.p_replay is None
    with pytest.raises(InputError, match="p_replay: agem needs the current and the replayed batch"):
        scene_cell("agem", p_replay=0.5)
    for method in METHODS:
        cell = scene_cell(method)
        assert settle(cell.experiment, cell.stream) == cell.experiment


def test_settling_builds_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of 343 million parameters would take seconds and gigabytes on the host to be thrown away."""
    from reprise import ledger

    stream, build = scene_cell("er").stream, ledger.build_model
    made: list[torch.device] = []

    def watched(*args: Any) -> Any:
        model = build(*args)
        made.append(next(model.parameters()).device)
        return model

    monkeypatch.setattr(ledger, "build_model", watched)
    assert settle(experiment("car"), stream).method.compress == "spatial_channel"
    assert made == [torch.device("meta")]


def test_fields_of_scene_streams_are_refused_elsewhere_and_hash_nothing_there() -> None:
    from tiny import cell as split_cell

    cell = split_cell("er")
    assert not {"size", "masks", "flip", "norms", "buildings"} & set(cell.experiment.configuration("x"))
    with pytest.raises(InputError, match="size: split-shapes has no such choice; leave it out"):
        split_cell("er", size=8)
    here = scene_cell("er").experiment
    assert here.to_dict()["masks"] is True
    assert here.hash("x") != scene_cell("er", masks=False).experiment.hash("x")
    assert here.hash("x") != scene_cell("er", flip=False).experiment.hash("x")
    assert Experiment.from_dict(here.to_dict()) == here


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"scenario": "class"}, "scenario: class is for Split streams"),
        ({"normalise": "mean_image"}, "normalise: mean_image is for Split streams"),
    ],
)
def test_choices_of_split_streams_are_refused_here(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        scene_cell("sgd", **fields)


def test_masks_leave_pixels_without_depth_out() -> None:
    pool = scenes()
    with_masks = stream_of(experiment("sgd", sequence="normal"), 0, pool).tasks[0].train
    without = stream_of(experiment("sgd", sequence="normal", masks=False), 0, pool).tasks[0].train
    assert "mask" in with_masks.take(torch.arange(2))
    assert "mask" not in without.take(torch.arange(2))


def test_the_paper_s_protocol_stands_in_the_table() -> None:
    table = stream_kind("taskonomy").protocol_of("er")
    assert (table["optimizer"], table["lr"], table["batch"], table["steps"]) == ("adam", 1e-4, 64, 12_500)
    assert (table["size"], table["encoder"], table["m"], table["replay"]) == (256, "resnet50", 64, 64)
    assert stream_kind("taskonomy").protocol_of("multitask")["steps"] == 37_500
    for name in ("rooms", "taskonomy"):
        default = make_experiment(name, "er", {}, STREAMS[name].protocol_of("er"))
        reference = make_experiment(name, "multitask", {}, STREAMS[name].protocol_of("multitask"))
        assert reference_of(default) == reference, "the reference of a default run is the default reference"


def test_the_reference_is_trained_once_and_fills_the_drop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPRISE_CACHE", str(tmp_path / "cache"))
    short = {"sequence": "normal,class_scene", "steps": 2, "precision": "float32"}
    runs = [experiment("sgd", **short)]
    (unknown,) = run_compared(runs, [0], tmp_path / "store")
    assert unknown["reference"] is None
    assert unknown["performance_drop_percent"] is None
    records = {r["method"]: r for r in run_compared(runs, [0], tmp_path / "store", train=True)}
    known, joint = records["sgd"], records["multitask"]
    assert known["reference"] == joint["matrix"]["loss"][-1]
    expected = np.mean(np.array(known["matrix"]["loss"][-1]) / np.array(known["reference"]) - 1) * 100
    assert known["performance_drop_percent"] == pytest.approx(expected)
    saved = [json.loads(p.read_text()) for p in (tmp_path / "store").glob("rooms-sgd-*/seed-0/record.json")]
    assert saved == [known]
    (again,) = run_compared(runs, [0], tmp_path / "store")
    assert again == known


def test_rooms_are_rendered_once_and_more_worlds_change_none_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPRISE_CACHE", str(tmp_path))
    told: list[tuple[str, int, int]] = []
    few = load_rooms(Wanted(16, "1,1,1", 4, 1, lambda *said: told.append(said)))
    assert told == [("rendering rooms", n, 3) for n in (1, 2, 3)]
    told.clear()
    load_rooms(Wanted(16, "1,1,1", 4, 1, lambda *said: told.append(said)))
    assert told == []
    more = load_rooms(Wanted(16, "2,1,1", 4, 2, lambda *said: told.append(said)))
    assert told == [("rendering rooms", 4, 4)]
    for building in few.packed.buildings:
        (twin,) = [b for b in more.packed.buildings if b.name == building.name]
        assert twin.sha256 == building.sha256
    assert few.fingerprint != more.fingerprint
    assert more.packed.verify() == []


@pytest.mark.parametrize(
    ("buildings", "size", "said"),
    [
        ("3,1", 16, "buildings: '3,1' are not three numbers of worlds"),
        ("a,b,c", 16, "buildings: 'a,b,c' are not three numbers of worlds"),
        ("1,0,1", 16, "buildings: '1,0,1' are not three numbers of worlds"),
        ("1,1,1", 8, "size: 8 pixels are too few for a room"),
    ],
)
def test_impossible_worlds_are_refused(buildings: str, size: int, said: str) -> None:
    with pytest.raises(InputError, match=said):
        load_rooms(Wanted(size, buildings, 4))


def test_a_pack_and_the_official_folders_lead_to_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streams.taskonomy_files import write_taskonomy

    from reprise.streams.taskonomy import pack

    monkeypatch.setenv("REPRISE_CACHE", str(tmp_path / "cache"))
    root = write_taskonomy(tmp_path / "files")
    pack(root, tmp_path / "pack", size=16)
    official = load_taskonomy(root, Wanted(16, "points", workers=1))
    packed = load_taskonomy(tmp_path / "pack", Wanted(16, "points", workers=1))
    assert official.fingerprint == packed.fingerprint
    assert len(list((tmp_path / "cache").glob("taskonomy-16-*/pack.json"))) == 1
    with pytest.raises(
        InputError, match="size: 32 was asked for, but .* is a pack of 16 pixels; give --size 16"
    ):
        load_taskonomy(tmp_path / "pack", Wanted(32))
    with pytest.raises(InputError, match="views: taskonomy has the views that are there"):
        load_taskonomy(root, Wanted(16, views=3))


def test_a_loss_that_is_not_finite_names_task_and_step() -> None:
    from reprise.errors import Diverged

    with pytest.raises(Diverged, match="the loss was not finite in (normal|class_scene|.*) at step"):
        train(scene_cell("sgd", optimizer="sgd", lr=1e30))


def test_clipped_gradients_are_no_longer_than_the_limit() -> None:
    free, clipped = train(scene_cell("sgd", steps=1)), train(scene_cell("sgd", steps=1, clip=1e-6))
    assert furthest(weights(free), weights(clipped)) > 0


def test_the_fields_of_the_small_stream_are_settled() -> None:
    assert scene_cell("er").experiment.buildings == FIELDS["buildings"]
    assert scene_cell("er").experiment.fill == "uniform_task"
    assert scene_cell("er").experiment.scope == "one_task"


@pytest.mark.parametrize(
    ("buildings", "views", "size"), [("100001,1,1", 1, 16), ("2,1,1", 4, 10**6), ("2,1,1", 10**9, 64)]
)
def test_worlds_without_end_are_refused(buildings: str, views: int, size: int) -> None:
    """And never so many of a kind that they would be those of the next one."""
    with pytest.raises(InputError, match="ask for fewer"):
        Worlds.parse(buildings, views, size)
    assert number_of("train-99999") < number_of("validation-0000")
    assert number_of("validation-99999") < number_of("test-0000")


def test_norms_are_the_papers_or_the_other_way_round() -> None:
    names = "curvature,normal,class_scene,segment_semantic"
    norms = {
        wish: [
            getattr(task.kind, "norm", None)
            for task in scene_cell("sgd", sequence=names, norms=wish).stream.tasks
        ]
        for wish in (None, "paper", "zamir")
    }
    assert norms[None] == norms["paper"] == ["l1", "l2", None, None]
    assert norms["zamir"] == ["l2", "l1", None, None]


def test_the_papers_norms_said_or_not_are_one_experiment_and_others_another() -> None:
    plain, said, other = (scene_cell("sgd", norms=wish).experiment for wish in (None, "paper", "zamir"))
    assert plain.configuration("x") == said.configuration("x")
    assert "norms" not in plain.configuration("x")
    assert other.hash("x") != plain.hash("x")
    assert reference_of(other).norms == "zamir"


def test_other_norms_give_other_losses() -> None:
    one, other = (train(scene_cell("sgd", norms=wish)).outcomes[0].loss[-1] for wish in ("paper", "zamir"))
    changed = [a != b for a, b in zip(one, other, strict=True)]
    assert changed[0], "normals: ℓ2 and ℓ1"
    assert np.isfinite(np.array(other, float)).all()
