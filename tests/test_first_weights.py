"""`--weights FILE`: every seed's encoder begins with the file, the hash knows what it holds and not where it lies.

Planted faults that these tests caught: statistics left out, the file's values in the heads, or rounded to float32;
the path in the hash, or compared; no second look at the digest; a reference or a search that begins at random; a
shape-only model that reads the file; followers that read it, or are not handed the weights; free unpickling; values
that are not finite.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from bad_input import Evil
from scenes import scene_cell
from test_cli import RUN, SHORT, records_of, refused, says, timeless
from test_ranks import on_ranks
from test_resnet50 import torchvision_like
from test_resume import interrupted, same
from tiny import CPU, cell, furthest, mixed_cell, train, weights
from torch import Tensor

from reprise import results
from reprise.build import Cell
from reprise.config import Experiment, make_experiment
from reprise.errors import InputError
from reprise.first_weights import FirstWeights, read_weights
from reprise.ledger import settle
from reprise.models import decoders, encoders
from reprise.models.decoders import Decoder15
from reprise.models.encoders import build_encoder
from reprise.models.resnet50 import ResNet50
from reprise.ranks import Ranks
from reprise.reference import reference_of
from reprise.runner import run_experiments
from reprise.step_cost import step_costs
from reprise.streams import stream_kind
from reprise.train import Trainer

SMALL = "convnet-small"
ROOMS = ["run", "rooms", "--method", "sgd", "--steps", "2", "--batch", "4", "--encoder", SMALL, "--json"]
ROOMS += ["--sequence", "normal,class_scene", "--size", "16", "--buildings", "2,1,1", "--views", "8"]


def some_weights(
    encoder: str = SMALL, seed: int = 0, dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """Weights and statistics that no initialisation gives."""
    draw = torch.Generator().manual_seed(seed)
    own = build_encoder(encoder).state_dict()
    return {n: 0.1 + 0.2 * torch.rand(t.shape, generator=draw, dtype=dtype) for n, t in own.items()}


def save(path: Path, tensors: dict[str, Tensor]) -> Path:
    if path.suffix == ".safetensors":
        safetensors.torch.save_file(tensors, path)
    else:
        torch.save(tensors, path)
    return path


def beginning(one: Cell, path: Path) -> Cell:
    """The cell with the weights of a file."""
    first = read_weights(path, one.experiment.encoder)
    return replace(one, experiment=replace(one.experiment, first_weights=first))


def part(trainer: Trainer, name: str, lane: int | None = None) -> dict[str, Tensor]:
    """A part's parameters and statistics by the names it has itself."""
    found = weights(trainer, lane)
    return {n.removeprefix(f"{name}."): t.clone() for n, t in found.items() if n.startswith(f"{name}.")}


