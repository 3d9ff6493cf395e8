"""Experiment and values: precedence, types, files that name no code, the round trip and the hash."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from reprise import config
from reprise.config import (
    MEMORY_FIELDS,
    Experiment,
    Setting,
    field_hints,
    make_experiment,
    overlay,
    read_config,
)
from reprise.errors import InputError
from reprise.methods import METHODS
from reprise.values import nearest, parse_bytes, read_value, show_bytes, without_none

NAMES = sorted(METHODS)


# ---- values


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("1B", 1),
        ("2KB", 2_000),
        ("2kB", 2_000),
        ("2MB", 2_000_000),
        ("2 MB", 2_000_000),
        ("2mb", 2_000_000),
        ("1.5GB", 1_500_000_000),
        ("512KiB", 524_288),
        ("2MiB", 2_097_152),
        ("1GiB", 1_073_741_824),
        ("2.3KB", 2_300),  # in binary floating point 2299.9999999999995
        ("1e3KB", 1_000_000),
        (" 7 B ", 7),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "MB", "-2MB", "0", "2TB", "2XB", "two MB", "nanMB", "infMB", "2MBB", "1e99GB", "MB2"]
)
def test_what_is_no_size_is_named(text: str) -> None:
    with pytest.raises(InputError, match="^memory: .* is not a size; write for example 2MB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (7_700, "7.70 kB"),
        (38_456, "38.5 kB"),
        (1_234_567, "1.23 MB"),
        (2 * 10**9, "2.00 GB"),
    ],
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert show_bytes(size) == text


@pytest.mark.parametrize(
    ("value", "hint", "read"),
    [
        ("1e-3", float, 0.001),  # a YAML 1.1 file gives it as text
        ("5", float, 5.0),
        (5, float, 5.0),
        ("010", int, 10),  # YAML alone would read an octal 8
        ("none", int | None, None),
        (None, float | None, None),
        ("none", Literal["auto", "none"], "none"),
        ("true", bool, True),
        ("False", bool, False),
        (2_000_000, str | None, "2000000"),
        ("0,1,2", tuple[int, ...], (0, 1, 2)),
        ([3, 4], tuple[int, ...], (3, 4)),
        (3, tuple[int, ...], (3,)),
        ("a/b", Path | None, Path("a/b")),
    ],
)
def test_values_are_read_as_the_fields_type(value: Any, hint: Any, read: Any) -> None:
    found = read_value("field", value, hint)
    assert found == read
    assert type(found) is type(read) or isinstance(read, Path)


@pytest.mark.parametrize(
    ("value", "hint", "words"),
    [
        ("abc", int, "is not a whole number"),
        ("1.5", int, "is not a whole number"),
        (1.5, int, "is not a whole number"),
        (True, int, "is not a whole number"),
        (True, float, "is not a number"),
        ("none", float, "is not a number"),
        ("nan", float, "is not a finite number"),
        (float("inf"), float | None, "is not a finite number"),
        ([1], float, "is not a number"),
        ("yes", bool, "is not true or false"),
        ({"a": 1}, str, "is not a text"),
        ("", Path | None, "is not a path"),
        ("0,x", tuple[int, ...], "is not a list of whole numbers"),
        ([0, True], tuple[int, ...], "is not a list of whole numbers"),
        ([], tuple[int, ...], "is not a list of whole numbers"),
        (["a"], Literal["a", "b"], "choose one of a, b"),
    ],
)
def test_a_wrong_type_names_the_field_and_the_way_out(value: Any, hint: Any, words: str) -> None:
    with pytest.raises(InputError) as error:
        read_value("field", value, hint)
    assert str(error.value).startswith("field: ")
    assert words in str(error.value)
    assert "; " in str(error.value)


def test_the_nearest_name() -> None:
    assert nearest("lam_fn", ["lam_fm", "lr"]) == "lam_fm"
    assert nearest("bogus", ["lam_fm", "lr"]) is None


# ---- precedence


def test_flag_over_file_over_protocol_over_default() -> None:
    protocol = {"lr": 0.1, "batch": 20, "replay": 7, "no_such_field": 1}
    file, flags = {"batch": "30", "replay": 8}, {"replay": "9"}
    experiment = make_experiment("split-shapes", "er", overlay(file, flags), protocol)
    assert (experiment.lr, experiment.batch, experiment.replay) == (0.1, 30, 9)
    assert experiment.epochs == Experiment("split-shapes", METHODS["er"]()).epochs


@pytest.mark.parametrize("name", MEMORY_FIELDS)
def test_another_way_of_saying_m_displaces_the_one_below(name: str) -> None:
    value = "2MB" if name == "memory" else 100
    for below in MEMORY_FIELDS:
        low = {below: "1MB" if below == "memory" else 50}
        assert overlay(low, {name: value}) == {name: value}
    experiment = make_experiment("split-shapes", "er", {name: value}, {"m": 50})
    assert [getattr(experiment, other) for other in MEMORY_FIELDS if other != name] == [None] * 3


@pytest.mark.parametrize(("one", "other"), [("m", "memory"), ("m", "m_per_class"), ("m_per_task", "memory")])
def test_saying_m_twice_is_refused(one: str, other: str) -> None:
    values = {name: "2MB" if name == "memory" else 50 for name in (one, other)}
    with pytest.raises(InputError, match=f"{one} and {other} say the same thing twice"):
        make_experiment("split-shapes", "er", values)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"lr": 0}, "lr: 0.0 is not positive"),
        ({"batch": -1}, "batch: -1 is not positive"),
        ({"tasks": 0}, "tasks: 0 is not positive"),
        ({"m": -5}, "m: -5 is negative"),
        ({"curve": -5}, "curve: -5 is negative"),
        ({"p_replay": 1.0}, "p_replay: 1.0 is not between 0 and 1"),
        ({"memory": "much"}, "memory: 'much' is not a size"),
        ({"scenario": "domain"}, "choose one of task, class"),
        ({"lam": -1}, "lam: -1.0 is not a weight"),
        ({"lam_fm": 1}, "lam_fm: er has no such field; car"),
        ({"lamb": 1}, "the nearest one is lam"),
        ({"bogus": 1}, "the fields are batch, bn,"),
    ],
)
def test_bad_fields(values: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        make_experiment("split-shapes", "er", values)


@pytest.mark.parametrize("method", ["zzz", None, ["er"]])
def test_an_unknown_method(method: Any) -> None:
    with pytest.raises(InputError, match="^method: .* is not known; choose one of sgd"):
        make_experiment("split-shapes", method, {})


def test_settings() -> None:
    setting = config.make_setting({"seeds": "3,1", "out": "x", "lanes": "2"})
    assert setting == Setting(seeds=(3, 1), out=Path("x"), lanes=2)
    for values, words in (
        ({"seeds": "1,1"}, "seeds: 1,1 are not different"),
        ({"seeds": "-1"}, "seeds: -1 are not different numbers from 0 up"),
        ({"lanes": 0}, "lanes: 0 is not positive"),
        ({"device": "tpu"}, "choose one of cpu, cuda"),
    ):
        with pytest.raises(InputError, match=words):
            config.make_setting(values)


# ---- files


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "fields.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_of_fields(tmp_path: Path) -> None:
    path = write(tmp_path, "stream: split-shapes\nlam-fm: 5\nlr: 1e-3\nclip: none\nmemory: 2MB\n")
    values = read_config(path)
    assert values == {"stream": "split-shapes", "lam_fm": 5, "lr": "1e-3", "clip": "none", "memory": "2MB"}
    experiment = make_experiment("split-shapes", "car", values)
    assert (experiment.lr, experiment.clip) == (0.001, None)
    assert read_config(write(tmp_path, "# nothing\n")) == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "!!python/object/apply:os.system ['touch /tmp/never']",
            "is not plain YAML (line 1: tag 'tag:yaml.org,2002:python/",
        ),
        ("lr: !!python/name:os.system", "is not plain YAML (line 1: tag 'tag:yaml.org,2002:python/"),
        ("a: [1", "is not plain YAML (line 1"),
        ("a: 1\nb: : 2", "is not plain YAML (line 2"),
        ("day: 2024-99-99", "is not plain YAML"),
        ("[" * 20_000, "is not plain YAML (lists within lists, more than 10 deep)"),
        (
            "a: &a [x, x]\nb: &b [*a, *a]",
            "is not plain YAML (line 1: anchor 'a')",
        ),  # ten such lines fill a memory
        ("a: !!bool maybe", "is not plain YAML (line 1: tag 'tag:yaml.org,2002:bool')"),
        ("a: " + "x" * (1 << 20), "is not plain YAML (it is longer than 1048576 characters)"),
        ("- 1\n- 2", "holds no fields"),
        ("1: 2", "holds no fields"),
        ("just text", "holds no fields"),
    ],
)
def test_a_file_that_is_no_list_of_fields(tmp_path: Path, text: str, words: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError) as error:
        read_config(path)
    assert str(error.value).startswith(f"config: {path} ")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist; name a YAML file"):
        read_config(tmp_path / "none.yaml")
    with pytest.raises(InputError, match="cannot be read \\(Is a directory\\)"):
        read_config(tmp_path)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read \\(it is no text\\)"):
        read_config(tmp_path / "bytes")


# ---- round trip and hash


def test_no_method_shadows_a_field_of_the_protocol() -> None:
    common = {f.name for f in fields(Experiment)} | {f.name for f in fields(Setting)}
    for kind in METHODS.values():
        assert not common & {f.name for f in fields(kind)}


def values_of(name: str, hint: Any) -> st.SearchStrategy[Any]:
    """Values a field accepts."""
    kind, optional = without_none(hint)
    if get_origin(kind) is Literal:
        values: st.SearchStrategy[Any] = st.sampled_from(get_args(kind))
    elif kind is float:
        values = st.floats(0.0001, 0.9999) if name == "p_replay" else st.floats(1e-6, 1e6)
    elif kind is int:
        values = st.integers(1, 10**6)
    elif kind is bool:
        values = st.booleans()
    else:
        values = st.just("2MB") if name == "memory" else st.text(max_size=10)
    return st.none() | values if optional else values


def experiments(method: str, memory: str) -> st.SearchStrategy[Experiment | None]:
    """Any of a method's fields set, and m in one of the ways; None where the method refuses a combination."""
    hints = {n: h for n, h in field_hints(method).items() if n not in MEMORY_FIELDS or n == memory}
    chosen = st.fixed_dictionaries({}, optional={n: values_of(n, h) for n, h in hints.items()})
    return chosen.map(lambda values: _accepted(method, values))


