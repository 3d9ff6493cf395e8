"""How the kernels' tiles were chosen: every layer of the reduced ResNet-18, every kernel, many tiles, timed on a GPU.

    python benchmarks/tune_tiles.py --out DIR [--lanes 60] [--images 15] [--quick]

Compiles in parallel first (Triton's cache on disk), then times one after another; beside each winner stands torch's
own grouped convolution (cuDNN). Writes tiles.json and prints the winners. Each kernel's result is compared with
torch's in float64 before it is timed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from reprise.kernels import conv
from reprise.kernels.conv import Shape, Tiles

LAYERS = {
    # inputs, outputs, kernel, stride, pad, height of the input
    "stem": (3, 20, 3, 1, 1, 32),
    "stage0": (20, 20, 3, 1, 1, 32),
    "down1": (20, 40, 3, 2, 1, 32),
    "stage1": (40, 40, 3, 1, 1, 16),
    "short1": (20, 40, 1, 2, 0, 32),
    "down2": (40, 80, 3, 2, 1, 16),
    "stage2": (80, 80, 3, 1, 1, 8),
    "short2": (40, 80, 1, 2, 0, 16),
    "down3": (80, 160, 3, 2, 1, 8),
    "stage3": (160, 160, 3, 1, 1, 4),
    "short3": (80, 160, 1, 2, 0, 8),
}
OFTEN = {"stage0": 4, "stage1": 3, "stage2": 3, "stage3": 3}
"""How many such layers the encoder has (else one)."""
KINDS = ("forward", "input", "filters")
DTYPES = {"tf32": torch.float32, "bf16": torch.bfloat16}


def fits(size: int) -> int:
    return max(16, 1 << (size - 1).bit_length())


def channel_choices(channels: int) -> list[int]:
    return {20: [32], 40: [64, 16], 80: [16, 128, 64], 160: [32, 64, 128], 3: [16]}[channels]


def candidates(layer: str, kind: str, quick: bool) -> list[Tiles]:
    inputs, outputs, kernel, stride, pad, height = LAYERS[layer]
    shape = Shape(1, 15, inputs, height, height, outputs, kernel, kernel, stride, pad)
    if kind == "input" and stride == 1:
        shape = replace(shape, inputs=outputs, outputs=inputs)
    channels = channel_choices(inputs if kind == "input" and stride > 1 else shape.outputs)
    depth = outputs if kind == "input" and stride > 1 else kernel * shape.inputs
    found: list[Tiles] = []
    if shape.walks and not (kind == "input" and stride > 1):
        spans = [height // 4, height // 2, height] if kind != "filters" else [height // 2, height]
        walks = itertools.product(
            (64, 128), channels, (fits(depth),), ((4, 1), (4, 2), (4, 3), (8, 2)), spans
        )
        found = [Tiles(p, c, d, *s, span) for p, c, d, s, span in walks]
    depths = sorted({min(fits(depth), d) for d in ((32, 64, 128) if kind == "filters" else (32, 64))})
    pixels = (32, 64) if kind == "filters" else (64, 128) if height > 8 else (32, 64, 128)
    others = itertools.product(pixels, channels, depths, ((4, 1), (4, 3), (8, 3)))
    found += [Tiles(p, c, d, *s) for p, c, d, s in others]
    return found[::7] if quick else found


def tensors(layer: str, lanes: int, images: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    inputs, outputs, kernel, stride, pad, height = LAYERS[layer]
    out = (height + 2 * pad - kernel) // stride + 1
    x = torch.randn(lanes, images, inputs, height, height, device="cuda")
    x = x if layer == "stem" else conv.channels_last(x.to(dtype))
    w = conv.channels_last(
        torch.randn(lanes, outputs, inputs, kernel, kernel, device="cuda").to(dtype) / kernel
    )
    g = conv.channels_last(torch.randn(lanes, images, outputs, out, out, device="cuda").to(dtype))
    return x, w, g


def launch(kind: str, layer: str, dtype: torch.dtype, x: Any, w: Any, g: Any) -> torch.Tensor:
    _, _, _, stride, pad, _ = LAYERS[layer]
    if kind == "forward":
        return conv.forward(x, w, stride, pad, dtype)
    if kind == "input":
        return conv.backward_input(g, x, w, stride, pad)
    return conv.backward_filters(g, x, w, stride, pad)


def use(tiles: Tiles) -> None:
    conv.product_tiles = conv.spread_tiles = conv.filter_tiles = lambda *_: tiles


def compile_one(job: tuple[str, str, str, Tiles]) -> str | None:
    layer, kind, precision, tiles = job
    torch.backends.cuda.matmul.allow_tf32 = True
    use(tiles)
    try:
        launch(kind, layer, DTYPES[precision], *tensors(layer, 1, 15, DTYPES[precision]))
        torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001 (a tile that does not compile is an answer)
        return f"{job}: {type(error).__name__}"
    return None


def seconds(fn: Any, repeats: int = 10) -> float:
    """Of one call, on the device: many calls are one CUDA graph, so that the host's part does not count."""
    fn()
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(repeats):
            fn()
    graph.replay()
    torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / repeats / 1000