def exactly(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    assert one.keys() == other.keys()
    return all(torch.equal(tensor.double(), other[name].double()) for name, tensor in one.items())


def experiment(path: Path | None = None, **fields: Any) -> Experiment:
    given = {"tasks": 2, "steps": 3, "encoder": SMALL, "m": 50} | fields
    made = make_experiment("split-shapes", "er", given)
    return made if path is None else replace(made, first_weights=read_weights(path, made.encoder))


# ---- the start


@pytest.mark.parametrize(
    ("make", "fields", "suffix"),
    [
        (cell, {}, "pt"),
        (cell, {"scenario": "class", "encoder": "resnet18-reduced"}, "safetensors"),
        (cell, {"precision": "bf16"}, "pth"),
        (mixed_cell, {"encoder": "resnet-rooms"}, "safetensors"),
        (scene_cell, {}, "pt"),
    ],
    ids=["task", "class", "bf16", "mixed", "rooms"],
)
@pytest.mark.parametrize("stacked", [False, True], ids=["single", "stacked"])
def test_the_encoder_begins_with_the_file_and_the_heads_at_random(
    make: Callable[..., Cell], fields: dict[str, Any], suffix: str, stacked: bool, tmp_path: Path
) -> None:
    random = [make("er", seed, **fields) for seed in (0, 1)]
    given = some_weights(random[0].experiment.encoder)
    path = save(tmp_path / f"first.{suffix}", given)
    heads = []
    for one in random:
        begun, usual = (Trainer([c], CPU, stacked) for c in (beginning(one, path), one))
        assert exactly(part(begun, "encoder", 0 if stacked else None), given)
        assert any("running_var" in name for name in given)
        heads.append(part(begun, "heads"))
        assert exactly(heads[-1], part(usual, "heads")), "the seed's own"
        assert not exactly(part(usual, "encoder", 0 if stacked else None), given)
    assert not exactly(*heads)


def test_every_digit_of_a_double_counts(tmp_path: Path) -> None:
    given = some_weights(dtype=torch.float64)
    trainer = Trainer([beginning(cell("sgd"), save(tmp_path / "a.pt", given))], CPU)
    assert exactly(part(trainer, "encoder"), given)


@pytest.mark.parametrize("make", [cell, mixed_cell])
def test_side_networks_stay_random(make: Callable[..., Cell], tmp_path: Path) -> None:
    path = save(tmp_path / "a.pt", some_weights())
    usual, other = make("side_tuning", 0), make("side_tuning", 1)
    sides = [part(Trainer([beginning(c, path)], CPU), "sides") for c in (usual, other)]
    assert exactly(sides[0], part(Trainer([usual], CPU), "sides"))
    assert not exactly(*sides)


def test_resnet50_reads_torchvision_s_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(encoders.ENCODERS, "resnet50", lambda: ResNet50(4, (1, 1, 1, 1)))
    monkeypatch.setitem(decoders.DECODERS, "resnet50", lambda *given: Decoder15(*given, width=1))
    given = torchvision_like(build_encoder("resnet50"))
    assert "fc.weight" in given
    assert "bn1.num_batches_tracked" in given
    one = scene_cell("sgd", encoder="resnet50", sequence="class_scene,class_object")
    found = part(Trainer([beginning(one, save(tmp_path / "resnet50.pt", given))], CPU), "encoder")
    assert exactly(found, {name: given[name] for name in found})
    other = given | {"layer9.weight": torch.zeros(1)}
    with pytest.raises(InputError, match="layer9.weight is not a layer .* of torchvision's resnet50"):
        beginning(one, save(tmp_path / "other.pt", other))


def test_shapes_alone_need_no_file(tmp_path: Path) -> None:
    nowhere = FirstWeights("0" * 16, tmp_path / "nowhere.pt")
    one = cell("er")
    for fields in ({"m": 15}, {"m": None, "memory": "20kB"}):
        asked = replace(one.experiment, first_weights=nowhere, **fields)
        assert settle(asked, one.stream).first_weights == nowhere
    with pytest.raises(InputError, match="nowhere.pt cannot be read"):
        Trainer([replace(one, experiment=asked)], CPU)


# ---- ways of running


@pytest.mark.parametrize("make", [cell, mixed_cell])
def test_lanes_are_single_runs(make: Callable[..., Cell], tmp_path: Path) -> None:
    path = save(tmp_path / "a.pt", some_weights())
    cells = [beginning(make("car", seed), path) for seed in (0, 1)]
    together = train(*cells)
    for lane, one in enumerate(cells):
        assert furthest(weights(together, lane), weights(train(one))) < 1e-10
    assert furthest(weights(train(make("car", 0))), weights(together, 0)) > 1e-3, "the weights act"


@pytest.mark.parametrize("steps", [(2, 3), (6,)])
def test_resumed_is_straight(steps: tuple[int, ...], tmp_path: Path) -> None:
    path = save(tmp_path / "a.pt", some_weights())
    cells = [beginning(cell("car", 3), path)]
    same(interrupted(cells, tmp_path, steps), train(*cells))


def test_processes_find_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seeds in a process each, and as lanes of this one; a relative path."""
    monkeypatch.chdir(tmp_path)
    asked = experiment(save(Path("a.pt"), some_weights()), precision="float64")
    assert asked.first_weights is not None
    assert asked.first_weights.path == tmp_path / "a.pt"
    monkeypatch.setattr("reprise.workers.cores", lambda: 2)
    apart = sorted(run_experiments([asked], [0, 1]), key=lambda record: record["seed"])
    lanes = [*run_experiments([asked], [0, 1], lanes=2)]
    monkeypatch.setattr("reprise.workers.cores", lambda: 1)
    random = [*run_experiments([replace(asked, first_weights=None)], [0, 1])]
    for one, other, third in zip(apart, lanes, random, strict=True):
        assert one["matrix"]["loss"][-1] == pytest.approx(other["matrix"]["loss"][-1], abs=1e-9)
        assert one["matrix"]["loss"][-1] != pytest.approx(third["matrix"]["loss"][-1], abs=1e-6)


def follow_without_file(ranks: Ranks, asked: tuple[Experiment, Path]) -> None:
    """The command's runs; a follower that looks for the file fails."""
    if not ranks.first:
        FirstWeights.load = None  # type: ignore[method-assign, assignment]
    [*run_experiments([asked[0]], [0], out=asked[1])]


def test_ranks_begin_with_what_the_first_one_read(tmp_path: Path) -> None:
    asked = experiment(save(tmp_path / "a.pt", some_weights()), precision="float64", batch=8)
    on_ranks(2, follow_without_file, (asked, tmp_path / "ranks"), tmp_path)
    (alone,) = run_experiments([asked], [0])
    (together,) = results.read_store(tmp_path / "ranks")
    assert together["configuration"] == alone["configuration"]
    for row, twin in zip(together["matrix"]["loss"], alone["matrix"]["loss"], strict=True):
        assert row == pytest.approx(twin, abs=1e-9)


# ---- the hash


def test_the_hash_is_the_content_s_and_not_the_path_s(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    path = save(tmp_path / "a.pt", some_weights())
    copied = Path(shutil.copy(path, tmp_path / "deep" / "b.pth"))
    other = save(tmp_path / "c.pt", some_weights(seed=1))
    asked = experiment(path)
    assert asked == experiment(copied)
    assert asked.hash("data") == experiment(copied).hash("data")
    assert len({e.hash("data") for e in (asked, experiment(other), experiment())}) == 3
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    assert asked.configuration("data")["first_weights"] == digest
    assert str(tmp_path) not in json.dumps(asked.configuration("data"))
    back = Experiment.from_dict(json.loads(json.dumps(asked.to_dict())))
    assert back == asked
    assert back.hash("data") == asked.hash("data")
    with pytest.raises(
        InputError, match=f"weights: the file {digest} is not at hand; name it with --weights"
    ):
        Trainer([replace(cell("er"), experiment=back)], CPU)


@pytest.mark.parametrize(
    ("stream", "method", "hashed"),
    [
        ("split-shapes", "er", "7aca5db5ff54"),
        ("taskonomy", "car", "e19ae2c326bd"),
        ("rooms", "multitask", "261e4647343b"),
    ],
)
def test_without_a_file_hashes_are_what_they_were(stream: str, method: str, hashed: str) -> None:
    """As they were before there were files of weights."""
    made = make_experiment(stream, method, {}, stream_kind(stream).protocol_of(method))
    assert made.hash("data") == hashed
    assert "first_weights" not in made.configuration("data")


def test_a_file_that_changes_before_training_is_noticed(tmp_path: Path) -> None:
    path = save(tmp_path / "a.pt", some_weights())
    asked = experiment(path)
    save(path, some_weights(seed=1))
    with pytest.raises(InputError, match="a.pt has changed since it was checked .*; put it back, or run"):
        [*run_experiments([asked], [0], out=tmp_path / "run")]
    assert not [*tmp_path.rglob("record.json")]
    path.unlink()
    with pytest.raises(InputError, match="weights: .*a.pt cannot be read"):
        [*run_experiments([asked], [0], out=tmp_path / "run")]


# ---- the reference


def test_the_reference_begins_alike(tmp_path: Path) -> None:
    usual = scene_cell("er").experiment
    asked = replace(usual, first_weights=read_weights(save(tmp_path / "a.pt", some_weights()), usual.encoder))
    one, other = reference_of(usual), reference_of(asked)
    assert one is not None
    assert other is not None
    assert other.first_weights == asked.first_weights
    assert other.hash("data") != one.hash("data")
    assert other == replace(one, first_weights=asked.first_weights)


def test_compared_runs_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REPRISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("reprise.workers.cores", lambda: 1)
    monkeypatch.chdir(tmp_path)
    given = some_weights()
    save(Path("a.safetensors"), given)
    run, began = Trainer.run, {}

    def noted(trainer: Trainer, *rest: Any, **more: Any) -> Any:
        began[trainer.experiment.method_name] = exactly(part(trainer, "encoder"), given)
        return run(trainer, *rest, **more)

    monkeypatch.setattr(Trainer, "run", noted)
    line = [*ROOMS, "--compare", "true"]
    code, out, err = says(capsys, [*line, "--weights", "a.safetensors"])
    assert code == 0, err
    assert began == {"sgd": True, "multitask": True}
    records = {r["method"]: r for r in map(json.loads, out.splitlines())}
    digest = hashlib.sha256(Path("a.safetensors").read_bytes()).hexdigest()[:16]
    assert {r["configuration"]["first_weights"] for r in records.values()} == {digest}
    assert records["sgd"]["reference"] == records["multitask"]["matrix"]["loss"][-1]
    # A run from random weights is not compared with this reference.
    code, out, _ = says(capsys, ROOMS)
    assert (code, json.loads(out)["reference"]) == (0, None)
    assert began["sgd"] is False


# ---- the command line


def test_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same file elsewhere is the same run, also one that is there already; another file is not."""
    monkeypatch.setattr("reprise.workers.cores", lambda: 1)
    monkeypatch.chdir(tmp_path)
    save(Path("a.pt"), some_weights())
    Path("fields.yaml").write_text("weights: deep/b.pt\n")
    Path("deep").mkdir()
    shutil.copy("a.pt", "deep/b.pt")
    line = [*RUN, "car", *SHORT, "--seeds", "0,1"]
    first = records_of(capsys, [*line, "--weights", "a.pt", "--out", "one"])
    second = records_of(capsys, [*line, "--config", "fields.yaml", "--out", "two"])
    random = records_of(capsys, [*line, "--out", "three"])
    assert [*map(timeless, first)] == [*map(timeless, second)]
    assert [r["matrix"] for r in first] != [r["matrix"] for r in random]
    assert first[0]["matrix"] != first[1]["matrix"]
    digest = hashlib.sha256(Path("a.pt").read_bytes()).hexdigest()[:16]
    assert first[0]["configuration"] == random[0]["configuration"] | {"first_weights": digest}
    monkeypatch.setattr(Trainer, "run", None)
    assert records_of(capsys, [*line, "--weights", "deep/b.pt", "--out", "one"]) == first
    save(Path("c.pt"), some_weights(seed=1))
    assert f"(first_weights '{digest}' there, '" in refused(
        capsys, [*line, "--weights", "c.pt", "--out", "one"]
    )
    assert f"(first_weights '{digest}' there, None here)" in refused(capsys, [*line, "--out", "one"])


def test_an_interrupted_command_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, run = save(tmp_path / "a.pt", some_weights()), Trainer.run
    line = [*RUN, "er", *SHORT, "--weights", str(path)]

    def stop(trainer: Trainer, *rest: Any, **more: Any) -> Any:
        more["keeper"].asked = lambda: 15
        return run(trainer, *rest, **more)

    monkeypatch.setattr(Trainer, "run", stop)
    assert says(capsys, [*line, "--out", str(tmp_path / "run")])[0] == 143
    monkeypatch.undo()
    moved = path.rename(tmp_path / "moved.pt")
    line[-1] = str(moved)
    gone_on = records_of(capsys, [*line, "--out", str(tmp_path / "run")])
    straight = records_of(capsys, [*line, "--out", str(tmp_path / "straight")])
    assert [*map(timeless, gone_on)] == [*map(timeless, straight)]


def test_forks_keep_the_weights_they_began_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(tmp_path / "a.pt", some_weights())
    line, given = [*RUN, "er", *SHORT], ["--weights", str(path)]
    (run,) = records_of(capsys, [*line, *given, "--out", str(tmp_path / "run")])
    fork = [*line, "--from", str(tmp_path / "run"), "--task", "1", "--out", str(tmp_path / "fork")]
    assert "None here); leave these fields as they were" in refused(capsys, fork)
    (forked,) = records_of(capsys, [*fork, *given])
    assert forked["matrix"] == run["matrix"]
    assert forked["configuration"]["first_weights"] == run["configuration"]["first_weights"]


def test_tune(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reprise.workers.cores", lambda: 1)
    path = save(tmp_path / "a.pt", some_weights())
    line = ["tune", "split-shapes", "--method", "er", *SHORT, "--weights", str(path)]
    line += ["--out", str(tmp_path / "store")]
    found = records_of(capsys, [*line, "--grid", "lr=0.01,0.1"])
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    assert [r["configuration"]["first_weights"] for r in found] == [digest] * 2
    both = [*line, "--grid", "encoder=convnet-small,resnet18-tiny"]
    assert "give the state dict of the encoder resnet18-tiny." in refused(capsys, both)
    assert "weights: er has no such field to search" in refused(capsys, [*line, "--grid", "weights=a,b"])


# ---- wrong files


def pickled(value: object) -> Callable[[Path], object]:
    return lambda path: torch.save(value, path)


def changed(**names: Tensor | None) -> Callable[[Path], object]:
    """A file with some names left out or other tensors under them."""
    plain = {name.replace("__", "."): tensor for name, tensor in names.items()}
    return lambda path: save(path, {n: t for n, t in (some_weights() | plain).items() if t is not None})


def cut(path: Path) -> None:
    save(path, some_weights())
    path.write_bytes(path.read_bytes()[:-100])


FITS = "give the state dict of the encoder convnet-small."
WRONG: list[tuple[str, Callable[[Path], object], str]] = [
    (
        "a.pt",
        lambda path: None,
        "a.pt cannot be read (No such file or directory); put a readable file there.",
    ),
    ("a.pt", Path.mkdir, "a.pt is not a regular file; put the data file in its place."),
    ("a.pt", os.mkfifo, "a.pt is not a regular file; put the data file in its place."),
    ("a.bin", pickled({}), "a.bin is none of .safetensors, .pt, .pth; save a state dict as one."),
    ("a", pickled({}), "a is none of .safetensors, .pt, .pth; save a state dict as one."),
    ("a.pt", cut, "a.pt is damaged, or no .pt file; get another copy."),
    ("a.pt", Path.touch, "a.pt is damaged, or no .pt file; get another copy."),
    (
        "a.PTH",
        lambda path: path.write_text("text"),
        "a.PTH is damaged, or no .PTH file; get another copy.",
    ),
    ("a.safetensors", cut, "a.safetensors is damaged, or no .safetensors file; get another copy."),
    (
        "a.safetensors",
        pickled(some_weights()),
        "a.safetensors is damaged, or no .safetensors file; get another copy.",
    ),
    (
        "a.pt",
        lambda path: path.write_bytes(pickle.dumps(Evil())),
        "a.pt is damaged, or no .pt file; get another copy.",
    ),
    (
        "a.pt",
        pickled({"conv1.weight": Evil()}),
        "a.pt asks for 'posix.system', which no state dict needs; save",
    ),
    (
        "a.pt",
        pickled(torch.nn.Linear(2, 2)),
        "a.pt asks for 'torch.nn.modules.linear.Linear', which no state",
    ),
    ("a.pt", pickled([torch.zeros(1)]), "a.pt holds no dict of tensors but 'list'; save a state dict."),
    ("a.pt", pickled(torch.zeros(1)), "a.pt holds no dict of tensors but 'Tensor'; save a state dict."),
    (
        "a.pt",
        pickled({"model": some_weights()}),
        "a.pt holds 'model', which is no named tensor; save the state",
    ),
    (
        "a.pt",
        pickled({1: torch.zeros(1)}),
        "a.pt holds 1, which is no named tensor; save the state dict alone.",
    ),
    (
        "a.pt",
        changed(bn1__bias=torch.zeros(8, device="meta")),
        "a.pt holds 'bn1.bias', which is no named tensor",
    ),
    (
        "a.pt",
        changed(bn1__bias=torch.zeros(8).to_sparse()),
        "a.pt holds 'bn1.bias', which is no named tensor",
    ),
    ("a.pt", pickled({}), f"conv1.weight is missing (10 of 10 names are); {FITS}"),
    ("a.pt", changed(bn2__running_var=None), f"bn2.running_var is missing (1 of 10 names are); {FITS}"),
    (
        "a.pt",
        changed(fc__bias=torch.zeros(1)),
        f"fc.bias is not a layer of this encoder (1 such names); {FITS}",
    ),
    ("a.pt", changed(bn1__bias=torch.zeros(5)), f"bn1.bias has the shape (5,) instead of (8,); {FITS}"),
    (
        "a.pt",
        changed(bn1__bias=torch.zeros(8).long()),
        f"bn1.bias holds int64 instead of real numbers; {FITS}",
    ),
    (
        "a.pt",
        changed(bn1__bias=torch.full((8,), torch.nan)),
        f"bn1.bias has values that are not finite; {FITS}",
    ),
    (
        "a.pt",
        changed(bn1__bias=torch.full((8,), 1e300, dtype=torch.float64)),
        "bn1.bias has values that are not finite",
    ),
]


@pytest.mark.parametrize(
    ("name", "write", "said"), WRONG, ids=lambda value: value if isinstance(value, str) else ""
)
def test_each_wrong_file_gets_its_sentence(
    name: str,
    write: Callable[[Path], object],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before anything is made: the folder holds the file and nothing else."""
    monkeypatch.chdir(tmp_path)
    write(Path(name))
    there = [*tmp_path.iterdir()]
    found = refused(capsys, [*RUN, "er", *SHORT, "--weights", name])
    assert found.startswith(f"reprise: weights: {said}")
    assert [*tmp_path.iterdir()] == there


def test_a_file_of_an_older_format_is_read(tmp_path: Path) -> None:
    given = some_weights()
    torch.save(given, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    trainer = Trainer([beginning(cell("sgd"), tmp_path / "a.pt")], CPU)
    assert exactly(part(trainer, "encoder"), given)


def test_parameters_and_halves_are_tensors_too(tmp_path: Path) -> None:
    given = some_weights()
    stored = given | {"bn1.bias": torch.nn.Parameter(given["bn1.bias"]), "bn2.bias": given["bn2.bias"].half()}
    trainer = Trainer([beginning(cell("sgd"), save(tmp_path / "a.pt", stored))], CPU)
    assert exactly(part(trainer, "encoder"), stored)
    assert all(tensor.grad_fn is None for tensor in trainer.engine.params.values())


def test_a_steps_cost_is_counted_without_the_file(tmp_path: Path) -> None:
    """A finished run must not be lost for a file that has gone since."""
    plain = mixed_cell("er")
    named = beginning(plain, save(tmp_path / "w.pt", some_weights(plain.experiment.encoder)))
    (tmp_path / "w.pt").unlink()
    assert step_costs(named.experiment, named.stream) == step_costs(plain.experiment, plain.stream)
