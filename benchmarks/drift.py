"""Records of runs that left features (`--artifacts features`), with how far the features of each task moved.

    python benchmarks/drift.py STORE > results/split-cifar-drift.jsonl

"drift" of a record: for each measure (relative drift, linear CKA, MMD) a number for each task, from its end to the
end of the run. The last task ends with the run: nothing of it has moved.
"""

from __future__ import annotations

import sys
from pathlib import Path

from reprise.artifacts import read_features
from reprise.report.leftovers import MEASURES
from reprise.results import read_store, to_json


def main(store: Path) -> None:
    for folder in sorted(path for path in store.iterdir() if path.is_dir()):
        for record in read_store(folder):
            features = read_features(folder / f"seed-{record['seed']}" / "artifacts")
            moved = {
                name: [measure(then, now) for then, now in features.values()]
                for name, measure in MEASURES.items()
            }
            print(to_json(record | {"drift": moved}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
