"""What is there of a folder of Taskonomy: every file opened, every view judged for every task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from reprise.errors import InputError
from reprise.machine import cores
from reprise.streams.check import LISTED, Finding, Report
from reprise.streams.fetch import PathLike, some
from reprise.streams.taskonomy.domains import Domain, TaskonomyTask, domains_of, find_tasks
from reprise.streams.taskonomy.layout import (
    DEFECTS,
    Building,
    choose_buildings,
    find_root,
    left_out,
    obstacle,
    read_view,
    scan,
)

Progress = Callable[[int, int], object]
"""Called with the views of a building that have been opened, and all of them."""


def check_taskonomy(
    folder: PathLike,
    tasks: Iterable[str] | None = None,
    buildings: Iterable[str] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Opens every file that the tasks need and says which views are usable for which task.

    A label that is missing or empty is a fact about the data: it costs its tasks that view. A file that is
    unreadable or mismatching, or a task without any usable view, makes the report not ok.
    """
    findings = list(_findings(folder, find_tasks(tasks), buildings, progress))
    return Report(all(ok for ok, _ in findings), [line for _, line in findings])


def _findings(
    folder: PathLike,
    tasks: tuple[TaskonomyTask, ...],
    wanted: Iterable[str] | None,
    progress: Progress | None,
) -> Iterator[Finding]:
    obstacles: dict[str, list[str | None]] = {task.name: [] for task in tasks}
    try:
        root = find_root(folder)
        names = choose_buildings(root, wanted)
    except InputError as error:
        yield False, str(error)
        return
    for name in names:
        try:
            building = scan(root, name, domains_of(tasks))
        except InputError as error:
            yield False, f"{name}: {error}"
            continue
        yield from _building(building, tasks, obstacles, progress)
    for task in tasks:
        known = obstacles[task.name]
        usable = known.count(None)
        yield usable > 0, left_out(task, known) or f"{task.name}: all {usable} views usable"


def _building(
    building: Building,
    tasks: tuple[TaskonomyTask, ...],
    obstacles: dict[str, list[str | None]],
    progress: Progress | None,
) -> Iterator[Finding]:
    domains = domains_of(tasks)
    read = partial(_judge, building, domains=domains)
    with ThreadPoolExecutor(min(8, cores())) as pool:  # its map keeps the order
        judged = []
        for found in pool.map(read, building.views):
            judged.append(found)
            if progress is not None:
                progress(len(judged), len(building.views))
    sizes = sorted({pixels for _, pixels in judged if pixels})
    points = len({point for point, _ in building.views})
    pixels = f", {some(f'{size} x {size}' for size in sizes)} pixels" if sizes else ""
    views = len(building.views)
    yield views > 0, f"{building.name}: {views} views of {points} points{pixels}"
    if building.without_image:
        yield True, f"{building.name}: {building.without_image} more views have labels but no image"
    for domain in domains:
        if state := building.absent.get(domain.name):
            sound = not state.startswith(DEFECTS)
            yield sound, f"{building.name}/{domain.name}: {state if sound else f'folder {state}'}"
            continue
        states = [problems.get(domain.name) for problems, _ in judged]
        if counts := Counter(state.split(":")[0] for state in states if state):
            what = some(f"{count} {kind}" for kind, count in sorted(counts.items()))
            sound = not any(kind in DEFECTS for kind in counts)
            yield sound, f"{building.name}/{domain.name}: {what} of {views} files"
        wrong = [
            f"  {domain.filename(*view)}: {state}"
            for view, state in zip(building.views, states, strict=True)
            if state and state.startswith(DEFECTS)
        ]
        yield from ((False, line) for line in wrong[:LISTED])
        if len(wrong) > LISTED:
            yield False, f"  and {len(wrong) - LISTED} more"
    for task in tasks:
        obstacles[task.name] += [obstacle(task, problems, building.absent) for problems, _ in judged]


def _judge(
    building: Building, view: tuple[int, int], domains: tuple[Domain, ...]
) -> tuple[dict[str, str], int | None]:
    _, problems, pixels = read_view(building, view, domains)
    return problems, pixels
