"""CAR in an Avalanche strategy; skipped where Avalanche cannot be imported (src/reprise/peers.py says how)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import cell
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from reprise import peers
from reprise.compress import COMPRESSIONS
from reprise.errors import InputError

MISSING = peers.available()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")


class Net(nn.Module):
    """One head over all classes, and features that have a name."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(8 * 16, 15)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def run(epochs: int = 12, **fields: Any) -> tuple[list[float], Any, nn.Module]:
    """Train three experiences; the loss on each afterwards, the plugin and the model."""
    from avalanche.benchmarks.scenarios.dataset_scenario import benchmark_from_datasets
    from avalanche.benchmarks.utils import make_avalanche_dataset
    from avalanche.benchmarks.utils.data_attribute import TensorDataAttribute
    from avalanche.training.plugins import EvaluationPlugin
    from avalanche.training.supervised import Naive

    from reprise.avalanche import CARPlugin

    torch.manual_seed(0)
    pairs = []
    for j, task in enumerate(cell("er").stream.tasks):
        columns = task.train.take(torch.arange(len(task.train)))
        pairs.append(((columns["x"].float() / 255 - 0.5) / 0.25, columns["y"] + 5 * j))
    datasets = []
    for x, y in pairs:
        attributes = [
            TensorDataAttribute(y, name="targets"),
            TensorDataAttribute(
                torch.zeros(len(y), dtype=torch.long), name="targets_task_labels", use_in_getitem=True
            ),
        ]
        datasets.append(make_avalanche_dataset(TensorDataset(x, y), data_attributes=attributes))
    benchmark = benchmark_from_datasets(train=datasets)
    model = Net()
    plugin = CARPlugin(**{"m_per_task": 15, "features": "features", **fields})
    strategy = Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=10,
        train_epochs=epochs,
        plugins=[plugin],
        evaluator=EvaluationPlugin(),
    )
    for experience in benchmark.train_stream:
        strategy.train(experience)
    model.eval()
    with torch.no_grad():
        losses = [float(nn.functional.cross_entropy(model(x), y)) for x, y in pairs]
    return losses, plugin, model


@pytest.mark.filterwarnings("ignore")
def test_car_forgets_less_than_fine_tuning_in_their_strategy() -> None:
    plain, *_ = run(lam=0.0, lam_fm=0.0)
    replayed, plugin, _ = run()
    assert max(replayed[:2]) < 0.5 * max(plain[:2])
    assert {name: len(column) for name, column in plugin.memory.items()} == dict.fromkeys(
        ("x", "y", "task", "activation"), 45
    )


@pytest.mark.filterwarnings("ignore")
def test_matching_holds_the_features_in_place() -> None:
    """Without the replayed loss, what was stored of the first experience is still nearer to what it is now."""
    far = []
    for lam_fm in (0.0, 50.0):
        _, plugin, model = run(epochs=3, lam=0.0, lam_fm=lam_fm)
        first = {name: column[:15] for name, column in plugin.memory.items()}
        with torch.no_grad():
            now = COMPRESSIONS[plugin.compress](plugin._stored(model, first))
        far.append(float((now - first["activation"]).square().mean()))
    assert far[1] < 0.5 * far[0]


@pytest.mark.filterwarnings("ignore")
def test_wrong_fields_are_named() -> None:
    from reprise.avalanche import CARPlugin

    with pytest.raises(InputError, match="features: the model has no layer 'encoder'"):
        run(features="encoder")
    with pytest.raises(InputError, match="distance: 'mmd' is not for the plugin"):
        CARPlugin(5, "features", distance="mmd")


@pytest.mark.filterwarnings("ignore")
def test_the_block_of_the_guide_runs() -> None:
    guide = Path(__file__).parent.parent / "docs" / "coming_from.md"
    [block] = re.findall(r"^```python\n(.*?)^```", guide.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    model = Net()
    world: dict[str, Any] = {"model": model, "criterion": nn.CrossEntropyLoss()}
    world["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.05)
    exec(compile(block, "coming_from.md", "exec", dont_inherit=True), world)
    assert world["car"] in world["strategy"].plugins
