"""The paper as code: a function for each table and figure, and the printed numbers beside it."""

from reprise.experiments.places import METRICS, Metric, Place, Printed, Sheet, printed_seeds
from reprise.experiments.scales import SCALES, Scale, find_scale, scaled_m
from reprise.experiments.tables import SHEETS

__all__ = [
    "METRICS",
    "SCALES",
    "SHEETS",
    "Metric",
    "Place",
    "Printed",
    "Scale",
    "Sheet",
    "find_scale",
    "printed_seeds",
    "scaled_m",
]
