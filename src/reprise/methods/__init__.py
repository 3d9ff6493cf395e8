"""The methods: one file each, one table from name to class."""

from reprise.method import Method
from reprise.methods.agem import AGEM
from reprise.methods.car import CAR
from reprise.methods.derpp import DERpp
from reprise.methods.er import ER
from reprise.methods.ewc import EWC
from reprise.methods.hal import HAL
from reprise.methods.icarl import ICaRL
from reprise.methods.lwf import LwF
from reprise.methods.mer import MER
from reprise.methods.sgd import SGD, MultiTask
from reprise.methods.side_tuning import SideTuning

METHODS: dict[str, type[Method]] = {
    "sgd": SGD,
    "multitask": MultiTask,
    "ewc": EWC,
    "agem": AGEM,
    "er": ER,
    "car": CAR,
    "icarl": ICaRL,
    "mer": MER,
    "hal": HAL,
    "side_tuning": SideTuning,
    "derpp": DERpp,
    "lwf": LwF,
}


def name_of(method: Method) -> str:
    return next(name for name, kind in METHODS.items() if type(method) is kind)
