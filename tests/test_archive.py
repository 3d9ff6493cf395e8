"""Checkpoints on disk: every damaged byte is noticed, nothing is written twice, nothing needed is removed."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import CPU, cell, mixed_cell

from reprise.archive import Archive, Damaged
from reprise.errors import StorageError
from reprise.keeping import GroupKeeper, Saving, Seat, go_on
from reprise.stopping import Stopped
from reprise.train import Trainer

EVERY_STEP = Saving(steps=1)


def stopped_at(folder: Path, position: tuple[int, int], method: str = "car", **saving: Any) -> list[Seat]:
    """A run that wrote a checkpoint after every step and stopped at a position."""
    seat = Seat(folder / "seed-0", "hash/0")
    seat.folder.mkdir(parents=True, exist_ok=True)
    trainer = Trainer([cell(method, 0)], CPU)

    def asked() -> int | None:
        return 15 if (trainer.cursor.phase, trainer.cursor.step) >= position else None

    with pytest.raises(Stopped):
        trainer.run(keeper=GroupKeeper([seat], Saving(**{"steps": 1, **saving}), asked))
    return [seat]


def files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (folder / "seed-0" / "checkpoints").iterdir()}


# ---- damage


def test_every_truncation_and_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    """200 random places of each file of a checkpoint: half of them cut off there, half of them one bit flipped."""
    (seat,) = stopped_at(tmp_path, (1, 2), keep=1)
    archive, chance = seat.archive, random.Random(0)
    archive.load((1, 2))
    assert {name.partition("-")[0] for name in files(tmp_path)} == {"step", "weights", "state", "memory"}
    for path in sorted(archive.folder.iterdir()):
        whole = path.read_bytes()
        for turn in range(200):
            place = chance.randrange(len(whole))
            if turn % 2:
                damaged = whole[:place]
            else:
                damaged = bytearray(whole)
                damaged[place] ^= 1 << chance.randrange(8)
            path.write_bytes(damaged)
            with pytest.raises(Damaged, match=path.name):
                archive.load((1, 2))
        path.write_bytes(whole)
        archive.load((1, 2))
        path.unlink()
        with pytest.raises((Damaged, KeyError)):
            archive.load((1, 2))
        path.write_bytes(whole)


@pytest.mark.parametrize("kind", ["step-0001-00000002", "weights", "state"])
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before_and_says_so(
    tmp_path: Path, kind: str
) -> None:
    (seat,) = stopped_at(tmp_path, (1, 2))
    newest = seat.archive.positions()[1, 2]
    used = newest.read_text()
    for path in seat.archive.folder.iterdir():
        if path.name.startswith(kind) and (path == newest or path.name in used):
            path.write_bytes(path.read_bytes()[:-1])
    said: list[str] = []
    trainer = Trainer([cell("car", 0)], CPU)
    assert go_on(trainer, [seat], said.append)
    assert (trainer.cursor.phase, trainer.cursor.step) == (1, 1)
    (sentence,) = said
    assert sentence.startswith(f"{newest} is damaged (")
    assert sentence.endswith("; going back to the one before it.")
    assert (1, 2) not in seat.archive.positions()


def test_where_all_are_damaged_the_run_starts_from_the_beginning(tmp_path: Path) -> None:
    (seat,) = stopped_at(tmp_path, (1, 2))
    for path in seat.archive.folder.glob("*.json"):
        path.write_text("{}")
    said: list[str] = []
    trainer = Trainer([cell("car", 0)], CPU)
    assert not go_on(trainer, [seat], said.append)
    assert len(said) == 2
    assert trainer.cursor.phase == 0
    assert (seat.folder / "log.jsonl").read_text() == ""


def test_runs_of_a_group_go_back_together(tmp_path: Path) -> None:
    """One of them has no newest checkpoint, as after a kill in between: they go on from the newest all have."""
    cells = [cell("er", seed) for seed in range(2)]
    seats = [Seat(tmp_path / f"seed-{seed}", f"hash/{seed}") for seed in range(2)]
    for seat in seats:
        seat.folder.mkdir()
    trainer = Trainer(cells, CPU)
    asked = lambda: 15 if trainer.cursor.step >= 3 else None  # noqa: E731
    with pytest.raises(Stopped):
        trainer.run(keeper=GroupKeeper(seats, EVERY_STEP, asked))
    seats[1].archive.positions()[0, 3].unlink()
    second = Trainer(cells, CPU)
    assert go_on(second, seats, pytest.fail)
    assert second.cursor.step == 2
    assert list(seats[0].archive.positions()) == [(0, 2)]


# ---- what is written, and what is kept


def test_the_memory_is_written_once_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    replaced = Path.replace

    def noted(path: Path, target: Path) -> Path:
        written.append(Path(target).name.partition("-")[0])
        return replaced(path, target)

    monkeypatch.setattr(Path, "replace", noted)
    stopped_at(tmp_path, (2, 3), tasks=True)
    # Three checkpoints within each of the first two tasks and three of the last, two task ends.
    assert written.count("step") == 9
    assert written.count("task") == 2
    assert written.count("weights") == 11
    assert written.count("memory") == 3  # empty, after the first task, after the second


def test_a_shelf_that_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    seat = Seat(tmp_path / "seed-0", "hash/0")
    seat.folder.mkdir()
    Trainer([mixed_cell("er")], CPU).run(keeper=GroupKeeper([seat], Saving(tasks=True), lambda: None))
    shelves = [name for name in files(tmp_path) if name.startswith("memory")]
    # Three tasks' shelves empty, then filled one after another: 3 + 3 files for 3 checkpoints of 3 shelves each.
    assert len(shelves) <= 6


def test_the_last_ones_stay_and_no_part_without_a_manifest(tmp_path: Path) -> None:
    for keep in (1, 3):
        (seat,) = stopped_at(tmp_path / str(keep), (2, 3), keep=keep, tasks=True)
        steps = [(2, 1), (2, 2), (2, 3)][-keep:]
        assert list(seat.archive.positions()) == [(1, 0), (2, 0), *steps]
        parts = {p.name for p in seat.archive.folder.glob("*.safetensors")}
        manifests = "".join(p.read_text() for p in seat.archive.folder.glob("*.json"))
        assert all(name in manifests for name in parts)
        assert not [*seat.archive.folder.glob("*.part")]
        for position in seat.archive.positions():
            seat.archive.load(position)


def test_no_pickle(tmp_path: Path) -> None:
    stopped_at(tmp_path, (1, 2))
    assert {Path(name).suffix for name in files(tmp_path)} == {".json", ".safetensors"}


def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (seat,) = stopped_at(tmp_path, (1, 2))
    before = files(tmp_path)
    trainer = Trainer([cell("car", 0)], CPU)
    assert go_on(trainer, [seat], pytest.fail)
    calls, sync = [0], os.fsync

    def full(number: int) -> None:
        calls[0] += 1
        if calls[0] > 1:
            raise OSError(28, "No space left on device")
        sync(number)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError) as error:
        trainer.run(keeper=GroupKeeper([seat], EVERY_STEP, lambda: None))
    good = seat.archive.positions()[1, 2]
    assert f"(No space left on device); the last good checkpoint is {good}; make room" in str(error.value)
    monkeypatch.undo()
    assert not [*tmp_path.rglob("*.part")]
    after = files(tmp_path)
    assert {name: after[name] for name in before} == before
    again = Trainer([cell("car", 0)], CPU)
    assert go_on(again, [seat], pytest.fail)
    assert (again.cursor.phase, again.cursor.step) == (1, 2)


def test_weights_keep_their_memory_format(tmp_path: Path) -> None:
    (seat,) = stopped_at(tmp_path, (1, 2))
    trainer = Trainer([cell("car", 0)], CPU)
    go_on(trainer, [seat], pytest.fail)
    filters = [
        p for p in trainer.engine.params.values() if p.dim() == 4 and p.shape[1] > 1 and p.shape[2] > 1
    ]
    assert filters
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in filters)


def test_a_run_that_diverges_keeps_its_last_good_checkpoint(tmp_path: Path) -> None:
    seat = Seat(tmp_path / "seed-0", "hash/0")
    seat.folder.mkdir()
    trainer = Trainer([cell("sgd", 0, lr=1e30, steps=60, precision="float32")], CPU)
    keeper = GroupKeeper([seat], Saving(steps=1, keep=1), lambda: None)
    with pytest.raises(Exception, match="not finite in task-0 at step") as error:
        trainer.run(keeper=keeper)
    step = int(str(error.value).partition("at step ")[2].partition(";")[0])
    assert list(seat.archive.positions()) == [(0, step)]
    assert keeper.last_good(0).endswith(f"step-0000-{step:08d}.json")


def test_positions_are_those_of_manifests_only(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("{}")
    assert Archive(tmp_path).positions() == {}
    assert Archive(tmp_path / "nowhere").positions() == {}
    assert Archive(tmp_path / "nowhere").company() is None
