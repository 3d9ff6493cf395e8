"""The cost ledger: what a query and a step take, counted from shapes."""

from __future__ import annotations

import pytest
import torch
from scenes import scene_cell
from tiny import CPU, cell, train

from reprise.config import make_experiment
from reprise.cost import count_encoder_macs, count_macs, count_parameters
from reprise.engine import Single
from reprise.examples import Examples, Source
from reprise.ledger import make_model, make_reader, row_bytes, row_spec, settle, state_bytes
from reprise.streams.stream import Normalise, Stream
from reprise.streams.taskonomy.domains import DOMAINS, SEQUENCES, TASKS
from reprise.streams.taskonomy.labels import TaskLabels
from reprise.tasks import Task
from reprise.train import Trainer


def test_a_query_of_one_linear_layer_is_counted_by_hand() -> None:
    trainer = Trainer([cell("sgd")], CPU)
    model, stream = trainer.engine.model, trainer.stream
    encoder = count_encoder_macs(model, stream)
    # 3x3 convolutions 3 -> 8 and 8 -> 16, each halving 8 x 8 pixels; heads of 5 classes for 3 tasks on 16 numbers.
    assert encoder == 27 * 8 * 16 + 72 * 16 * 4
    assert count_macs(model, stream, 0) == encoder + 3 * 5 * 16
    assert count_parameters(model, stream, 0) == sum(p.numel() for p in model.parameters())


def test_side_tuning_pays_for_every_query_but_those_of_the_first_task() -> None:
    plain, sided = (train(scene_cell(name, steps=1)).outcomes[0] for name in ("sgd", "side_tuning"))
    for key in ("macs_per_query", "parameters_per_query"):
        assert sided.cost[key][0] == plain.cost[key][0]
        assert all(s > p for s, p in zip(sided.cost[key][1:], plain.cost[key][1:], strict=True))
    assert sided.bytes["model"] > plain.bytes["model"]


def test_a_step_counts_the_images_it_sees() -> None:
    flops = {
        name: train(scene_cell(name, steps=1, **fields)).outcomes[0].cost["flops_per_step"]
        for name, fields in {"sgd": {}, "er": {"replay": 4}, "agem": {"replay": 4}, "multitask": {}}.items()
    }
    assert flops["er"] == flops["sgd"], "a batch of 4, current or replayed"
    assert flops["agem"] == 2 * flops["sgd"], "both"
    assert flops["sgd"] < flops["multitask"] < 4 * flops["sgd"], "one pass of the encoder, four heads"


def paper_stream() -> Stream:
    """The 11 tasks at 256 x 256, with 64 examples each that nobody reads."""
    columns = {}
    for task in TASKS.values():
        domain = DOMAINS[task.domain]
        dtype = {"uint8": torch.uint8, "uint16": torch.int16, "float32": torch.float32}[domain.dtype]
        shape = (63,) if task.name == "class_scene" else domain.shape(256)
        columns[task.name] = torch.zeros(2, *shape, dtype=dtype)
    x = torch.zeros(2, 3, 256, 256, dtype=torch.uint8)
    tasks = []
    for name in SEQUENCES["1"]:
        own = Examples(Source({"x": x, "y": columns[name]}), torch.arange(64) % 2, {})
        tasks.append(Task(name, TASKS[name].kind, own, own))
    half = torch.full((1, 1, 1), 0.5)
    return Stream(
        "taskonomy",
        tuple(tasks),
        (3, 256, 256),
        Normalise(half, half),
        "paper",
        shared_head=False,
        labels=tuple(TaskLabels(name) for name in SEQUENCES["1"]),
    )


@pytest.fixture(scope="module")
def paper() -> Stream:
    return paper_stream()


def shapes_only(method: str, stream: Stream, **fields: object) -> Single:
    """An engine on the meta device: everything has a shape, nothing has a value."""
    given = {"encoder": "resnet50", "optimizer": "adam", "m": 64, **fields}
    settled = settle(make_experiment("taskonomy", method, given), stream)
    meta = torch.device("meta")
    with meta:
        model = make_model(settled, stream, 0)
        shapes = model.layer_shapes(stream.input_shape)
        engine = Single(
            model,
            settled.method,
            [task.kind for task in stream.tasks],
            layer_shapes=shapes,
            reader=make_reader(settled, stream, meta),
        )
    engine.enter(0)
    return engine


@pytest.mark.parametrize(
    ("compress", "printed", "measured"),
    [("none", 335.5, 335.54), ("spatial", 5.1, 5.24), ("channel", 0.2, 0.16), ("spatial_channel", 5.4, 5.41)],
)
def test_storage_of_activations_is_that_of_the_paper(
    paper: Stream, compress: str, printed: float, measured: float
) -> None:
    """Table 4's memory column: m = 64 examples of each of 10 old tasks, MB = 1e6. The paper prints 5.1 for 5.24."""
    engine = shapes_only("car", paper, compress=compress)
    kept = row_bytes(row_spec(engine, engine.method, paper, 0))["activation"]
    megabytes = 64 * 10 * kept / 1e6
    assert megabytes == pytest.approx(measured, abs=0.006)
    assert megabytes == pytest.approx(printed, rel=0.03, abs=0.05)


def test_storage_of_ewc_is_the_encoder_twice_for_each_old_task(paper: Stream) -> None:
    """Table 1: 10 tasks of weights and Fisher of 23,508,032 parameters are 1.88 GB. The paper prints 5.40, which no
    reading of its footnote gives."""
    engine = shapes_only("ewc", paper, variant="per_task", m=None)
    kept = sum(state_bytes(engine.state, 1).values())
    assert kept / 1e9 == pytest.approx(1.88, abs=0.005)
    collapsed = shapes_only("ewc", paper, variant="collapsed", m=None)
    assert sum(state_bytes(collapsed.state, 1).values()) / 1e9 == pytest.approx(0.188, abs=0.0005)


def test_side_networks_add_what_the_paper_prints(paper: Stream) -> None:
    """Table 1: 1.30 GB of model grow by 0.46 GB."""
    sided = shapes_only("side_tuning", paper, m=None)
    sides = sum(p.nbytes for name, p in sided.params.items() if name.startswith("sides."))
    assert sides / 1e9 == pytest.approx(0.455, abs=0.001)
    plain = shapes_only("sgd", paper, m=None)
    assert sum(p.numel() for p in plain.params.values()) == 342_992_739