def _accepted(method: str, values: dict[str, Any]) -> Experiment | None:
    try:
        return make_experiment("split-shapes", method, values)
    except InputError:
        return None


@given(
    st.sampled_from(NAMES).flatmap(lambda m: st.sampled_from(MEMORY_FIELDS).flatmap(partial(experiments, m)))
)
def test_round_trip(experiment: Experiment | None) -> None:
    assume(experiment is not None)
    assert experiment is not None
    there = json.loads(json.dumps(experiment.to_dict(), allow_nan=False))
    back = Experiment.from_dict(there)
    assert back == experiment
    assert back.hash("data") == experiment.hash("data")
    assert len(experiment.hash("data")) == 12


def another(value: Any, name: str, hint: Any) -> Any:
    """A valid value that differs."""
    kind, _ = without_none(hint)
    if get_origin(kind) is Literal:
        return next(choice for choice in get_args(kind) if choice != value)
    if kind is str:
        return "2MB" if name == "memory" else f"another {value}"
    if kind is bool:
        return not value
    return (value or 0) + (1 if kind is int else 0.25)


@pytest.mark.parametrize("method", NAMES)
def test_every_field_changes_the_hash(method: str) -> None:
    base = make_experiment("split-shapes", method, {})
    seen = {base.hash("data"), base.hash("other data"), replace(base, stream="split-cifar").hash("data")}
    refused = []
    for name, hint in field_hints(method).items():
        value = another(base.to_dict()[name], name, hint)
        try:
            changed = make_experiment("split-shapes", method, {name: value})
        except InputError:
            refused.append(name)
            continue
        assert changed.hash("data") not in seen, name
        seen.add(changed.hash("data"))
    assert len(refused) <= 1


def test_results_version_is_part_of_the_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    base = make_experiment("split-shapes", "er", {})
    before = base.hash("data")
    monkeypatch.setattr(config, "RESULTS_VERSION", config.RESULTS_VERSION + 1)
    assert base.hash("data") != before


def test_how_it_is_run_is_no_part_of_an_experiment() -> None:
    left_out = {"device", "workers", "lanes", "ranks", "compile", "out", "seeds"}
    assert not left_out & set(make_experiment("split-shapes", "car", {}).configuration("data"))
    assert not {f.name for f in dataclasses.fields(Setting)} & {
        f.name for f in dataclasses.fields(Experiment)
    }
