"""Compressions and distances: numbers worked by hand, exact sizes, gradients, and lanes against a loop."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import vmap

from reprise import compress
from reprise.compress import COMPRESSIONS, DISTANCES, NEEDS_WEIGHT, POINTWISE, compressed_size
from reprise.errors import InputError
from reprise.types import Output

RESNET50 = (2048, 8, 8)
STAGES = {"1": (256, 64, 64), "2": (512, 32, 32), "3": (1024, 16, 16), "4": RESNET50}
KINDS = {"vectors": (6,), "tokens": (5, 3), "maps": (3, 2, 4)}
quick = settings(max_examples=25, deadline=None, database=None)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def answer(f: Tensor, **taps: Tensor) -> Output:
    return Output(f, prediction=f.new_zeros(len(f), 1), taps=taps)


# Compressions


def test_pooling_by_hand() -> None:
    maps = torch.tensor([[[[1.0, 2.0], [3.0, 6.0]], [[0.0, 4.0], [8.0, 0.0]]]])  # [1, 2, 2, 2]
    # channel means (1+2+3+6)/4 and (0+4+8+0)/4; position means (1+0)/2, (2+4)/2, (3+8)/2, (6+0)/2
    assert compress.spatial(maps).tolist() == [[3.0, 3.0]]
    assert compress.channel(maps).tolist() == [[0.5, 3.0, 5.5, 3.0]]
    assert compress.spatial_channel(maps).tolist() == [[3.0, 3.0, 0.5, 3.0, 5.5, 3.0]]
    assert compress.flat(maps).tolist() == [[1, 2, 3, 6, 0, 4, 8, 0]]
    tokens = torch.tensor([[[1.0, 3.0], [2.0, 8.0], [6.0, 1.0]]])  # [1, 3 tokens, 2]
    assert compress.spatial(tokens).tolist() == [[3.0, 4.0]]
    assert compress.channel(tokens).tolist() == [[2.0, 5.0, 3.5]]
    vectors = normal(2, 5)
    assert compress.spatial(vectors).equal(vectors)
    # The taps in their order, whatever their names; the features themselves are not repeated.
    both = COMPRESSIONS["intermediate"](answer(vectors[:1], z=maps, a=tokens))
    assert both.tolist() == [[3.0, 3.0, 0.5, 3.0, 5.5, 3.0, 3.0, 4.0, 2.0, 5.0, 3.5]]


@pytest.mark.parametrize(
    ("name", "size"),
    # 9280 = 256 + 64² + 512 + 32² + 1024 + 16² + 2048 + 8²
    {"none": 131072, "spatial": 2048, "channel": 64, "spatial_channel": 2112, "intermediate": 9280}.items(),
)
def test_sizes_of_the_paper(name: str, size: int) -> None:
    assert compressed_size(name, RESNET50, STAGES) == size


def test_sizes_of_the_rest() -> None:
    assert compressed_size("auto", RESNET50, STAGES) == 2112
    assert compressed_size("auto", (160,)) == compressed_size("spatial", (160,)) == 160
    assert compressed_size("auto", (197, 768)) == 197 + 768
    # The paper's table of bytes: 64 examples of each of 10 tasks in fp32, MB = 1e6
    for name, megabytes in [("none", 335.54), ("channel", 0.16), ("spatial_channel", 5.41)]:
        assert round(compressed_size(name, RESNET50) * 64 * 10 * 4 / 1e6, 2) == megabytes


@quick
@given(st.sampled_from(sorted(KINDS)), st.integers(1, 4), st.integers(0, 10**6))
def test_pooling_after_storing_everything_gives_the_same(kind: str, n: int, seed: int) -> None:
    f = normal(n, *KINDS[kind], seed=seed)
    stored = COMPRESSIONS["none"](answer(f))
    assert stored.shape == (n, math.prod(KINDS[kind]))
    for name in ("spatial",) if kind == "vectors" else ("spatial", "channel", "spatial_channel"):
        direct = COMPRESSIONS[name](answer(f))
        assert direct.equal(COMPRESSIONS[name](answer(stored.reshape(f.shape))))
        assert direct.shape == (n, compressed_size(name, KINDS[kind]))
        assert not direct.allclose(COMPRESSIONS[name](answer(f.flip(0) + 1)))


def test_auto_and_names() -> None:
    resolve = compress.resolve_compression
    kinds = {kind: resolve("auto", shape) for kind, shape in KINDS.items()}
    assert kinds == {"vectors": "none", "tokens": "spatial_channel", "maps": "spatial_channel"}
    assert [resolve(name, KINDS["maps"]) for name in COMPRESSIONS] == list(COMPRESSIONS)
    with pytest.raises(InputError, match="'zip' is unknown; use one of auto, none, spatial, channel"):
        resolve("zip", (160,))
    for name in ("channel", "spatial_channel"):
        with pytest.raises(InputError, match="use 'none'"):
            resolve(name, (160,))
        with pytest.raises(InputError, match="use 'none'"):
            COMPRESSIONS[name](answer(normal(2, 160)))
    with pytest.raises(InputError, match="taps none"):
        COMPRESSIONS["intermediate"](answer(normal(2, *KINDS["maps"])))


@pytest.mark.parametrize("kind", ["tokens", "maps"])
@pytest.mark.parametrize("name", COMPRESSIONS)
def test_compressions_over_lanes_equal_a_loop_and_are_differentiable(name: str, kind: str) -> None:
    lanes = normal(3, 2, *KINDS[kind])

    def kept(f: Tensor) -> Tensor:
        return COMPRESSIONS[name](answer(f, first=f, second=f.square()))

    assert vmap(kept)(lanes).equal(torch.stack([kept(lane) for lane in lanes]))
    assert torch.autograd.gradcheck(kept, lanes[0].requires_grad_())


# Distances

A = torch.tensor([[1.0, 2.0], [0.0, -1.0]], dtype=torch.float64)
B = torch.tensor([[0.0, 4.0], [0.5, -1.0]], dtype=torch.float64)  # a − b = (1, −2), (−0.5, 0)
W = torch.tensor([[1.5, 0.5], [0.5, 1.5]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("l1", 3.5),  # 1 + 2 + 0.5
        ("l2", 5.25),  # 1 + 4 + 0.25
        ("l1_l2", 8.75),
        ("weighted_l1", 2.75),  # 1.5·1 + 0.5·2 + 0.5·0.5
        ("weighted_l2", 3.625),  # 1.5·1 + 0.5·4 + 0.5·0.25
    ],
)
def test_pointwise_distances_by_hand(name: str, total: float) -> None:
    distance = DISTANCES[name]
    assert distance(A, B, W).item() == pytest.approx(total / 4)  # over 2 dimensions and 2 examples
    assert distance(A, B, W, reduction="sum").item() == pytest.approx(total / 2)  # over 2 examples
    assert POINTWISE[name](A, B, W).shape == (2,)
    assert POINTWISE[name](A, B, W).sum().item() == pytest.approx(total / 2)
    assert distance(A, B, torch.ones_like(W)).equal(DISTANCES[name.removeprefix("weighted_")](A, B))
    with pytest.raises(InputError, match="fm_reduction: 'max' is unknown"):
        distance(A, B, W, reduction="max")


def test_mmd_by_hand() -> None:
    # One point each, 0 and 2: σ² = 4, k(0, 2) = Σ_s exp(−1 / 2s) = e^-2 + e^-1 + e^-0.5 + e^-0.25 + e^-0.125
    between = sum(math.exp(-exponent) for exponent in (2, 1, 0.5, 0.25, 0.125))  # 2.771043
    zero, two = torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), 2.0, dtype=torch.float64)
    assert DISTANCES["mmd"](zero, two).item() == pytest.approx(5 + 5 - 2 * between, abs=1e-5)
    # {0, 1} and {3, 7}: pairs 1, 4, 9, 16, 36, 49, whose median is (9 + 16) / 2
    a, b = torch.tensor([[0.0], [1.0]]), torch.tensor([[3.0], [7.0]])
    blocks = [compress.squared_distances(u, v) for u, v in [(a, a), (b, b), (a, b)]]
    assert compress.bandwidth(*blocks).item() == pytest.approx(12.5 + 1e-6)


def test_the_gradient_of_mmd_is_that_of_its_formula_at_a_fixed_bandwidth() -> None:
    a, b = normal(3, 2, seed=1).requires_grad_(), normal(3, 2, seed=2)
    points = torch.cat([a.detach(), b])
    pairs = [(u - v).square().sum() for i, u in enumerate(points) for v in points[:i]]
    width = torch.stack(pairs).quantile(0.5) + 1e-6

    def by_loops(a: Tensor) -> Tensor:
        def k(u: Tensor, v: Tensor) -> Tensor:
            return sum((-(u - v).square().sum() / (2 * s * width)).exp() for s in (0.25, 0.5, 1, 2, 4))

        n = range(3)
        return sum(k(a[i], a[j]) + k(b[i], b[j]) - 2 * k(a[i], b[j]) for i in n for j in n) / 9

    ours, loops = DISTANCES["mmd"](a, b), by_loops(a)
    assert ours.item() == pytest.approx(loops.item(), rel=1e-12)
    torch.testing.assert_close(*(torch.autograd.grad(value, a)[0] for value in (ours, loops)))
    assert torch.autograd.gradcheck(by_loops, a)


@pytest.mark.parametrize("name", sorted(POINTWISE))
def test_pointwise_gradients(name: str) -> None:
    a = normal(3, 4, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda a: DISTANCES[name](a, normal(3, 4), normal(3, 4, seed=2).abs()), a)


@pytest.mark.parametrize("name", sorted(DISTANCES))
def test_what_is_stored_receives_no_gradient_and_an_unmoved_network_a_finite_one(name: str) -> None:
    a, b, w = (normal(4, 3).requires_grad_() for _ in range(3))  # a == b
    distance = DISTANCES[name](a, b, w)
    distance.backward()
    assert (b.grad, w.grad) == (None, None)
    assert distance.item() == pytest.approx(0, abs=1e-12)
    assert a.grad is not None
    torch.testing.assert_close(a.grad, torch.zeros_like(a), atol=1e-12, rtol=0)
    DISTANCES[name](a * 2, b, w).backward()
    assert a.grad.abs().sum() > 1e-3, "a network that moved must feel it"
    assert DISTANCES[name](a[:1] * 2, b[:1], w[:1]).isfinite(), "a replay batch of one"


@pytest.mark.parametrize("name", sorted(DISTANCES))
def test_distances_over_lanes_equal_a_loop(name: str) -> None:
    a, b, w = normal(3, 5, 4, seed=1).requires_grad_(), normal(3, 5, 4, seed=2), normal(3, 5, 4, seed=3).abs()
    lanes = vmap(DISTANCES[name])(a, b, w)
    loop = torch.stack([DISTANCES[name](*lane) for lane in zip(a, b, w, strict=True)])
    torch.testing.assert_close(lanes, loop, rtol=1e-13, atol=0)
    gradients = [torch.autograd.grad(values.sum(), a)[0] for values in (lanes, loop)]
    torch.testing.assert_close(*gradients, rtol=1e-11, atol=1e-14)
    inside = vmap(torch.func.grad(DISTANCES[name]))(a.detach(), b, w)
    torch.testing.assert_close(inside, gradients[1], rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("name", sorted(DISTANCES))
def test_distances_never_read_a_value_back(name: str) -> None:
    # Tensors without memory: whatever asks for a number, or branches on one, raises.
    a, b, w = (torch.empty(5, 4, dtype=torch.bfloat16, device="meta") for _ in range(3))
    value = DISTANCES[name](a, b, w)
    assert (value.shape, value.dtype) == ((), torch.float32), "half precision is widened before it is squared"
    assert compress.importance_weights(a).shape == (4,)


@quick
@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 10**6))
def test_mmd_compares_sets(n: int, k: int, seed: int) -> None:
    mmd, a, b = DISTANCES["mmd"], normal(n, k, seed=seed), normal(n, k, seed=seed + 1)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    value = mmd(a, b).item()
    assert value > 1e-6
    assert mmd(b, a).item() == pytest.approx(value, rel=1e-9)
    assert mmd(a[order], b).item() == pytest.approx(value, rel=1e-9)
    assert mmd(a, a[order]).item() == pytest.approx(0, abs=1e-12)
    assert DISTANCES["l2"](a, b).item() > 0
    assert DISTANCES["l2"](a, a.clone()).item() == 0


def test_importance_weights() -> None:
    gradient = torch.tensor([[1.0, -2.0, 0.0], [-3.0, 0.0, 0.0]])
    # mean |g| = 2, 1, 0 with mean 1; mean g² = 5, 2, 0 with mean 7/3
    assert compress.importance_weights(gradient).tolist() == [2.0, 1.0, 0.0]
    assert compress.importance_weights(gradient, power=2).tolist() == pytest.approx([15 / 7, 6 / 7, 0])
    torch.testing.assert_close(compress.importance_weights(gradient * 1e-6), torch.tensor([2.0, 1.0, 0.0]))
    nothing = torch.zeros(2, 3, requires_grad=True)
    assert compress.importance_weights(nothing).tolist() == [1.0, 1.0, 1.0]
    assert torch.autograd.grad(compress.importance_weights(nothing).sum(), nothing)[0].isfinite().all()
    lanes = torch.stack([gradient, torch.zeros(2, 3)])
    assert vmap(compress.importance_weights)(lanes).tolist() == [[2.0, 1.0, 0.0], [1.0, 1.0, 1.0]]
    assert compress.importance_weights(gradient * math.nan).isnan().all(), "a failure must not pass for ones"


@pytest.mark.parametrize("name", sorted(DISTANCES))
def test_shapes_that_would_broadcast_are_refused(name: str) -> None:
    for a, b in [(A, B[:1]), (A, B[:, :1]), (A, B[0]), (A[0], B[0])]:
        with pytest.raises(InputError, match="stored activation has shape"):
            DISTANCES[name](a, b, W)
    if name in NEEDS_WEIGHT:
        with pytest.raises(InputError, match="the weight has shape"):
            DISTANCES[name](A, B, W[0])
        with pytest.raises(InputError, match="importance_weights"):
            DISTANCES[name](A, B)
    else:
        assert DISTANCES[name](A, B).equal(DISTANCES[name](A, B, W))
