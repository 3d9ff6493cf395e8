"""Small scene streams for tests: three rendered worlds of 16 x 16 pixels, made once."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from reprise.build import Cell
from reprise.config import Experiment, make_experiment
from reprise.ledger import settle
from reprise.streams import stream_kind, stream_of
from reprise.streams.rooms.worlds import Worlds, pack_worlds
from reprise.streams.scenes import Scenes
from reprise.streams.taskonomy import load_pack

WORLDS = Worlds((2, 1, 1), views=8, size=16)
FIELDS: dict[str, Any] = {
    **{"size": 16, "buildings": "2,1,1", "views": 8, "encoder": "convnet-small", "precision": "float64"},
    **{"sequence": "normal,class_scene,segment_semantic,edge_occlusion", "lr": 0.01},
    **{"batch": 4, "steps": 5},
}
REPLAYED: dict[str, Any] = {"replay": 3, "m": 6}


@lru_cache(maxsize=1)
def folder() -> Path:
    out = Path(mkdtemp(prefix="reprise-worlds-")) / "pack"
    pack_worlds(WORLDS, out, workers=1)
    return out


def scenes(workers: int = 0) -> Scenes:
    return Scenes(load_pack(folder()), "worlds", WORLDS.names, workers)


def experiment(method: str, **fields: Any) -> Experiment:
    given = FIELDS | (REPLAYED if method in ("er", "car", "agem", "derpp") else {}) | fields
    return make_experiment("rooms", method, given, stream_kind("rooms").protocol_of(method))


def scene_cell(
    method: str, seed: int = 0, workers: int = 0, pool: Scenes | None = None, **fields: Any
) -> Cell:
    wanted = experiment(method, **fields)
    stream = stream_of(wanted, seed, pool or scenes(workers))
    return Cell(settle(wanted, stream), seed, stream)
