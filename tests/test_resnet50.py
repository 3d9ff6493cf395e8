"""ResNet-50, the 15-layer decoder and the small pairs for rooms: counts, names, shapes, lanes."""

from typing import Any

import pytest
import torch
from tiny import FIELDS, furthest, mixed_stream, train, weights
from torch import Tensor, nn

from reprise.build import Cell
from reprise.config import make_experiment
from reprise.errors import InputError
from reprise.examples import Examples, Source
from reprise.ledger import settle
from reprise.models import decoders, encoders
from reprise.models.conv import compute_in
from reprise.models.decoders import Decoder15, SmallDecoder, build_decoder
from reprise.models.encoders import build_encoder
from reprise.models.heads import SeparateHeads
from reprise.models.model import Model, build_model
from reprise.models.resnet50 import ResNet50, load_torchvision
from reprise.net import Net
from reprise.streams.stream import Normalise, Stream
from reprise.tasks import Classify, Kind, Regress, Segment, Task

# Names and shapes as in torchvision's resnet50().
TORCHVISION = {
    "conv1.weight": (64, 3, 7, 7),
    "bn1.weight": (64,),
    "bn1.running_var": (64,),
    "layer1.0.conv1.weight": (64, 64, 1, 1),
    "layer1.0.bn3.bias": (256,),
    "layer1.0.downsample.0.weight": (256, 64, 1, 1),
    "layer1.0.downsample.1.running_mean": (256,),
    "layer1.2.conv3.weight": (256, 64, 1, 1),
    "layer2.0.conv2.weight": (128, 128, 3, 3),
    "layer2.0.downsample.0.weight": (512, 256, 1, 1),
    "layer2.3.bn2.running_var": (128,),
    "layer3.0.conv1.weight": (256, 512, 1, 1),
    "layer3.5.conv2.weight": (256, 256, 3, 3),
    "layer4.0.downsample.1.weight": (2048,),
    "layer4.2.bn3.running_mean": (2048,),
}
ROOMS = mixed_stream(size=32, n=8)
TASKONOMY: list[Kind] = [
    *(Regress(2), Regress(3), *[Regress(1)] * 6, Segment(17)),
    *(Classify(1000), Classify(63)),
]


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.fixture(scope="module")
def resnet50() -> nn.Module:
    return build_encoder("resnet50").eval()


@pytest.fixture
def thin(monkeypatch: pytest.MonkeyPatch) -> None:
    """`resnet50` and its decoder with few channels and a block per stage."""
    monkeypatch.setitem(encoders.ENCODERS, "resnet50", lambda: ResNet50(4, (1, 1, 1, 1)))
    monkeypatch.setitem(decoders.DECODERS, "resnet50", lambda *given: Decoder15(*given, width=1))


# ---- the encoder


def test_the_encoder_has_torchvision_s_names_and_shapes(resnet50: nn.Module) -> None:
    assert count(resnet50) == 23_508_032
    own = {name: tuple(t.shape) for name, t in resnet50.state_dict().items()}
    assert own | TORCHVISION == own
    # torchvision has 320 entries: 53 counters of norms and the classifier's 2 are not here.
    assert len(own) == 320 - 53 - 2


def test_shapes_and_taps(resnet50: nn.Module) -> None:
    assert resnet50(torch.zeros(1, 3, 64, 64)).shape == (1, 2048, 2, 2)
    with torch.device("meta"):
        model = Model(ResNet50(), SeparateHeads(), ResNet50.taps)
    assert model.layer_shapes((3, 256, 256)) == {
        "features": (2048, 8, 8),
        "layer1": (256, 64, 64),
        "layer2": (512, 32, 32),
        "layer3": (1024, 16, 16),
        "layer4": (2048, 8, 8),
    }


def test_the_stride_is_in_the_3x3_convolution(resnet50: nn.Module) -> None:
    strided = [n for n, m in resnet50.named_modules() if isinstance(m, nn.Conv2d) and m.stride == (2, 2)]
    blocks = [f"layer{i}.0.{conv}" for i in (2, 3, 4) for conv in ("conv2", "downsample.0")]
    assert strided == ["conv1", *blocks]


def test_initialisation(resnet50: nn.Module) -> None:
    """Convolutions by their outputs (He et al.), norms 1 and 0."""
    for name, expected in (("conv1", 64 * 49), ("layer3.1.conv2", 256 * 9), ("layer4.0.conv3", 2048)):
        std = resnet50.get_parameter(f"{name}.weight").std().item()
        assert std == pytest.approx((2 / expected) ** 0.5, rel=0.03)
    assert torch.equal(resnet50.get_parameter("layer1.0.bn3.weight"), torch.ones(256))
    assert torch.equal(resnet50.get_parameter("layer1.0.bn3.bias"), torch.zeros(256))


