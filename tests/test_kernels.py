"""The lanes' kernels compute the same functions as torch's operators.

Here they run in Triton's interpreter, in float64, where only rounding may differ; `benchmarks/gpu_equality.py`
compares them on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tiny import CPU, cell, furthest, train, weights
from torch import Tensor
from torch.func import functional_call, vmap

from reprise.build import Cell
from reprise.models.conv import use_kernels
from reprise.models.encoders import ReducedResNet18
from reprise.models.norm import Norm
from reprise.train import Trainer

pytest.importorskip("triton")
ops = pytest.importorskip("reprise.kernels.ops")

EXACT = 1e-12
LANES = 3
F64 = torch.float64


def draw(*shape: int) -> Tensor:
    return torch.randn(
        *shape, dtype=F64, generator=torch.Generator().manual_seed(sum(shape))
    ).requires_grad_()


def compare(fast: Callable[..., Tensor], plain: Callable[..., Tensor], *tensors: Tensor) -> None:
    """Values and gradients of two functions of one lane, under vmap."""
    one, other = vmap(fast)(*tensors), vmap(plain)(*tensors)
    torch.testing.assert_close(one, other, rtol=0, atol=EXACT)
    leaves = [t for t in tensors if t.requires_grad]
    if not leaves:
        return
    g = draw(*other.shape).detach()
    for a, b in zip(
        torch.autograd.grad((one * g).sum(), leaves),
        torch.autograd.grad((other * g).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize(
    ("inputs", "outputs", "size", "stride", "height"),
    [
        (3, 5, 3, 1, 6),
        (20, 20, 3, 1, 7),
        (4, 6, 3, 2, 6),
        (4, 6, 3, 2, 7),
        (5, 4, 1, 2, 7),
        (7, 3, 1, 1, 6),
        (40, 17, 3, 1, 5),
        (3, 4, 7, 2, 9),
        (3, 20, 3, 1, 16),  # from here on by the kernels that walk down the lines
        (20, 20, 3, 1, 17),
        (40, 17, 3, 1, 16),
    ],
)
def test_convolution(inputs: int, outputs: int, size: int, stride: int, height: int) -> None:
    pad = size // 2
    x, w = draw(LANES, 2, inputs, height, height), draw(LANES, outputs, inputs, size, size)
    compare(
        lambda x, w: ops.conv(x, w, stride, pad, F64), lambda x, w: F.conv2d(x, w, None, stride, pad), x, w
    )


def test_convolution_of_images_that_all_lanes_share() -> None:
    """What has no lane axis (the same images for every lane) is shown to each."""
    x, w = draw(2, 3, 6, 6), draw(LANES, 4, 3, 3, 3)
    one = vmap(lambda w: ops.conv(x, w, 1, 1, F64))(w)
    torch.testing.assert_close(one, vmap(lambda w: F.conv2d(x, w, None, 1, 1))(w), rtol=0, atol=EXACT)


def test_convolution_sums_filters_over_many_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    from reprise.kernels import conv

    monkeypatch.setattr(conv, "FILTER_PIXELS", 64)
    x, w = draw(LANES, 5, 4, 9, 9), draw(LANES, 6, 4, 3, 3)
    compare(lambda x, w: ops.conv(x, w, 1, 1, F64), lambda x, w: F.conv2d(x, w, None, 1, 1), x, w)


@pytest.mark.parametrize("channels", [5, 20, 40])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("plus", [False, True])
def test_norm_by_the_batch(channels: int, relu: bool, plus: bool) -> None:
    x, more = draw(LANES, 4, channels, 5, 5), draw(LANES, 4, channels, 5, 5)
    weight, bias = draw(LANES, channels), draw(LANES, channels)
    fast_stats = [draw(LANES, channels).detach(), draw(LANES, channels).detach().abs()]
    plain_stats = [t.clone() for t in fast_stats]

    def fast(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, *added: Tensor) -> Tensor:
        return ops.norm(x, added[0] if added else None, weight, bias, (mean, var), 0.1, 1e-5, relu)

    def plain(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, *added: Tensor) -> Tensor:
        out = F.batch_norm(x, mean, var, weight, bias, True, 0.1, 1e-5)
        out = out + added[0] if added else out
        return F.relu(out) if relu else out

    tensors = [x, weight, bias, *fast_stats, *([more] if plus else [])]
    one = vmap(fast)(*tensors)
    tensors[3:5] = plain_stats
    other = vmap(plain)(*tensors)
    torch.testing.assert_close(one, other, rtol=0, atol=EXACT)
    torch.testing.assert_close(fast_stats, plain_stats, rtol=0, atol=EXACT)
    leaves, g = [x, weight, bias, *([more] if plus else [])], draw(*other.shape).detach()
    for a, b in zip(
        torch.autograd.grad((one * g).sum(), leaves),
        torch.autograd.grad((other * g).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=EXACT, atol=EXACT)


def test_norm_of_numbers_far_from_zero_does_not_cancel() -> None:
    """The variance of numbers around 1e4: sums of squares in float32 would lose it."""
    x = draw(LANES, 4, 5, 6, 6).detach().float() + 1e4
    ones, zeros = torch.ones(LANES, 5), torch.zeros(LANES, 5)
    one = vmap(lambda x, w, b: ops.norm(x, None, w, b, None, 0.1, 1e-5, False))(x, ones, zeros)
    exact = x.double() - x.double().mean((1, 3, 4), keepdim=True)
    exact /= (exact.square().mean((1, 3, 4), keepdim=True) + 1e-5).sqrt()
    assert (one.double() - exact).abs().max() < 0.01  # float32 has steps of 0.001 there


@pytest.mark.parametrize("relu", [False, True])
def test_norm_by_the_running_statistics(relu: bool) -> None:
    x, more = draw(LANES, 4, 20, 5, 5).detach(), draw(LANES, 4, 20, 5, 5).detach()
    weight, bias, mean, var = (draw(LANES, 20).detach().abs() for _ in range(4))

    def plain(x: Tensor, more: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        out = F.batch_norm(x, mean, var, weight, bias, False, 0.1, 1e-5) + more
        return F.relu(out) if relu else out

    compare(
        lambda x, m, w, b, *s: ops.norm_fixed(x, m, w, b, s, 1e-5, relu),
        plain,
        x,
        more,
        weight,
        bias,
        mean,
        var,
    )


def test_norm_by_the_running_statistics_has_a_gradient() -> None:
    """HAL learns its anchors in evaluation mode."""
    fast, plain = Norm(4, relu=True).double().eval(), Norm(4, relu=True).double().eval()
    fast.kernels = True
    for norm in (fast, plain):
        norm.running_mean.copy_(torch.arange(4.0))
        norm.running_var.copy_(torch.arange(1.0, 5.0))
    compare(
        lambda x, plus: functional_call(fast, {}, (x, plus)),
        lambda x, plus: functional_call(plain, {}, (x, plus)),
        draw(LANES, 2, 4, 3, 3),
        draw(LANES, 2, 4, 3, 3),
    )


def test_a_single_lane_needs_no_vmap() -> None:
    x, w = draw(2, 3, 6, 6), draw(4, 3, 3, 3)
    torch.testing.assert_close(ops.conv(x, w, 1, 1, F64), F.conv2d(x, w, None, 1, 1), rtol=0, atol=EXACT)


def with_kernels(*cells: Cell) -> Trainer:
    trainer = Trainer(cells, CPU, stacked=True, kernels=True)
    trainer.run()
    return trainer


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("er", {}),
        pytest.param("sgd", {}, marks=pytest.mark.slow),
        pytest.param("hal", {"anchor_steps": 2, "finetune_steps": 1}, marks=pytest.mark.slow),
        pytest.param("car", {"compress": "intermediate", "distance": "weighted_l1"}, marks=pytest.mark.slow),
    ],
)
def test_training_by_kernels_is_training(method: str, fields: dict[str, object]) -> None:
    """Two lanes by kernels against single runs by torch: weights, statistics and results."""
    cells = [cell(method, seed, tasks=2, steps=2, **fields) for seed in (0, 1)]
    lanes = with_kernels(*cells)
    assert lanes.engine.params["encoder.conv1.weight"].stride()[2] == 1, "filters are held channels-last"
    for lane, one in enumerate(cells):
        single = train(one, stacked=False)
        assert furthest(weights(single), weights(lanes, lane)) < 1e-10
        assert single.outcomes[0].accuracy == lanes.outcomes[lane].accuracy
        assert lanes.outcomes[lane].cost["macs_per_query"] == single.outcomes[0].cost["macs_per_query"]


def test_a_residual_network_by_kernels() -> None:
    """Output and gradients of the whole encoder, strided blocks and shortcuts included; two lanes."""
    models = []
    for _ in range(2):
        torch.manual_seed(3)
        models.append(ReducedResNet18(2).double())
    use_kernels(models[0], True)
    x, found = draw(2, 2, 3, 8, 8).detach(), []
    for model in models:
        params = {n: torch.stack([p, 1.5 * p]).detach().requires_grad_() for n, p in model.named_parameters()}
        buffers = {n: torch.stack([b, b]) for n, b in model.named_buffers()}
        out = vmap(lambda p, b, x, model=model: functional_call(model, (p, b), (x,)))(params, buffers, x)
        grads = torch.autograd.grad(out.square().sum(), list(params.values()))
        found.append([out.detach(), *grads, *buffers.values()])
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_a_lane_does_not_depend_on_its_company() -> None:
    """Bit for bit: the same cell alone, and as the last of three lanes."""
    cells = [cell("car", seed, tasks=2, steps=2, precision="float32") for seed in (0, 1, 2)]
    alone, together = with_kernels(cells[2]), with_kernels(*cells)
    assert furthest(weights(alone, 0), weights(together, 2)) == 0.0
