"""Several ranks on one list of runs: the first decides, writes and tells the others what to train next."""

from __future__ import annotations

from collections.abc import Callable

import torch

from reprise import stopping
from reprise.checkpoint import Checkpoint, capture, restore
from reprise.config import Experiment
from reprise.errors import Diverged
from reprise.ranks import Ranks
from reprise.stopping import Stopped
from reprise.train import Keeper, Line, Trainer


def announce(ranks: Ranks, experiment: Experiment, seed: int) -> None:
    """Tell the others which run comes next."""
    ranks.tell({"experiment": experiment.to_dict(), "seed": seed})


def dismiss(ranks: Ranks) -> None:
    """Tell the others that there is nothing left to do."""
    ranks.tell(None)


def follow(ranks: Ranks, make: Callable[[Experiment, int], Trainer]) -> None:
    """Train what the first rank announces, until it dismisses; nothing is written here."""
    while (order := ranks.hear()) is not None:
        trainer = make(Experiment.from_dict(order["experiment"]), order["seed"])
        take_up(ranks, trainer)
        with stopping.heeding():
            try:
                trainer.run(keeper=Follower(ranks))
            except Diverged:
                continue


# ---- where a run begins


def hand_on(ranks: Ranks, trainer: Trainer, begun: bool) -> None:
    """Show the others where a run stands; one that has not begun, with random weights, is the same everywhere."""
    ranks.tell(begun)
    if begun:
        point = capture(trainer, torch.device("cpu"))
        ranks.tell(point.values)
        ranks.send(point.tensors)


def take_up(ranks: Ranks, trainer: Trainer) -> None:
    if ranks.hear():
        values = ranks.hear()
        restore(trainer, Checkpoint(ranks.receive(), values))


# ---- the wish to stop: heard by one rank, followed by all, at the same step


class Wish:
    """A signal that any rank received. All ranks `look` at the same places, and only there it may change."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.number: int | None = None

    def look(self) -> None:
        self.number = self.ranks.greatest(stopping.asked() or 0) or None

    def __call__(self) -> int | None:
        return self.number


class Leader:
    """The first rank's keeper, which saves, with every rank's wish to stop."""

    def __init__(self, keeper: Keeper, wish: Wish) -> None:
        self.keeper, self.wish = keeper, wish

    def due(self) -> bool:
        self.wish.look()
        return self.keeper.due()

    def save(self, trainer: Trainer) -> None:
        self.keeper.save(trainer)

    def end_task(self, trainer: Trainer) -> None:
        self.wish.look()
        self.keeper.end_task(trainer)

    def write(self, lane: int, line: Line) -> None:
        self.keeper.write(lane, line)


class Follower:
    """The keeper of the other ranks, which keep nothing: they stop where the first one stops."""

    def __init__(self, ranks: Ranks) -> None:
        self.wish = Wish(ranks)

    def due(self) -> bool:
        self.wish.look()
        return self.wish() is not None

    def save(self, trainer: Trainer) -> None:
        self._stop_if_asked()

    def end_task(self, trainer: Trainer) -> None:
        self.wish.look()
        if trainer.cursor.phase < len(trainer.phases):
            self._stop_if_asked()

    def write(self, lane: int, line: Line) -> None:
        """The first rank writes the log."""

    def _stop_if_asked(self) -> None:
        if (number := self.wish()) is not None:
            raise Stopped(number)
