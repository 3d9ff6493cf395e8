"""What CAR keeps of an activation, c(f), and how far the network has moved from it, l_fm(a, b).

    L = L_task + λ L_replay + λ_fm l_fm(c(g(x)), z),   z = c(g(x)) as stored when x's task ended

Everything here is a pure function of one lane's tensors: it maps over lanes with `torch.func.vmap`, and
nothing reads a value back from the device. Gradients flow into a, the network's side, never into b.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from reprise.errors import InputError
from reprise.types import Output

Shape = Sequence[int]
"""The shape of one example, without the batch axis."""

Compression = Callable[[Output], Tensor]
"""A model's answer -> [n, k]."""


# Compressions of a tensor: vectors [n, d], token features [n, tokens, d] or maps [n, c, h, w]


def flat(f: Tensor) -> Tensor:
    """Everything, [n, ...] -> [n, k]."""
    return f.flatten(1)


def spatial(f: Tensor) -> Tensor:
    """The mean over positions, [n, channels]. A vector has one position and stays as it is."""
    return _by_position(f).mean(2)


def channel(f: Tensor) -> Tensor:
    """The mean over channels, [n, positions]: where the activation is, without what it is."""
    _require_positions(f.shape[1:])
    return _by_position(f).mean(1)


def spatial_channel(f: Tensor) -> Tensor:
    """Both means side by side, [n, channels + positions]: the paper's choice for maps."""
    return torch.cat([spatial(f), channel(f)], dim=1)


def intermediate(out: Output) -> Tensor:
    """`spatial_channel` of each tapped layer in the order of the taps, side by side."""
    if not out.taps:
        raise InputError(
            "compress: 'intermediate' needs a model that taps its layers, and this one taps none; "
            "use 'spatial_channel' for maps and tokens, or 'none' for vectors"
        )
    return torch.cat([spatial_channel(tap) for tap in out.taps.values()], dim=1)


COMPRESSIONS: dict[str, Compression] = {
    "none": lambda out: flat(out.features),
    "spatial": lambda out: spatial(out.features),
    "channel": lambda out: channel(out.features),
    "spatial_channel": lambda out: spatial_channel(out.features),
    "intermediate": intermediate,
}


def resolve_compression(name: str, features_shape: Shape) -> str:
    """The table's name for what was asked: `auto` is `none` for vectors [d], else `spatial_channel`.

    What cannot work on features of this shape is refused here, before a task has been trained for nothing.
    """
    if name == "auto":
        return "none" if len(features_shape) == 1 else "spatial_channel"
    if name not in COMPRESSIONS:
        raise InputError(f"compress: '{name}' is unknown; use one of auto, {', '.join(COMPRESSIONS)}")
    if name in ("channel", "spatial_channel"):
        _require_positions(features_shape)
    return name


def compressed_size(name: str, feature_shape: Shape, tap_shapes: Mapping[str, Shape] | None = None) -> int:
    """How many numbers k are kept of one example. The taps are named and ordered as in `Output.taps`.

    The compression itself is asked, on a batch of no examples, so the two cannot disagree.
    """
    features = torch.empty(0, *feature_shape)
    taps = {tap: torch.empty(0, *shape) for tap, shape in (tap_shapes or {}).items()}
    compress = COMPRESSIONS[resolve_compression(name, feature_shape)]
    return compress(Output(features, prediction=features, taps=taps)).shape[1]


def _by_position(f: Tensor) -> Tensor:
    """Any features as [n, channels, positions]."""
    if f.ndim == 3:  # tokens are the one kind whose channels come last
        return f.transpose(1, 2)
    return f.unsqueeze(2) if f.ndim == 2 else f.flatten(2)


def _require_positions(shape: Shape) -> None:
    if len(shape) == 1:
        raise InputError(f"compress: vectors [{shape[0]}] have no positions to pool channels at; use 'none'")


# Distances between activations a (of the network) and b (stored), both [n, k]


class Distance(Protocol):
    """l_fm(a, b): a scalar, the mean over the batch, or in `POINTWISE` one value per example, [n].

    weight     [n, k], read by the weighted distances only (`NEEDS_WEIGHT`)
    reduction  over the k dimensions, `mean` or `sum`
    """

    def __call__(
        self, a: Tensor, b: Tensor, weight: Tensor | None = None, reduction: str = "mean"
    ) -> Tensor: ...


def _pointwise(term: Callable[[Tensor], Tensor], weighted: bool = False) -> Distance:
    """(1/k) Σ_k w_k term(a_k − b_k) for each example; all w_k are 1 where the distance is not weighted."""

    def rows(a: Tensor, b: Tensor, weight: Tensor | None = None, reduction: str = "mean") -> Tensor:
        _same_shape("stored activation", a, b)
        terms = term(_wide(a) - _wide(b.detach()))
        if weighted:
            terms = _given(a, weight) * terms
        return _over_dimensions(terms, reduction)

    return rows


def _averaged(rows: Distance) -> Distance:
    def over_batch(a: Tensor, b: Tensor, weight: Tensor | None = None, reduction: str = "mean") -> Tensor:
        return rows(a, b, weight, reduction).mean()

    return over_batch