def reference(kind: str, layer: str, x: Any, w: Any, g: Any) -> torch.Tensor:
    """torch's own answer, of each lane by itself."""
    _, _, _, stride, pad, _ = LAYERS[layer]
    found = []
    for one_x, one_w, one_g in zip(x, w, g, strict=True):
        xs, ws = one_x.detach().requires_grad_(), one_w.detach().requires_grad_()
        y = F.conv2d(xs, ws, stride=stride, padding=pad)
        found.append(
            y if kind == "forward" else torch.autograd.grad(y, xs if kind == "input" else ws, one_g)[0]
        )
    return torch.stack(found)


def grouped(kind: str, layer: str, x: Any, w: Any, g: Any) -> float:
    """Seconds of the same work as one grouped convolution."""
    _, _, _, stride, pad, _ = LAYERS[layer]
    lanes = x.shape[0]
    xs = x.transpose(0, 1).flatten(1, 2).contiguous().requires_grad_()
    ws = w.to(x.dtype).flatten(0, 1).contiguous().requires_grad_()
    gs = g.transpose(0, 1).flatten(1, 2).contiguous()

    def forward() -> torch.Tensor:
        return F.conv2d(xs, ws, stride=stride, padding=pad, groups=lanes)

    if kind == "forward":
        with torch.no_grad():
            return seconds(forward, 3)
    wanted = [kind == "input", kind == "filters", False]

    def backward() -> object:
        sizes = [stride, stride], [pad, pad], [1, 1], False, [0, 0], lanes, wanted
        return torch.ops.aten.convolution_backward(gs, xs.to(gs.dtype), ws.to(gs.dtype), None, *sizes)

    with torch.no_grad():
        return seconds(backward, 3)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lanes", type=int, default=60)
    parser.add_argument("--images", type=int, default=15)
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.deterministic = True
    jobs = [
        (layer, kind, precision, tiles)
        for layer in LAYERS
        for kind in KINDS
        if (layer, kind) != ("stem", "input")
        for precision in DTYPES
        for tiles in candidates(layer, kind, options.quick)
    ]
    started = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        failed = [why for why in pool.imap_unordered(compile_one, jobs, chunksize=8) if why]
    print(
        f"{len(jobs)} kernels compiled in {time.perf_counter() - started:.0f} s; failed: {len(failed)}",
        failed[:3],
    )
    rows: list[dict[str, Any]] = []
    for layer, kind, precision in dict.fromkeys(job[:3] for job in jobs):
        dtype = DTYPES[precision]
        x, w, g = tensors(layer, options.lanes, options.images, dtype)
        small = x[:2], w[:2], g[:2]
        right = reference(kind, layer, *(t.double() for t in small))
        times, error = {}, 0.0
        for tiles in candidates(layer, kind, options.quick):
            use(tiles)
            try:
                found = launch(kind, layer, dtype, *small).double()
                error = max(error, ((found - right).norm() / right.norm()).item())
                times[tiles] = seconds(partial(launch, kind, layer, dtype, x, w, g))
            except Exception:  # noqa: BLE001
                continue
        ranked = sorted(times, key=lambda t: times[t])
        cudnn = grouped(kind, layer, x, w, g)
        rows.append(
            {
                "layer": layer,
                "kind": kind,
                "precision": precision,
                "error": error,
                "cudnn_us_per_lane": 1e6 * cudnn / options.lanes,
                "ranked": [[vars(t), 1e6 * times[t] / options.lanes] for t in ranked],
            }
        )
    (options.out / "tiles.json").write_text(json.dumps(rows, indent=1))
    for precision in DTYPES:
        sums = dict.fromkeys([*KINDS, "cudnn"], 0.0)
        for row in rows:
            if row["precision"] != precision:
                continue
            (best, us), (second, us2) = row["ranked"][0], row["ranked"][min(1, len(row["ranked"]) - 1)]
            sums[row["kind"]] += us * OFTEN.get(row["layer"], 1)
            sums["cudnn"] += row["cudnn_us_per_lane"] * OFTEN.get(row["layer"], 1)
            print(
                f"{precision} {row['layer']:7s}{row['kind']:8s} err {row['error']:.0e} {us:6.2f} us "
                f"{tuple(best.values())} | {us2:6.2f} {tuple(second.values())} | cudnn {row['cudnn_us_per_lane']:.1f}"
            )
        print(precision, {name: round(us, 1) for name, us in sums.items()}, "us per lane and step")


if __name__ == "__main__":
    main()
