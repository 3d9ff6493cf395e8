"""Named randomness: what a generator draws depends on its name and on nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reprise.randomness import PURPOSES, named_seed, rng, torch_seeded

Name = tuple[int, str, int]
quick = settings(max_examples=80, deadline=None, database=None)
purposes = st.sampled_from([*PURPOSES, *(f"{purpose}:second" for purpose in PURPOSES)])
names = st.tuples(st.integers(0, 30), purposes, st.integers(0, 30))


def drawn(name: Name) -> list[float]:
    return rng(*name).random(8).tolist()


@quick
@given(names, names)
def test_two_generators_draw_the_same_exactly_if_they_have_one_name(one: Name, other: Name) -> None:
    first = drawn(one)
    assert (drawn(other) == first) == (other == one)
    assert drawn(one) == first, "a name is no generator that moves on"


@pytest.mark.parametrize("other", [(4, "order", 2), (3, "replay", 2), (3, "order", 5), (3, "order:b", 2)])
def test_every_part_of_the_name_matters(other: Name) -> None:
    assert drawn(other) != drawn((3, "order", 2))


def test_no_two_names_of_a_study_share_a_seed() -> None:
    # Sums and differences of seed and task would collide here; the task is 0 unless given.
    study = [(seed, purpose, task) for seed in range(10) for purpose in PURPOSES for task in range(20)]
    seeds = {named_seed(*name) for name in study}
    assert len(seeds) == len(study)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62, "all 63 bits are in use"
    assert named_seed(3, "order") == named_seed(3, "order", 0)


def test_the_numbers_behind_published_results_have_not_moved() -> None:
    assert named_seed(0, "order", 0) == 1829853113658518448, "if this was on purpose, raise RESULTS_VERSION"
    assert rng(0, "order", 0).permutation(8).tolist() == [7, 5, 1, 6, 4, 2, 0, 3]


def test_torch_draws_by_name_too() -> None:
    def weights(name: Name) -> torch.Tensor:
        with torch_seeded(*name):
            return torch.nn.Linear(3, 2).weight.detach()

    first = weights((3, "init", 1))
    torch.rand(5)  # torch's own generator has moved on since
    assert torch.equal(weights((3, "init", 1)), first)
    for other in [(4, "init", 1), (3, "init", 2), (3, "method", 1)]:
        assert not torch.equal(weights(other), first)


def test_torchs_own_generator_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    with torch_seeded(3, "init"):
        torch.rand(5)
    assert torch.equal(torch.random.get_rng_state(), before)
    with pytest.raises(RuntimeError), torch_seeded(3, "init"):
        torch.nn.Linear(-1, 2)  # a constructor that fails
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("purpose", ["oder", "orders", "Order", "", ":order", "second:order"])
def test_an_unknown_purpose_is_refused_and_the_known_ones_named(purpose: str) -> None:
    sentence = f"unknown purpose {purpose!r}; the purposes are classes, init, order"
    with pytest.raises(ValueError, match=sentence):
        rng(0, purpose)
    state = torch.random.get_rng_state()
    with pytest.raises(ValueError, match=sentence), torch_seeded(0, purpose):
        pass
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_suffix_names_a_further_generator_that_is_uncorrelated() -> None:
    first, second = rng(0, "replay").normal(size=4000), rng(0, "replay:second").normal(size=4000)
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(4000)
