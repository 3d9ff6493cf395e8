"""Named randomness: a generator is asked for by name, never passed along.

`rng(seed, purpose, task)` hashes its name to a generator, and everything random within a task is drawn as a
table when the task starts. So the same seed gives every method the same data order, a checkpoint stores a
cursor instead of generators, and lanes, ranks and data workers cannot change what is drawn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

PURPOSES = (
    "classes",
    "init",
    "order",
    "coin",
    "replay",
    "method",
    "select",
    "augment",
    "end",
    "data",
    "rooms",
)
"""What randomness is used for: class grouping, weights, data order, replay coin, replayed rows, a method's own
draws, what to remember, augmentation, work at the end of a task, procedural data, and procedural rooms."""


def named_seed(seed: int, purpose: str, task: int = 0) -> int:
    """A 63-bit number that depends on nothing but the name."""
    if purpose.split(":")[0] not in PURPOSES:
        raise ValueError(f"unknown purpose {purpose!r}; the purposes are {', '.join(PURPOSES)}")
    digest = hashlib.blake2b(f"{seed}/{purpose}/{task}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def rng(seed: int, purpose: str, task: int = 0) -> np.random.Generator:
    """The NumPy generator of that name. A suffix (`replay:second`) names a further, independent one."""
    return np.random.Generator(np.random.Philox(named_seed(seed, purpose, task)))


@contextmanager
def torch_seeded(seed: int, purpose: str, task: int = 0) -> Iterator[None]:
    """Run module constructors under the generator of that name; torch's own generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        # `torch.manual_seed` would also seed the GPUs' generators, which the fork does not restore.
        torch.default_generator.manual_seed(named_seed(seed, purpose, task))
        yield
