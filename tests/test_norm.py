"""The fast BatchNorm is BatchNorm: outputs, gradients and running statistics."""

import pytest
import torch
from torch import nn

from reprise.models.encoders import ReducedResNet18
from reprise.models.norm import Norm, allow_rows


def pair(channels: int, relu: bool = False) -> tuple[Norm, nn.BatchNorm2d]:
    fast, plain = Norm(channels, relu).double(), nn.BatchNorm2d(channels).double()
    with torch.no_grad():
        for module in (fast, plain):
            generator = torch.Generator().manual_seed(0)
            module.weight.copy_(torch.rand(channels, generator=generator))
            module.bias.copy_(torch.randn(channels, generator=generator))
    fast.by_rows = True
    return fast, plain


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shape", [(15, 20, 32, 32), (1, 3, 16, 16), (4, 8, 16, 20)])
def test_rows_equal_plain_batchnorm(shape: tuple[int, ...], relu: bool) -> None:
    fast, plain = pair(shape[1], relu)
    results = []
    for module in (fast, plain):
        generator = torch.Generator().manual_seed(1)
        x = (3 * torch.randn(shape, generator=generator, dtype=torch.float64) + 5).contiguous(
            memory_format=torch.channels_last
        )
        x.requires_grad_()
        y = module(x)
        if relu and module is plain:
            y = y.relu()
        seed = torch.randn(shape, generator=generator, dtype=torch.float64)
        grads = torch.autograd.grad(y, (x, module.weight, module.bias), seed)
        results.append([y, *grads, module.running_mean, module.running_var])
    assert "_ByRows" in results[0][0].grad_fn.name()
    assert (results[0][0] >= 0).all() or not relu
    for ours, torchs in zip(*results, strict=True):
        torch.testing.assert_close(ours, torchs, rtol=1e-10, atol=1e-10)


def test_rows_are_left_out_in_evaluation_and_for_contiguous_tensors() -> None:
    fast, plain = pair(4)
    x = torch.randn(2, 4, 16, 16, dtype=torch.float64, requires_grad=True)
    assert "_ByRows" not in fast(x).grad_fn.name()
    fast.eval(), plain.eval()
    fast.running_mean.copy_(plain.running_mean), fast.running_var.copy_(plain.running_var)
    torch.testing.assert_close(
        fast(x.contiguous(memory_format=torch.channels_last)), plain(x), rtol=0, atol=1e-12
    )


def test_statistics_stand_still_when_not_tracked() -> None:
    fast, _ = pair(4)
    fast.track_running_stats = False
    before = fast.running_mean.clone()
    fast(torch.randn(2, 4, 16, 16, dtype=torch.float64).contiguous(memory_format=torch.channels_last))
    assert torch.equal(fast.running_mean, before)


def test_a_whole_encoder_gives_the_same_gradient() -> None:
    torch.manual_seed(0)
    encoder = ReducedResNet18(8).double().to(memory_format=torch.channels_last)
    x = torch.randn(5, 3, 16, 16, dtype=torch.float64).contiguous(memory_format=torch.channels_last)
    grads = []
    for allowed in (True, False):
        allow_rows(encoder, allowed)
        grads.append(torch.autograd.grad(encoder(x).square().mean(), list(encoder.parameters())))
    for ours, torchs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, torchs, rtol=1e-9, atol=1e-10)
