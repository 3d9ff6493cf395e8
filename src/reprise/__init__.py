"""Reprise: continual learning with memory replay."""

from importlib.metadata import PackageNotFoundError, version

from reprise.errors import Diverged, InputError
from reprise.learner import Learner
from reprise.method import Method, Needs
from reprise.methods import CAR, ER, METHODS, SGD, MultiTask
from reprise.own_folder import ImageFolder
from reprise.own_tasks import OwnTask as Task
from reprise.types import Batch, Output

try:
    __version__ = version("reprise-cl")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0.1.0"

__all__ = [
    "CAR",
    "ER",
    "METHODS",
    "SGD",
    "Batch",
    "Diverged",
    "ImageFolder",
    "InputError",
    "Learner",
    "Method",
    "MultiTask",
    "Needs",
    "Output",
    "Task",
]