def reference(x: Tensor, state: dict[str, Tensor], blocks: tuple[int, ...]) -> Tensor:
    """ResNet-50 in evaluation mode written from its description, without our modules."""

    def norm(x: Tensor, name: str) -> Tensor:
        stats = (state[f"{name}.running_mean"], state[f"{name}.running_var"])
        return nn.functional.batch_norm(x, *stats, state[f"{name}.weight"], state[f"{name}.bias"])

    def conv(x: Tensor, name: str, stride: int, padding: int) -> Tensor:
        return nn.functional.conv2d(x, state[f"{name}.weight"], None, stride, padding)

    x = nn.functional.max_pool2d(norm(conv(x, "conv1", 2, 3), "bn1").relu(), 3, 2, 1)
    for layer, depth in enumerate(blocks, 1):
        for i in range(depth):
            at, stride = f"layer{layer}.{i}", 2 if layer > 1 and i == 0 else 1
            out = norm(conv(x, f"{at}.conv1", 1, 0), f"{at}.bn1").relu()
            out = norm(conv(out, f"{at}.conv2", stride, 1), f"{at}.bn2").relu()
            out = norm(conv(out, f"{at}.conv3", 1, 0), f"{at}.bn3")
            if i == 0:
                x = norm(conv(x, f"{at}.downsample.0", stride, 0), f"{at}.downsample.1")
            x = (out + x).relu()
    return x


def torchvision_like(encoder: nn.Module) -> dict[str, Tensor]:
    """What torchvision would save: random weights and statistics, counters, and a classifier."""
    generator = torch.Generator().manual_seed(0)
    fake: dict[str, Tensor] = {}
    for name, tensor in encoder.state_dict().items():
        fake[name] = torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype)
        if name.endswith("running_var"):
            fake[name.replace("running_var", "num_batches_tracked")] = torch.tensor(7)
    return fake | {"fc.weight": torch.zeros(1000, 2048), "fc.bias": torch.zeros(1000)}


def test_weights_of_torchvision_are_read_and_used() -> None:
    blocks = (1, 2, 1, 1)
    encoder = ResNet50(4, blocks).double().eval()
    given = torchvision_like(encoder)
    load_torchvision(encoder, given)
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(tensor, given[name])
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    torch.testing.assert_close(encoder(x), reference(x, given, blocks), rtol=1e-12, atol=0)


def test_all_320_entries_of_the_full_size_are_accounted_for(resnet50: nn.Module) -> None:
    given = torchvision_like(resnet50)
    assert len(given) == 320
    with torch.device("meta"):
        load_torchvision(ResNet50(), given)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"conv1.weight": None}, "weights: conv1.weight is missing (1 of 85 names are); give"),
        ({"layer5.weight": torch.zeros(1)}, "weights: layer5.weight is not a layer of this encoder (1 such"),
        ({"bn1.bias": torch.zeros(5)}, "weights: bn1.bias has the shape (5,) instead of (4,); give"),
        ({"bn1.bias": torch.full((4,), torch.inf)}, "weights: bn1.bias has values that are not finite; give"),
    ],
)
def test_other_weights_are_refused_and_leave_the_encoder_alone(
    change: dict[str, Tensor | None], said: str
) -> None:
    encoder = ResNet50(4, (1, 1, 1, 1))
    before = {name: t.clone() for name, t in encoder.state_dict().items()}
    given = {n: t for n, t in (torchvision_like(encoder) | change).items() if t is not None}
    with pytest.raises(InputError) as error:
        load_torchvision(encoder, given)
    assert str(error.value).startswith(said)
    assert furthest(before, encoder.state_dict()) == 0


def test_bf16_inside_and_the_weights_dtype_outside() -> None:
    encoder, decoder = ResNet50(4, (1, 1, 1, 1)), Decoder15(128, 2, bounded=False, width=1)
    model = nn.Sequential(encoder, decoder).eval()
    x = torch.randn(2, 3, 64, 64)
    exact = encoder(x), model(x)
    compute_in(model, torch.bfloat16)
    inside: list[torch.dtype] = []
    for part in (encoder.get_submodule("layer2"), decoder.layers[2]):
        part.register_forward_hook(lambda _module, _inputs, out: inside.append(out.dtype))
    rough = encoder(x), model(x)
    assert set(inside) == {torch.bfloat16}
    for one, other in zip(exact, rough, strict=True):
        assert other.dtype == torch.float32
        assert 0 < (one - other).abs().max() < 0.1 * one.abs().max()


# ---- decoders


@pytest.mark.parametrize("outputs", [1, 17])
def test_the_decoder_s_parameters(outputs: int) -> None:
    with torch.device("meta"):
        decoder = Decoder15(2048, outputs, bounded=True)
        assert decoder(torch.zeros(1, 2048, 8, 8)).shape == (1, outputs, 256, 256)
    assert count(decoder) == 35_255_840 + 145 * outputs
    layers = [m for m in decoder.modules() if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d))]
    assert len(layers) == 15
    assert [layer.bias is not None for layer in layers] == [False] * 14 + [True]


def test_tanh_for_real_values_and_logits_for_classes() -> None:
    features = 100 * torch.randn(2, 8, 1, 2)
    found = {}
    for bounded in (True, False):
        decoder = Decoder15(8, 3, bounded, width=1)
        nn.init.constant_(decoder.out.bias, 4.0)
        found[bounded] = decoder(features)
        assert found[bounded].shape == (2, 3, 32, 64)
    assert found[True].abs().max() <= 1
    assert found[False].abs().max() > 1


