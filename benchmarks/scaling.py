"""What a run costs against the number of tasks, examples, views and ranks: seconds and bytes, on this CPU.

    python benchmarks/scaling.py                    # about ten minutes on two cores
    python benchmarks/scaling.py --largest 100      # a short look

Every row is measured by a process of its own, one after another, so that its resident memory is its own. Seconds
of steps are the process's (`time.process_time`), which leaves out what others do on the machine; of ranks and files
they are the wall's. Each table has the ratio of every row to its first one. All goes to one JSON file.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from long_stream import Meter, long_stream

from reprise.archive import Archive
from reprise.build import Cell
from reprise.config import make_experiment
from reprise.examples import Examples, Source
from reprise.keeping import GroupKeeper, Saving, Seat
from reprise.ledger import model_bytes, settle
from reprise.plan import Draws, draw_order, draw_plan
from reprise.results import environment, make_record, to_json
from reprise.streams.stream import Normalise, Stream
from reprise.streams.taskonomy.domains import DOMAINS, TASKS
from reprise.streams.taskonomy.packed import ABOUT, FORMAT, INDEX, load_pack
from reprise.tasks import Classify, Task
from reprise.train import Trainer

RESULTS = Path(__file__).parent / "results"
CPU = torch.device("cpu")
Row = dict[str, Any]


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# ---- tasks


def of_tasks(tasks: int, shared: bool) -> Row:
    """A stream of tiny tasks: 4 steps each, two remembered examples each, everything measured once at its end."""
    torch.set_num_threads(1)
    before = resident()
    stream = long_stream(tasks, shared)
    fields = {"encoder": "convnet-small", "batch": 4, "replay": 4, "steps": 4, "evaluate_every": tasks}
    fields |= {"m": 2 * tasks if shared else 2}
    experiment = settle(make_experiment("split-shapes", "er", fields), stream)
    trainer = Trainer([Cell(experiment, 0, stream)], CPU)
    meter = Meter(max(1, tasks // 10))
    trainer.run(keeper=meter)
    began = time.process_time()
    trainer.evaluator.scores(range(tasks))
    scored = time.process_time() - began
    record = make_record(experiment, 0, trainer.outcomes[0], trainer.quotas[0], "long", environment(CPU))
    with tempfile.TemporaryDirectory() as folder:
        seat = Seat(Path(folder), "scaling")
        keeper = GroupKeeper([seat], Saving(tasks=True), lambda: None)
        began = time.perf_counter()
        keeper.end_task(trainer)
        saved = time.perf_counter() - began
        files = [*seat.archive.folder.iterdir()]
        sizes = {
            kind: sum(path.stat().st_size for path in files if path.name.startswith(kind))
            for kind in ("weights", "state", "memory", "task")
        }
    return {
        "tasks": tasks,
        "ms_per_step": statistics.median(row["ms_per_step"] for row in meter.rows),
        "ms_between_tasks": round(
            statistics.median(
                row["ms_per_task"] - 4 * row["ms_per_step"] for row in meter.rows[:-1] or meter.rows
            ),
            3,
        ),
        "ms_to_score_all_tasks": round(1e3 * scored, 2),
        "resident_bytes": resident() - before,
        "model_bytes": model_bytes(trainer.engine.model),
        "remembered_bytes": trainer.outcomes[0].bytes["total"],
        "checkpoint_bytes": sizes | {"all": sum(sizes.values())},
        "ms_to_save": round(1e3 * saved, 2),
        "record_bytes": len(to_json(record)),
    }


# ---- examples


def of_examples(examples: int) -> Row:
    """One task of so many 8 x 8 images in memory; 200 steps, then what a pass over all of them needs drawn."""
    torch.set_num_threads(1)
    before = resident()
    rng = np.random.default_rng(0)
    source = Source({"x": torch.from_numpy(rng.integers(0, 256, (examples, 3, 8, 8), dtype=np.uint8))})
    own = {
        "y": torch.from_numpy(rng.integers(0, 2, examples)),
        "task": torch.zeros(examples, dtype=torch.long),
    }
    train = Examples(source, torch.arange(examples), own)
    task = Task("task-0", Classify(2), train, train.subset(np.arange(100)))
    half = torch.full((3, 1, 1), 0.5)
    stream = Stream(
        "large",
        (task,),
        (3, 8, 8),
        Normalise(half, half),
        "large",
        shared_head=True,
        full_tasks=1,
        classes_per_task=2,
    )
    images = examples * 3 * 8 * 8
    tables = resident() - before - images
    fields = {"encoder": "convnet-small", "batch": 10, "steps": 200, "m": 100}
    experiment = settle(make_experiment("split-shapes", "er", fields), stream)
    trainer = Trainer([Cell(experiment, 0, stream)], CPU)
    meter = Meter(1)
    began = time.process_time()
    trainer.run(keeper=meter)
    whole = time.process_time() - began
    began = time.process_time()
    order = draw_order(0, 0, examples, 10, 1, None)
    drawn = time.process_time() - began
    return {
        "examples": examples,
        "ms_per_step": meter.rows[0]["ms_per_step"],
        "seconds_besides_steps": round(whole - 0.2 * meter.rows[0]["ms_per_step"], 3),
        "image_bytes": images,
        "index_bytes_an_example": sum(t.element_size() for t in (train.rows, *own.values())),
        "measured_index_bytes_an_example": round(tables / examples, 1),
        "order_bytes_an_example": order.nbytes / (order.size or 1),
        "ms_to_draw_a_pass": round(1e3 * drawn, 2),
    }


def of_replay(remembered: int) -> Row:
    """What a task's replay table costs to draw: 5 of so many remembered examples, 1,000 steps."""
    rows = {task: np.arange(task * remembered // 10, (task + 1) * remembered // 10) for task in range(10)}
    order = np.zeros((1000, 10), np.int64)
    began = time.process_time()
    draw_plan(0, 10, order, Draws({"replay": 5}), rows)
    return {"remembered": remembered, "ms_to_draw_1000_steps": round(1e3 * (time.process_time() - began), 2)}


# ---- views of a pack


def of_views(views: int) -> Row:
    """A pack of so many views in buildings of 10,000, as files without content: what opening it costs."""
    with tempfile.TemporaryDirectory() as name:
        folder, domains = Path(name), ["class_scene", "depth_zbuffer", "rgb"]
        (folder / ABOUT).write_text(json.dumps({"format": FORMAT, "size": 4, "domains": domains}))
        for start in range(0, views, 10_000):
            count = min(10_000, views - start)
            building = folder / f"building-{start // 10_000:04d}"
            building.mkdir()
            for domain in domains:
                shape = (count, *DOMAINS[domain].shape(4))
                np.lib.format.open_memmap(building / f"{domain}.npy", "w+", DOMAINS[domain].dtype, shape)
            index = {
                "format": FORMAT,
                "size": 4,
                "views": [[view, 0] for view in range(count)],
                "problems": {},
            }
            index |= {"absent": {}, "sha256": dict.fromkeys(domains, ""), "channel_sums": [0, 0, 0]}
            (building / INDEX).write_text(json.dumps(index))
        before, began = resident(), time.process_time()
        packed = load_pack(folder)
        opened = time.process_time() - began
        began = time.process_time()
        rows = packed.rows("depth")
        chosen = time.process_time() - began
        held = resident() - before  # before any image is touched: pages of mapped files would count, too
        began = time.process_time()
        order = np.random.default_rng(0).integers(0, views, (200, 64))
        for batch in order:
            packed.take("rgb", batch)
        return {
            "views": views,
            "seconds_to_open": round(opened, 3),
            "seconds_to_choose_rows": round(chosen, 4),
            "ms_to_find_a_batch_of_64": round(5 * (time.process_time() - began), 4),
            "bytes_a_view": round(held / views, 1),
            "row_bytes_a_view": rows.itemsize,
        }


# ---- ranks


def of_ranks(ranks: int) -> Row:
    """The small ResNet of rooms, ER, by torchrun and gloo, one thread a rank; the median of three runs."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [_on_ranks(ranks, Path(folder) / str(turn)) for turn in range(3)]
    milliseconds = [1e3 * seconds / steps for seconds, steps, _ in runs]
    return {
        "ranks": ranks,
        "ms_per_step": round(statistics.median(milliseconds), 2),
        "spread": {"min": round(min(milliseconds), 2), "max": round(max(milliseconds), 2)},
        "largest_resident_bytes_of_a_process": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
        "gradient_bytes_a_step": runs[0][2],
    }


def _on_ranks(ranks: int, out: Path) -> tuple[float, int, int]:
    """Seconds of training, steps (those that replay included), bytes of a gradient."""
    words = ["rooms", "--method", "er", "--sequence", "depth,normal", "--buildings", "4,1,1", "--steps", "60"]
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    line += ["-m", "reprise", "run", *words, "--out", str(out)]
    done = subprocess.run(line, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    record = json.loads((out / "seed-0" / "record.json").read_text())
    log = [json.loads(text) for text in (out / "seed-0" / "log.jsonl").read_text().splitlines()]
    steps = {line["phase"]: line["step"] for line in log}
    return record["seconds"]["train"], sum(steps.values()), record["cost"]["parameters_per_query"][0] * 4


# ---- a checkpoint's way to the disk


def of_saving(megabytes: int) -> Row:
    """Tensors of so many bytes: to safetensors, checksum, disk and fsync, and back."""
    torch.set_num_threads(1)
    tensors = {f"t{n}": torch.rand(250_000) for n in range(megabytes)}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        archive = Archive(Path(folder) / "checkpoints")
        began = time.perf_counter()
        archive.save((1, 0), {}, {"weights": tensors})
        saved = time.perf_counter() - began
        began = time.perf_counter()
        archive.load((1, 0))
        loaded = time.perf_counter() - began
    return {
        "megabytes": megabytes,
        "megabytes_a_second_saved": round(megabytes / saved, 1),
        "megabytes_a_second_loaded": round(megabytes / loaded, 1),
    }


# ---- what follows from shapes alone


def arithmetic() -> Row:
    """The paper's setting by its shapes: bytes of an image with its labels, of the model, of what is kept."""
    from reprise.cost import count_encoder_macs, count_macs
    from reprise.ledger import make_model
    from reprise.streams.taskonomy.labels import TaskLabels

    size = 256
    view = {
        name: int(np.prod(domain.shape(size))) * np.dtype(domain.dtype).itemsize
        for name, domain in DOMAINS.items()
    }
    blank = {name: torch.zeros(2, 3, size, size, dtype=torch.uint8) for name in ("x",)}
    examples = Examples(Source(blank), torch.arange(2), {})
    tasks = tuple(Task(name, task.kind, examples, examples) for name, task in TASKS.items())
    half = torch.full((3, 1, 1), 0.5)
    labels = tuple(TaskLabels(name) for name in TASKS)
    stream = Stream(
        "taskonomy", tasks, (3, size, size), Normalise(half, half), "x", shared_head=False, labels=labels
    )
    experiment = make_experiment("taskonomy", "sgd", {"encoder": "resnet50", "optimizer": "adam"})
    with torch.device("meta"):
        model = make_model(experiment, stream, 0)
        encoder = sum(p.nbytes for p in [*model.encoder.parameters(), *model.encoder.buffers()])
        macs = [count_macs(model.eval(), stream, task) for task in range(len(tasks))]
        encoder_macs = count_encoder_macs(model, stream)
    return {
        "bytes_of_a_view_by_domain": view,
        "bytes_of_a_view": sum(view.values()),
        "model_bytes": model_bytes(model),
        "encoder_bytes": encoder,
        "head_bytes": {
            name: sum(p.nbytes for p in [*head.parameters(), *head.buffers()])
            for name, head in zip(TASKS, model.heads.of_task, strict=True)
        },
        "macs_of_an_image_by_task": dict(zip(TASKS, macs, strict=True)),
        "macs_of_an_image_in_the_encoder": encoder_macs,
    }


# ---- tables


@dataclass(frozen=True)
class Table:
    """One measurement at growing sizes."""

    name: str
    measure: Callable[..., Row]
    sizes: Sequence[tuple[Any, ...]]

    def rows(self, largest: int) -> list[Row]:
        found = []
        for size in self.sizes:
            if isinstance(size[0], int) and size[0] > largest and self.name != "checkpoint":
                continue
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as one:
                found.append(one.submit(self.measure, *size).result())
            print(f"{self.name}: {json.dumps(found[-1])}", flush=True)
        for row in found:
            row["over_first"] = {
                key: round(value / found[0][key], 3)
                for key, value in row.items()
                if isinstance(value, int | float) and found[0][key]
            }
        return found


TABLES = (
    Table("tasks, one head for all", of_tasks, [(n, True) for n in (1, 10, 100, 1000)]),
    Table("tasks, a head each", of_tasks, [(n, False) for n in (1, 10, 100, 1000)]),
    Table("examples", of_examples, [(n,) for n in (1_000, 10_000, 100_000, 1_000_000)]),
    Table("remembered", of_replay, [(n,) for n in (100, 1_000, 10_000, 100_000)]),
    Table("views", of_views, [(n,) for n in (1_000, 10_000, 100_000, 1_000_000)]),
    Table("ranks", of_ranks, [(1,), (2,)]),
    Table("checkpoint", of_saving, [(16,), (256,)]),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--largest", type=int, default=1_000_000, help="leave out larger sizes")
    parser.add_argument("--only", nargs="+", help="tables to measure")
    parser.add_argument("--out", type=Path, help="the JSON file")
    options = parser.parse_args()
    began = time.perf_counter()
    tables = {
        table.name: table.rows(options.largest)
        for table in TABLES
        if options.only is None or table.name in options.only
    }
    report = {
        "what": (__doc__ or "").partition("\n")[0],
        "configuration": {"largest": options.largest, "only": options.only, "cores": os.cpu_count()},
        "tables": tables,
        "arithmetic": arithmetic(),
        "seconds": round(time.perf_counter() - began),
        "environment": environment(CPU),
    }
    path = options.out or RESULTS / f"scaling-torch{torch.__version__}-{time.strftime('%Y-%m-%d')}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"File: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
