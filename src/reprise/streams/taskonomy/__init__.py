"""Taskonomy: the official folders read, checked and packed; 11 tasks over the same images."""

from reprise.streams.taskonomy.buildings import SPLITS, find_split
from reprise.streams.taskonomy.check import check_taskonomy
from reprise.streams.taskonomy.domains import DOMAINS, SEQUENCES, TASKS, find_tasks
from reprise.streams.taskonomy.packed import Packed, load_pack
from reprise.streams.taskonomy.packing import Summary, pack
from reprise.streams.taskonomy.targets import depth_mask, flip, target

__all__ = [
    "DOMAINS",
    "SEQUENCES",
    "SPLITS",
    "TASKS",
    "Packed",
    "Summary",
    "check_taskonomy",
    "depth_mask",
    "find_split",
    "find_tasks",
    "flip",
    "load_pack",
    "pack",
    "target",
]