def test_which_decoder_a_task_gets() -> None:
    with torch.device("meta"):
        wide = [
            build_decoder("resnet50", kind, (2048, 8, 8), (3, 256, 256)) for kind in (Regress(3), Segment(17))
        ]
        small = build_decoder("resnet-rooms", Regress(3), (64, 8, 8), (3, 64, 64))
        least = build_decoder("convnet-small", Segment(2), (16, 2, 2), (3, 8, 8))
    for decoder, bounded, outputs in zip(wide, (True, False), (3, 17), strict=True):
        assert isinstance(decoder, Decoder15)
        assert decoder.bounded is bounded
        assert decoder.out.out_channels == outputs
    assert isinstance(small, SmallDecoder)
    assert isinstance(least, SmallDecoder)
    assert [name for name, _ in small.named_children()] == ["conv", "up1", "up2", "up3"]
    assert [name for name, _ in least.named_children()] == ["conv", "up1", "up2"]


@pytest.mark.parametrize(
    ("name", "features", "image", "said"),
    [
        ("resnet18-tiny", (64,), (3, 16, 16), "encoder: resnet18-tiny answers with vectors"),
        ("resnet50", (2048, 3, 3), (3, 84, 84), "use images whose sides are multiples of 32."),
        (
            "convnet-small",
            (16, 3, 2),
            (3, 10, 8),
            "encoder: convnet-small makes 3 x 2 features of 10 x 8 images",
        ),
    ],
)
def test_resolutions_that_doubling_cannot_reach(
    name: str, features: tuple[int, ...], image: tuple[int, ...], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        build_decoder(name, Segment(2), features, image)


def test_rooms() -> None:
    encoder = build_encoder("resnet-rooms")
    assert count(encoder) == 100_624
    features = encoder(torch.zeros(1, 3, 64, 64))
    assert features.shape == (1, 64, 8, 8)
    assert SmallDecoder(64, 3, 3)(features).shape == (1, 3, 64, 64)


# ---- whole models


def taskonomy_like() -> Stream:
    """The eleven tasks' heads and the size of their images; the targets are never looked at here."""
    source = Source({"x": torch.zeros(1, 3, 256, 256, dtype=torch.uint8), "y": torch.zeros(1)})
    examples = Examples(source, torch.arange(1), {})
    tasks = tuple(Task(f"task-{i}", kind, examples, examples) for i, kind in enumerate(TASKONOMY))
    half = torch.full((3, 1, 1), 0.5)
    return Stream("rooms", tasks, (3, 256, 256), Normalise(half, half), "rooms", shared_head=False)


def test_the_full_taskonomy_model() -> None:
    stream = taskonomy_like()
    with torch.device("meta"):
        model = build_model("resnet50", stream, seed=0)
    assert count(model) == 342_992_739
    assert round(4 * count(model) / 2**30, 3) == 1.278
    with torch.device("meta"):
        x = torch.zeros(1, 3, 256, 256)
        shapes = [tuple(model.eval()([x], [task])[0].prediction.shape[1:]) for task in range(len(TASKONOMY))]
    dense = [(channels, 256, 256) for channels in (2, 3, 1, 1, 1, 1, 1, 1, 17)]
    assert shapes == [*dense, (1000,), (63,)]


def wide_cell(encoder: str, method: str, seed: int, **fields: Any) -> Cell:
    # SGD: Adam divides gradients that are all but 0, so it would compare their rounding.
    given = FIELDS | {"lr": 0.01, "m": 6, "steps": 2, "encoder": encoder} | fields
    return Cell(settle(make_experiment("split-shapes", method, given), ROOMS), seed, ROOMS)


@pytest.mark.usefixtures("thin")
@pytest.mark.parametrize(
    ("encoder", "method", "fields"),
    [
        ("resnet50", "car", {"compress": "intermediate"}),
        ("resnet50", "er", {"old_heads": "hold"}),
        ("resnet-rooms", "car", {}),
    ],
)
def test_lanes_are_single_runs(encoder: str, method: str, fields: dict[str, Any]) -> None:
    cells = [wide_cell(encoder, method, seed, **fields) for seed in (0, 1)]
    together = train(*cells)
    for lane, one in enumerate(cells):
        alone = train(one)
        assert furthest(weights(together, lane), weights(alone)) < 1e-10
    assert any("heads" in name and "running" in name for name in weights(together)) == (encoder == "resnet50")


@pytest.mark.usefixtures("thin")
def test_asking_a_head_again_does_not_move_its_statistics() -> None:
    model = build_model("resnet50", ROOMS, seed=0).double().train()
    net = Net(model, [task.kind for task in ROOMS.tasks], {})
    out = net(torch.randn(4, 3, 32, 32, dtype=torch.float64), 1)
    before = {name: b.clone() for name, b in model.named_buffers()}
    assert torch.equal(net.predict(out.features, 1), out.prediction)
    assert furthest(before, dict(model.named_buffers())) == 0
