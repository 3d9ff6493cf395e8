"""The methods: one file each, one table from name to class."""

from reprise.method import Method
from reprise.methods.car import CAR
from reprise.methods.er import ER
from reprise.methods.sgd import SGD, MultiTask

METHODS: dict[str, type[Method]] = {
    "sgd": SGD,
    "multitask": MultiTask,
    "er": ER,
    "car": CAR,
}


def name_of(method: Method) -> str:
    return next(name for name, kind in METHODS.items() if type(method) is kind)