def mmd(a: Tensor, b: Tensor, weight: Tensor | None = None, reduction: str = "mean") -> Tensor:
    """MMD² = mean k(a, a') + mean k(b, b') − 2 mean k(a, b), a scalar: do the two *sets* look alike?

    The biased V-statistic, so it is 0 for equal sets and never negative. The kernel turns whole vectors into
    one number, which leaves `weight` and `reduction` nothing to act on.
    """
    _same_shape("stored activation", a, b)
    a, b = _wide(a), _wide(b.detach())
    within_a, within_b, between = squared_distances(a, a), squared_distances(b, b), squared_distances(a, b)
    width = bandwidth(within_a, within_b, between)
    return kernel(within_a, width).mean() + kernel(within_b, width).mean() - 2 * kernel(between, width).mean()


# The paper writes l2 as ‖a−b‖², a sum, and calls it MSE, a mean. With the mean one λ_fm fits any size.
POINTWISE: dict[str, Distance] = {
    "l1": _pointwise(torch.abs),
    "l2": _pointwise(torch.square),
    "l1_l2": _pointwise(lambda difference: difference.abs() + difference.square()),
    "weighted_l1": _pointwise(torch.abs, weighted=True),
    "weighted_l2": _pointwise(torch.square, weighted=True),
}
"""One value per example, [n]: with several ranks the mean over them needs a denominator shared by all."""

DISTANCES: dict[str, Distance] = {name: _averaged(rows) for name, rows in POINTWISE.items()} | {"mmd": mmd}

NEEDS_WEIGHT = frozenset({"weighted_l1", "weighted_l2"})


def importance_weights(gradient: Tensor, power: float = 1) -> Tensor:
    """Per-dimension weights [k] from per-example gradients [n, k] of the loss with respect to the activation.

    w_k = mean_n |g_nk|^power, divided by its mean over k: with a mean weight of 1, λ_fm keeps its meaning.
    Power 2 is the diagonal Fisher form. Where no dimension has any influence, all count alike.
    """
    influence = _wide(gradient).abs().pow(power).mean(0)
    mean = influence.mean()
    # Dividing by a guarded mean, not choosing afterwards: the branch not taken would still divide by 0.
    nothing = mean == 0
    return torch.where(nothing, torch.ones_like(influence), influence / torch.where(nothing, 1.0, mean))


# The kernel of the MMD

SCALES = (0.25, 0.5, 1.0, 2.0, 4.0)


def squared_distances(u: Tensor, v: Tensor) -> Tensor:
    """‖u_i − v_j‖², [n, k] and [m, k] -> [n, m].

    By differences: ‖u‖² + ‖v‖² − 2uv is smaller but cancels, and as a matrix product it is rounded to TF32 or
    bf16 wherever those are switched on. Squared, never the root, whose gradient at 0 is not finite.
    """
    return (u.unsqueeze(1) - v.unsqueeze(0)).square().sum(2)


def bandwidth(within_a: Tensor, within_b: Tensor, between: Tensor) -> Tensor:
    """σ²: the median of ‖u − v‖² over all pairs of different points of the pooled batch, + 1e-6; a constant.

    Takes the three [n, n] blocks of the pooled matrix. By sorting, which maps over lanes. A point's distance
    to itself is exactly 0, so the 2n smallest entries are the diagonal (or equal to it) and are passed over.
    """
    blocks = torch.cat([block.detach().flatten() for block in (within_a, within_b, between, between)])
    pairs = blocks.sort().values[2 * len(within_a) :]
    middle = (
        len(pairs) // 2
    )  # each pair is there twice, so their number is even and the median lies between two
    return (pairs[middle - 1] + pairs[middle]) / 2 + 1e-6


def kernel(squared: Tensor, width: Tensor) -> Tensor:
    """Σ_s exp(−‖u−v‖² / (2 s σ²)) for s in `SCALES`, elementwise."""
    # The scales stay Python numbers: a tensor of them would be copied to the device in every step.
    return torch.stack([torch.exp(squared / (-2 * scale * width)) for scale in SCALES]).sum(0)


# What the distances share


def _given(a: Tensor, weight: Tensor | None) -> Tensor:
    if weight is None:
        raise InputError(
            "distance: a weighted one needs importance_weights, and none came; or use 'l1', 'l2'"
        )
    _same_shape("weight", a, weight)
    return _wide(weight.detach())


def _same_shape(name: str, a: Tensor, other: Tensor) -> None:
    """Refuses what would broadcast into a plausible number."""
    if a.ndim != 2 or a.shape != other.shape:
        raise InputError(
            f"distance: the {name} has shape {list(other.shape)} and the activation {list(a.shape)}; "
            "both must be [n, k], from the same compression"
        )


def _wide(values: Tensor) -> Tensor:
    """At least single precision: sums of half-precision squares lose what is to be matched."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _over_dimensions(values: Tensor, reduction: str) -> Tensor:
    """[n, k] -> [n]."""
    if reduction == "mean":
        return values.mean(1)
    if reduction == "sum":
        return values.sum(1)
    raise InputError(f"fm_reduction: '{reduction}' is unknown; use 'mean' or 'sum'")
