"""Which buildings are trained on, validated and tested on: the paper's, the official splits, points, files."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from reprise.errors import InputError
from reprise.streams.scenes import divide_buildings
from reprise.streams.taskonomy.buildings import PAPER_TEST, PAPER_TRAIN, SPLITS, find_split, named_buildings

PAPER = (*PAPER_TRAIN, *PAPER_TEST)
OFFICIAL = ("tiny", "medium", "full", "fullplus")


def sizes(name: str) -> tuple[int, int, int]:
    split = SPLITS[name]
    return len(split.train), len(split.validation), len(split.test)


def test_the_papers_lists() -> None:
    assert (len(PAPER_TRAIN), len(PAPER_TEST), len(set(PAPER))) == (47, 6, 53)
    assert (PAPER_TRAIN[0], PAPER_TRAIN[-1], PAPER_TEST[0]) == ("cutlerville", "archer", "moberly")
    assert sizes("paper") == (43, 4, 6)
    assert SPLITS["paper"].train + SPLITS["paper"].validation == PAPER_TRAIN


def test_each_official_split_holds_the_one_before_it() -> None:
    assert [sizes(name) for name in OFFICIAL] == [(25, 5, 5), (99, 20, 19), (346, 67, 69), (383, 75, 79)]
    for smaller, larger in pairwise(OFFICIAL):
        for part in ("train", "validation", "test"):
            assert set(getattr(SPLITS[smaller], part)) < set(getattr(SPLITS[larger], part))


@pytest.mark.parametrize("name", SPLITS)
def test_no_building_is_in_two_parts(name: str) -> None:
    assert len(set(SPLITS[name].all)) == len(SPLITS[name].all)


def test_the_papers_buildings_lie_across_the_official_parts() -> None:
    """Why the two must not be mixed. 36 / 3 / 8 of its training buildings are to train, validate and test on."""
    full = SPLITS["fullplus"]
    parts = (full.train, full.validation, full.test)
    assert [len({*PAPER_TRAIN} & {*part}) for part in parts] == [36, 3, 8]
    assert [len({*PAPER_TEST} & {*part}) for part in parts] == [5, 1, 0]


def test_the_sample_building_is_a_test_building_of_the_larger_splits() -> None:
    assert ["cauthron" in SPLITS[name].test for name in OFFICIAL] == [False, True, True, True]


@pytest.mark.parametrize("name", SPLITS)
def test_a_split_by_name_uses_its_buildings_and_no_others(name: str) -> None:
    how, parts = divide_buildings(name, [*SPLITS[name].all, "elsewhere"])
    assert how == name
    assert tuple(map(len, (parts["train"], parts["validation"], parts["test"]))) == sizes(name)
    assert "elsewhere" not in {building for names in parts.values() for building in names}


def test_buildings_of_a_split_that_are_not_there_are_counted_and_named() -> None:
    with pytest.raises(
        InputError, match="buildings: 1 of the 53 buildings of paper are not there [(]cisne[)]"
    ):
        find_split("paper", {*PAPER} - {"cisne"})
    with pytest.raises(
        InputError, match="34 of the 35 buildings of tiny are not there [(]allensville, .*points"
    ):
        divide_buildings("tiny", ["hanson"])
    with pytest.raises(
        InputError, match="'half' is no split; choose one of paper, tiny, medium, full, fullplus"
    ):
        find_split("half", [])


def test_auto_is_the_paper_then_the_largest_whole_official_split_then_points() -> None:
    assert divide_buildings("auto", [*SPLITS["fullplus"].all])[0] == "paper"
    assert divide_buildings("auto", {*SPLITS["fullplus"].all} - {"cisne"})[0] == "medium"
    assert divide_buildings("auto", [*SPLITS["tiny"].all, "cauthron"])[0] == "tiny"
    assert divide_buildings("auto", ["cauthron"]) == ("points", {})


def test_a_file_like_the_official_ones(tmp_path: Path) -> None:
    file = tmp_path / "train_val_test_own.csv"
    file.write_text("id,train,val,test\na,1,0,0\nb,0,1,0\nc,0,0,1\nd,1,0,0\n")
    how, parts = divide_buildings(str(file), "abcd")
    assert (how, parts) == (str(file), {"train": ("a", "d"), "validation": ("b",), "test": ("c",)})
    with pytest.raises(InputError, match="not there: d"):
        divide_buildings(str(file), "abc")
    with pytest.raises(
        InputError, match="'half' is no division; use auto, points, paper, tiny, .* or a file"
    ):
        divide_buildings("half", "abc")
    file.write_text("name\na\n")
    with pytest.raises(InputError, match="no columns id, train, val, test"):
        divide_buildings(str(file), "abc")


def test_a_splits_name_among_names_of_buildings_stands_for_all_of_its_own() -> None:
    assert named_buildings(["cauthron", "tiny", "hanson"]) == ("cauthron", *SPLITS["tiny"].all)
