"""ResNet-50 and the 15-layer decoder on a GPU: how fast a training step is.

    python benchmarks/taskonomy_speed.py --out DIR [--batch 64] [--size 256]

Milliseconds a step and images a second on random images: a plain PyTorch loop of the same networks (float32, TF32,
bf16 channels-last, compiled) and our trainer's steps (ER and CAR), captured as graphs and one by one, current
and replaying ones apart; what CAR adds to ER; what it costs to read from mapped files instead of the GPU's memory.
Writes speed.json, row by row.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reprise.build import Cell
from reprise.config import make_experiment
from reprise.feed import Feed
from reprise.ledger import settle
from reprise.machine import set_arithmetic
from reprise.results import environment
from reprise.stepper import Stepper
from reprise.streams import packs, stream_kind, stream_of
from reprise.streams.scenes import Scenes
from reprise.streams.taskonomy.domains import DOMAINS
from reprise.streams.taskonomy.packed import Packed, PackedBuilding
from reprise.train import Trainer

# ---- the same networks in plain PyTorch, as a user would write them


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.down: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.down = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = F.relu(self.bn2(self.conv2(out)), inplace=True)
        return F.relu(self.bn3(self.conv3(out)) + self.down(x), inplace=True)


class PlainNetwork(nn.Module):
    """ResNet-50 without pooling, and the decoder of 15 layers. (A bare `nn.Sequential` compiles layer by layer.)"""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.layers = plain_layers(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def plain_layers(outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inputs = 64
    for index, count in enumerate((3, 4, 6, 3)):
        for block in range(count):
            layers.append(Bottleneck(inputs, 64 * 2**index, 2 if block == 0 and index else 1))
            inputs = 4 * 64 * 2**index
    widths = ["1024", "1024", "+512", "256", "256", "128", "+64", "64", "+32", "32", "+16", "32", "+16", "16"]
    for width in widths:
        channels = int(width)
        if width.startswith("+"):
            layers.append(nn.ConvTranspose2d(inputs, channels, 3, 2, 1, output_padding=1, bias=False))
        else:
            layers.append(nn.Conv2d(inputs, channels, 3, 1, 1, bias=False))
        layers += [nn.BatchNorm2d(channels), nn.LeakyReLU(0.2, True)]
        inputs = channels
    return nn.Sequential(*layers, nn.Conv2d(inputs, outputs, 3, 1, 1), nn.Tanh())


def plain_step(device: torch.device, batch: int, size: int, how: str) -> Callable[[], object]:
    """A step of the plain loop on images that are on the device already."""
    set_arithmetic("tf32" if how == "tf32" else "float32", deterministic=False)
    fast = how.startswith("bf16")
    model: nn.Module = PlainNetwork(3).to(device)
    x, y = torch.randn(batch, 3, size, size, device=device), torch.rand(batch, 3, size, size, device=device)
    if fast:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    if how.endswith("compile"):
        model.compile()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step() -> object:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=fast):
            loss = F.mse_loss(model(x).float(), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


# ---- ours


def random_scenes(views: int, size: int) -> Scenes:
    """Random labels in the packed formats, for two tasks."""
    rng = np.random.default_rng(0)
    names = ("rgb", "principal_curvature", "normal", "depth_zbuffer")
    arrays = {
        name: rng.integers(1, 256, (views, *DOMAINS[name].shape(size))).astype(DOMAINS[name].dtype)
        for name in names
    }
    numbers = np.stack([np.arange(views), np.zeros(views, int)], 1)
    building = PackedBuilding("random", Path(), numbers, {}, {}, arrays, (0, 0, 0), dict.fromkeys(names, ""))
    return Scenes(Packed(size, names, [building]), "points", workers=4)


class OurSteps:
    """A trainer in its second task: every step is a current or a replaying one, by the coin."""

    def __init__(
        self,
        method: str,
        device: torch.device,
        options: argparse.Namespace,
        resident: bool = True,
        deterministic: bool = True,
        compiled: bool = False,
        captured: bool = True,
    ) -> None:
        packs.COMFORT = 0.5 if resident else 0.0
        pool = random_scenes(4 * options.batch, options.size)
        given = {
            **{"size": options.size, "sequence": "curvature,normal", "steps": 10**4, "precision": "bf16"},
            **{"batch": options.batch, "encoder": options.encoder},
        }
        given |= {"m": options.batch, "replay": options.batch}
        e = make_experiment("taskonomy", method, given, stream_kind("taskonomy").protocol_of(method))
        stream = stream_of(e, 0, pool)
        set_arithmetic("bf16", deterministic)
        self.deterministic = deterministic
        self.trainer = Trainer([Cell(settle(e, stream), 0, stream)], device, compiled=compiled)
        self.feed: Feed = self.trainer.skip_to(1)
        self.replays = self.feed.plan.replays
        self.position = 0
        trainer = self.trainer
        if captured:
            self.stepper = trainer.steppers.stepper(self.feed)
        else:
            self.stepper = Stepper(trainer.method, trainer.engine, self.feed, 0)

    def step(self) -> object:
        self.stepper.run(self.position)
        self.position += 1
        return None

    def run_of(self, replaying: bool, count: int) -> None:
        """So many steps of one sort; the others in between are left out."""
        done = 0
        while done < count:
            if bool(self.replays[self.position]) == replaying:
                self.step()
                done += 1
            else:
                self.position += 1


def timed(run: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def repeat(step: Callable[[], object], count: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(count):
            step()

    return run


def row(name: str, seconds: Sequence[float], block: int, batch: int, **more: Any) -> dict[str, Any]:
    """Median over blocks, and their quartiles."""
    each = [1000 * s / block for s in seconds]
    ms = statistics.median(each)
    spread = [float(np.quantile(each, q)) for q in (0.25, 0.75)]
    return {"name": name, "ms": ms, "quartiles": spread, "images_per_second": 1000 * batch / ms, **more}


def speed(options: argparse.Namespace) -> int:
    device, block, batch = torch.device(options.device), options.block, options.batch
    rows: list[dict[str, Any]] = []
    overhead: dict[str, dict[str, float]] = {}
    waiting: dict[str, dict[str, float]] = {}
    options.out.mkdir(parents=True, exist_ok=True)

    def write() -> None:
        content = {
            "what": f"a training step, {options.encoder} and its decoder, batch {batch}, "
            f"{options.size} x {options.size}",
            "blocks": options.blocks,
            "steps_per_block": block,
            "cudnn_benchmark": options.tune,
            "rows": rows,
            "car_over_er": overhead,
            "data": waiting,
            "peak_memory": torch.cuda.max_memory_allocated() if device.type == "cuda" else None,
            "environment": environment(device),
        }
        (options.out / "speed.json").write_text(json.dumps(content, indent=1) + "\n")

    def say(found: dict[str, Any]) -> None:
        rows.append(found)
        write()
        print(
            f"{found['name']:<44}{found['ms']:9.2f} ms {found['images_per_second']:9.0f} images/s", flush=True
        )

    def empty() -> None:
        if device.type == "cuda":
            torch.cuda.empty_cache()

    def plain(how: str) -> None:
        step = plain_step(device, batch, options.size, how)
        repeat(step, options.warm)()
        times = [timed(repeat(step, block), device) for _ in range(options.blocks)]
        say(row(f"plain loop, {how}{' channels-last' if how == 'bf16' else ''}", times, block, batch))
        del step
        empty()

    def compare(label: str, **how: Any) -> None:
        """ER's and CAR's steps, current and replaying ones, in turn: all see the same clock speed."""
        ours = {name: OurSteps(name, device, options, **how) for name in ("er", "car")}
        kinds = [(name, replaying) for replaying in (False, True) for name in ours]
        times: dict[Any, list[float]] = {kind: [] for kind in kinds}
        for one in ours.values():
            one.run_of(False, options.warm)
            one.run_of(True, options.warm)
        for _ in range(options.blocks):
            for name, replaying in kinds:
                set_arithmetic("bf16", ours[name].deterministic)
                run = ours[name]
                times[name, replaying].append(timed(lambda r=run, k=replaying: r.run_of(k, block), device))
        for (name, replaying), own in times.items():
            sort = "replaying" if replaying else "current"
            say(row(f"ours, bf16, {name}, {sort} step{label and ', ' + label}", own, block, batch))
        medians = {kind: statistics.median(own) for kind, own in times.items()}
        halves = {name: medians[name, False] + medians[name, True] for name in ours}
        overhead[label or "deterministic"] = {
            "replaying_step_percent": 100 * (medians["car", True] / medians["er", True] - 1),
            "all_steps_percent": 100 * (halves["car"] / halves["er"] - 1),
        }
        write()
        del ours
        empty()

    def wait_for_data(label: str, resident: bool) -> None:
        ours = OurSteps("er", device, options, resident=resident)
        repeat(ours.step, 2 * options.warm)()
        ours.feed.ahead.waited = 0.0
        times = [timed(repeat(ours.step, block), device) for _ in range(options.blocks)]
        share = ours.feed.ahead.waited / sum(times)
        say(row(f"ours, bf16, er, all steps, data {label}", times, block, batch, host_wait_share=share))
        waiting[label] = {"ms": rows[-1]["ms"], "host_wait_share": share}
        ours.feed.ahead.close()
        del ours
        empty()

    torch.backends.cudnn.benchmark = options.tune
    for how in ("float32", "tf32", "bf16"):
        plain(how)
    compare("")
    compare("step by step", captured=False)
    compare("any order of sums", deterministic=False)
    wait_for_data("on the GPU", True)
    wait_for_data("mapped files", False)
    if options.compile:  # last: compiling takes minutes
        plain("bf16 compile")
        compare("any order, compiled", deterministic=False, compiled=True)
    write()
    print("CAR over ER:", json.dumps(overhead))
    print("data:", json.dumps(waiting))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--encoder", default="resnet50")
    parser.add_argument("--blocks", type=int, default=10, help="blocks that are timed")
    parser.add_argument("--block", type=int, default=10, help="steps of a block")
    parser.add_argument("--warm", type=int, default=10, help="steps before the timing")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--tune", action="store_true", help="cudnn.benchmark")
    return speed(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
