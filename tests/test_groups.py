"""Who shares a lane group: groups as expected, mixed groups equal to single runs, records and bytes their own."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from test_hooks import Distilled, Streaming
from test_results import experiment
from tiny import CPU, cell, furthest, train, weights

from reprise import runner
from reprise.build import Cell, under_one_method
from reprise.fill import Quota
from reprise.groups import Job, group_name, lane_groups, lane_key, make_job
from reprise.method import Method, Needs, neutral_values
from reprise.methods import METHODS
from reprise.methods.car import CAR
from reprise.methods.er import ER
from reprise.progress import Outlook, Report
from reprise.results import TIMES, read_store
from reprise.runner import run_experiments
from reprise.streams.stream import Stream
from reprise.train import Trainer


def job(method: str | Method = "car", seed: int = 0, **fields: Any) -> Job:
    one = cell(method, seed, **fields)
    return make_job(one.experiment, seed, one.stream)


def sizes(*jobs: Job, largest: int = 32) -> list[int]:
    return [len(group) for group in lane_groups(jobs, largest)]


def share(one: Job, other: Job) -> bool:
    return len(sizes(one, other)) == 1


# ---- neutral values


class Doubled(CAR):
    neutral: ClassVar[dict[str, float]] = {"lam_ffm": 0.0}


class Unsaid(CAR):
    """It says nothing of itself, so it is not taken for its parent."""


def test_neutral_values_are_followed_up_the_classes() -> None:
    assert neutral_values(CAR, CAR) == {}
    assert neutral_values(CAR, ER) == {"lam_fm": 0.0}
    assert neutral_values(Doubled, ER) == {"lam_ffm": 0.0, "lam_fm": 0.0}
    assert neutral_values(Unsaid, CAR) is None
    assert neutral_values(Unsaid, ER) is None
    assert neutral_values(ER, CAR) is None
    assert neutral_values(CAR, Method) is None


@pytest.mark.parametrize("kind", METHODS.values())
def test_neutral_values_are_of_float_fields_the_parent_lacks(kind: type[Method]) -> None:
    theirs = {f.name for f in fields(kind.__mro__[1])} if kind.__mro__[1] is not object else set()
    for name in vars(kind).get("neutral", {}):
        assert isinstance(getattr(kind(), name), float)
        assert name not in theirs


# ---- groups


def test_lane_groups_share_shapes_only() -> None:
    together = [job(), job(seed=1), job(lr=0.1), job(lam_fm=7.0), job(m=30)]
    apart = [job(batch=5), job(distance="l1"), job("sgd"), job(clip=1.0), job(m=0)]
    assert sizes(*together, *apart) == [5, 1, 1, 1, 1, 1]
    assert sizes(*together, largest=2) == [2, 2, 1]


def test_a_special_case_joins_the_general_method() -> None:
    assert share(job("er"), job("car"))
    assert share(job("car"), job("er", 1, lam=0.5, lr=0.1, m=30))
    assert not share(job("er", old_heads="hold"), job("car"))
    assert share(job("er", old_heads="hold"), job("car", old_heads="hold"))
    assert not share(job("er", bn="separate"), job("car"))
    assert not share(job("er", m=0), job("car"))
    for lonely in ("sgd", "multitask"):
        assert not share(job(lonely), job("er"))
        assert not share(job(lonely), job("car"))


def test_the_first_general_group_takes_the_special_case_and_order_is_kept() -> None:
    jobs = [
        job("sgd"),
        job("er"),
        job("car", distance="l1"),
        job("er", 1),
        job("car"),
        job("car", 1, distance="l1"),
    ]
    groups = [*lane_groups(jobs, 32)]
    assert [[jobs.index(one) for one in group] for group in groups] == [[0], [1, 2, 3, 5], [4]]
    assert [group_name(group) for group in groups] == ["sgd seed 0", "4 lanes · car, er", "car seed 0"]


def test_a_chain_of_special_cases_is_one_group() -> None:
    @dataclass(frozen=True)
    class Nearer(CAR):
        neutral: ClassVar[dict[str, float]] = {"pull": 0.0}
        pull: float = 1.0

    jobs = [job("er"), job(Nearer()), job("car")]
    assert sizes(*jobs) == [3]
    cells = under_one_method([Cell(one.experiment, 0, cell("er").stream) for one in jobs])
    assert [c.experiment.method for c in cells] == [
        replace(jobs[1].experiment.method, pull=0.0, lam_fm=0.0),
        jobs[1].experiment.method,
        replace(jobs[1].experiment.method, pull=0.0),
    ]


def test_what_a_method_needs_drawn_is_part_of_the_key() -> None:
    @dataclass(frozen=True)
    class Drawing(Distilled):
        rows: ClassVar[int] = 2

        def needs(self, stream: Stream) -> Needs:
            return Needs(draws={"second": type(self).rows})

    two = job(Drawing())
    assert two.needs.draws == {"second": 2}
    Drawing.rows = 4
    assert lane_key(two) != lane_key(job(Drawing()))
    assert share(job(Streaming(), m=10), job(Streaming(), 1, m=12))
    plain = job("er")
    for needs in (Needs(current_task=True), Needs(both=True), Needs(scope="union"), Needs(replay=3)):
        assert not share(plain, replace(plain, needs=needs))
        assert not share(plain, replace(job("car"), needs=needs))


def test_the_scopes_decide_which_m_share() -> None:
    """15 is one image a class, 5 a task; 3 are replayed."""
    for scope, together in (("union", True), ("one_task", True), ("each_task", True), ("each_class", False)):
        assert share(job("er", scope=scope, m=15), job("er", scope=scope, m=30)) is together
    assert share(job("er", scope="each_class", m=45), job("er", scope="each_class", m=60))
    reservoir = {"fill": "reservoir"}
    assert share(job("er", m=4, **reservoir), job("er", 1, m=7, **reservoir))
    assert not share(job("er", m=2, **reservoir), job("er", m=4, **reservoir))
    # How many a reservoir holds of a task differs from seed to seed.
    each = reservoir | {"scope": "each_task", "m": 10}
    assert share(job("er", **each), job("er", lam=0.5, **each))
    assert not share(job("er", **each), job("er", 1, **each))


def test_shares_that_shrink_are_shared_by_equal_m() -> None:
    quota = Quota("uniform_class", 15, 5, 1, 15)
    one = replace(job("er"), needs=Needs(share="seen"), quota=quota)
    assert share(one, replace(one, seed=1))
    assert not share(one, replace(job("er", m=30), needs=Needs(share="seen"), quota=quota))


@pytest.mark.parametrize(
    ("fill", "scope"),
    [
        (fill, scope)
        for fill in ("uniform_class", "uniform_task", "reservoir")
        for scope in ("union", "one_task", "each_task", "each_class")
        if (fill, scope) != ("reservoir", "one_task")  # refused, in single runs too
    ],
)
def test_groups_that_are_formed_can_be_trained(fill: str, scope: str) -> None:
    """Lanes whose replayed batches differ in shape are refused by the feed: the key must have split them."""
    points = [(seed, m) for seed in (0, 1) for m in (6, 15, 30) if m % 15 == 0 or fill != "uniform_class"]
    cells = [cell("er", seed, m=m, fill=fill, scope=scope, steps=2) for seed, m in points]
    jobs = [make_job(one.experiment, one.seed, one.stream) for one in cells]
    for group in lane_groups(jobs, 32):
        train(*(cells[jobs.index(one)] for one in group))


def test_jobs_of_one_method_have_different_names() -> None:
    jobs = [Job(experiment(lr=lr), 0, number) for number, lr in enumerate((0.1, 0.2), 1)]
    assert [one.name for one in jobs] == ["er seed 0", "er #2 seed 0"]


@pytest.mark.parametrize(
    ("method", "fields", "steps"),
    [("er", {}, 3 * 4), ("er", {"steps": None, "epochs": 2}, 3 * 2 * 15), ("multitask", {}, 12)],
)
def test_a_job_knows_its_steps(method: str, fields: dict[str, Any], steps: int) -> None:
    reports: list[tuple[int, int]] = []
    Trainer([cell(method, **fields)], CPU).run(lambda done, total, what: reports.append((done, total)))
    assert reports[-1] == (steps, steps)
    assert job(method, **fields).steps == steps


# ---- mixed groups


MIXED: list[dict[str, Any]] = [
    {},
    {"bn": "separate", "clip": 0.5},
    {"distance": "weighted_l1"},
    {"distance": "weighted_l2", "compress": "intermediate", "scenario": "class"},
    {"p_replay": 0.5, "scope": "one_task", "old_heads": "hold"},
    {"distance": "mmd", "fill": "reservoir", "m": 10},
]
CAR_ALONE = ("distance", "compress")


@pytest.mark.parametrize("common", MIXED, ids=str)
def test_a_mixed_group_is_its_single_runs(common: dict[str, Any]) -> None:
    plain = {name: value for name, value in common.items() if name not in CAR_ALONE}
    more = {} if "m" in common else {"m": 45}
    cells = [
        cell("er", 0, **plain | more),
        cell("car", 0, **common),
        cell("er", 1, **plain, lam=0.5),
        cell("car", 1, **common, lam_fm=1.0),
    ]
    jobs = [make_job(one.experiment, one.seed, one.stream) for one in cells]
    assert sizes(*jobs) == [4]
    together = train(*cells)
    for lane, one in enumerate(cells):
        alone = train(one)
        assert furthest(weights(together, lane), weights(alone)) < 1e-12
        ours, theirs = together.outcomes[lane], alone.outcomes[0]
        assert (ours.accuracy, ours.initial, ours.next) == (theirs.accuracy, theirs.initial, theirs.next)
        assert ours.bytes == theirs.bytes
    kinds = [set(outcome.bytes) for outcome in together.outcomes]
    assert all("activation" in kinds[lane] for lane in (1, 3))
    assert not any({"activation", "importance"} & kinds[lane] for lane in (0, 2))


def test_lanes_that_cannot_be_one_group_are_no_group() -> None:
    for one in ("sgd", "er"):
        with pytest.raises(ValueError, match="cannot be lanes of one group"):
            train(cell(one, **({"old_heads": "hold"} if one == "er" else {})), cell("car"))


def matched(found: Any, expected: Any) -> None:
    """Equal, numbers to the last few bits: lanes add up in another order."""
    assert type(found) is type(expected)
    if isinstance(found, dict):
        assert found.keys() == expected.keys()
        for key in found:
            matched(found[key], expected[key])
    elif isinstance(found, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            matched(one, other)
    elif isinstance(found, float):
        assert found == pytest.approx(expected, abs=1e-10, nan_ok=True)
    else:
        assert found == expected


POINTS = [
    experiment("er", precision="float64"),
    experiment("car", precision="float64", distance="weighted_l1"),
    experiment("er", precision="float64", lam=0.5, m=100),
    experiment("car", precision="float64", distance="weighted_l1", lam_fm=1.0),
    experiment("sgd", precision="float64"),
]


def test_records_of_a_mixed_group_are_those_of_separate_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reprise.workers.cores", lambda: 1)
    said: list[Any] = []
    together = [*run_experiments(POINTS, [0, 1], store=tmp_path / "lanes", lanes=8, watch=said.append)]
    apart = [*run_experiments(POINTS, [0, 1], store=tmp_path / "runs")]
    assert said[0] == Outlook(10, 10 * 6)
    over = [report for report in said if isinstance(report, Report) and report.over]
    assert [(r.name, r.runs, r.what) for r in over] == [
        ("8 lanes · car, er", 8, "done"),
        ("2 lanes · sgd", 2, "done"),
    ]
    assert sum(report.weight for report in over) == said[0].steps
    names = [
        sorted(str(p.relative_to(tmp_path / s)) for p in (tmp_path / s).rglob("*")) for s in ("lanes", "runs")
    ]
    assert names[0] == names[1]
    key = lambda record: (str(record["configuration"]), record["seed"])  # noqa: E731
    for one, other in zip(sorted(together, key=key), sorted(apart, key=key), strict=True):
        matched(*({k: v for k, v in record.items() if k not in TIMES} for record in (one, other)))
    assert len([*read_store(tmp_path / "lanes")]) == 10


def test_a_failure_leaves_the_records_of_finished_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = runner.train_group

    def train_or_fail(group: list[Job], *rest: Any, **more: Any) -> Any:
        if group[0].experiment.method_name == "sgd":
            raise OSError("the power went")
        return trained(group, *rest, **more)

    monkeypatch.setattr(runner, "train_group", train_or_fail)
    with pytest.raises(OSError, match="the power went"):
        [*run_experiments(POINTS, [0, 1], store=tmp_path, lanes=8)]
    assert sorted(record["method"] for record in read_store(tmp_path)) == ["car"] * 4 + ["er"] * 4
