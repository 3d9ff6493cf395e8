"""The readers: what they return, and that whatever is wrong with a file ends as one InputError sentence."""

from __future__ import annotations

import collections
import os
import pickle
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from reprise.errors import InputError
from reprise.streams import files

PER_CLASS = {"train": 3, "test": 2}


def python2(value: Any) -> bytes:
    """Opcodes as Python 2 wrote them: its `str` is neither our bytes nor our text."""
    if isinstance(value, str | bytes):
        raw = value if isinstance(value, bytes) else value.encode("latin1")
        return b"T" + struct.pack("<i", len(raw)) + raw
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, list):
        return b"](" + b"".join(map(python2, value)) + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(python2(item) for pair in value.items() for item in pair) + b"u"
    assert value.dtype == np.uint8
    shape = b"J" + struct.pack("<i", value.shape[0]) + b"J" + struct.pack("<i", value.shape[1]) + b"\x86"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    start = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01"
    return start + shape + dtype + b"\x89" + python2(value.tobytes()) + b"tb"


def cifar_content(part: str, seed: int = 0) -> dict[str, Any]:
    """A part of CIFAR-100 with few images: classes mixed, every pixel its own."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(100), PER_CLASS[part])).tolist()
    data = rng.integers(0, 256, (len(labels), 3072), dtype=np.uint8)
    return {"data": data, "fine_labels": labels, "filenames": [f"{n}.png" for n in labels]}


def write_cifar(root: Path, **replaced: Any) -> Path:
    folder = root / "cifar-100-python"
    folder.mkdir()
    names = [f"class {label}" for label in range(100)]
    content = {part: cifar_content(part) for part in PER_CLASS} | {"meta": {"fine_label_names": names}}
    for name, value in (content | replaced).items():
        (folder / name).write_bytes(b"\x80\x02" + python2(value) + b".")
    return folder


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CIFAR_PER_CLASS", PER_CLASS)


WNIDS = [f"n{number:08d}" for number in range(100)]


def grey(wnid: str, number: int) -> int:
    """The shade of a picture: a JPEG keeps a plain grey exactly."""
    return (WNIDS.index(wnid) * 2 + number * 17) % 256


@pytest.fixture(scope="module")
def jpeg_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """mini-ImageNet in folders, written in an order that is not the sorted one."""
    root = tmp_path_factory.mktemp("jpegs")
    for part, numbers in (("train", (2, 1)), ("val", (3,))):
        for wnid in reversed(WNIDS):
            (folder := root / "mini-imagenet" / part / wnid).mkdir(parents=True)
            for number in numbers:
                Image.new("RGB", (84, 84), (grey(wnid, number),) * 3).save(folder / f"{number}.jpg")
    return root


@pytest.fixture
def jpegs(jpeg_tree: Path, tmp_path: Path) -> Path:
    """A copy of the tree to damage."""
    return Path(shutil.copytree(jpeg_tree / "mini-imagenet", tmp_path / "mini-imagenet"))


def mini_split(wnids: list[str], count: int = 6) -> dict[str, Any]:
    """One of the three pickles: the images of the classes interleaved, their rows listed backwards."""
    shades = np.array([grey(wnid, number) for number in range(count) for wnid in wnids], dtype=np.uint8)
    images = np.broadcast_to(shades[:, None, None, None], (len(shades), 84, 84, 3)).copy()
    rows = {wnid: [*range(k, len(shades), len(wnids))][::-1] for k, wnid in enumerate(wnids)}
    return {"image_data": images, "class_dict": rows}


def write_pickles(folder: Path, **replaced: Any) -> Path:
    folder.mkdir(parents=True)
    content = {"train": WNIDS[36:], "val": WNIDS[:16], "test": WNIDS[16:36]}
    for split, wnids in content.items():
        value = replaced[split] if split in replaced else mini_split(wnids)
        (folder / f"mini-imagenet-cache-{split}.pkl").write_bytes(pickle.dumps(value))
    return folder


# Pickles.


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize("module", [b"numpy._core", b"numpy.core"])
def test_arrays_and_containers_survive_every_protocol(protocol: int, module: bytes, tmp_path: Path) -> None:
    arrays = [np.arange(6, dtype=code).reshape(2, 3) for code in ("u1", "<i8", ">i4", "f4")]
    arrays += [np.asfortranarray(arrays[0]), np.array(["a", "bcd"])]
    value = {"arrays": arrays, "rest": [(1, 2.5, None, True), {"x"}, b"raw", np.float64(0.1), np.int64(7)]}
    raw = pickle.dumps(value, protocol)
    if protocol < 4:  # where names are lines of text; numpy 1 wrote the older one
        raw = raw.replace(b"cnumpy._core.", b"c" + module + b".")
    (tmp_path / "x").write_bytes(raw)
    found = files.load_pickle(tmp_path / "x")
    assert found["rest"] == value["rest"]
    for array, expected in zip(found["arrays"], arrays, strict=True):
        np.testing.assert_array_equal(array, expected)
        # numpy turns older pickles to the byte order of the machine
        assert array.dtype.newbyteorder("=") == expected.dtype.newbyteorder("=")


def test_a_python_2_pickle_has_bytes_or_text_as_asked(tmp_path: Path) -> None:
    content = {"data": np.arange(12, dtype=np.uint8).reshape(3, 4), "fine_labels": [1, 2, 3]}
    (tmp_path / "x").write_bytes(b"\x80\x02" + python2(content) + b".")
    for encoding, key in (("bytes", b"data"), ("latin1", "data")):
        np.testing.assert_array_equal(
            files.load_pickle(tmp_path / "x", encoding)[key], content["data"], strict=True
        )


class Reduced:
    """Pickles as a call of any function, followed by any state: a hostile pickle."""

    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:
        return self.reduced


RECONSTRUCT = np.zeros(1).__reduce__()[0]
FROMBUFFER = np.zeros(1).__reduce_ex__(5)[0]


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_runs_code_is_refused_and_does_not_run(protocol: int, tmp_path: Path) -> None:
    (tmp_path / "train").write_bytes(pickle.dumps(Reduced(os.mkdir, (str(tmp_path / "made"),)), protocol))
    with pytest.raises(InputError, match=r"train asks for '\w+.mkdir', which no data file needs"):
        files.load_pickle(tmp_path / "train")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "wanted", [eval, getattr, np.load, np.frombuffer, bytearray, collections.OrderedDict]
)
def test_only_what_arrays_need_is_admitted(wanted: Any, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(pickle.dumps(wanted))
    with pytest.raises(InputError, match=f"asks for '[a-z_.]+.{wanted.__name__}'"):
        files.load_pickle(tmp_path / "x")


def test_a_refused_name_is_printable_in_any_terminal(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\x80\x04\x8c\x05" + "über".encode() + b"\x8c\x06system\x93.")
    with pytest.raises(InputError, match=r"asks for '\\xfcber.system'"):
        files.load_pickle(tmp_path / "x")


def test_an_array_of_objects_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(pickle.dumps(np.array([None, {}], dtype=object)))
    with pytest.raises(InputError, match="not a readable pickle .ValueError: array of dtype 'O8'"):
        files.load_pickle(tmp_path / "x")


def test_hostile_fields_of_a_dtype_are_not_believed(tmp_path: Path) -> None:
    """numpy itself accepts such a state, and then reads memory that is not the array's."""
    fields = ("a",), {"a": (np.dtype("i8"), 1_000_000)}
    dtype = Reduced(np.dtype, ("u1", False, True), (3, "|", None, *fields, -1, -1, 0))
    array = Reduced(RECONSTRUCT, (np.ndarray, (0,), b"b"), (1, (3,), dtype, False, b"abc"))
    (tmp_path / "x").write_bytes(pickle.dumps(array))
    np.testing.assert_array_equal(
        files.load_pickle(tmp_path / "x"), np.frombuffer(b"abc", np.uint8), strict=True
    )


def test_a_pickle_cannot_alter_the_dtypes_of_the_process(tmp_path: Path) -> None:
    shared = Reduced(np.dtype, ("i8", False, False), (3, ">", None, None, None, -1, -1, 0))
    (tmp_path / "x").write_bytes(pickle.dumps(shared))
    files.load_pickle(tmp_path / "x")
    assert np.dtype("i8").isnative


@pytest.mark.parametrize("shape", [(2,), (4,), (-1, 2), (1 << 40, 1 << 40), "x"])
@pytest.mark.parametrize("buffered", [True, False])
def test_a_shape_that_does_not_fit_the_data_is_refused(shape: Any, buffered: bool, tmp_path: Path) -> None:
    state = (1, shape, np.dtype("u1"), False, b"abc")
    hostile = Reduced(RECONSTRUCT, (np.ndarray, (0,), b"b"), state)
    if buffered:
        hostile = Reduced(FROMBUFFER, (b"abc", np.dtype("u1"), shape, "C"))
    (tmp_path / "x").write_bytes(pickle.dumps(hostile))
    with pytest.raises(InputError, match="x is not a readable pickle .*; get another copy."):
        files.load_pickle(tmp_path / "x")


def test_a_pickle_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = b"\x80\x02" + python2({"data": np.zeros((2, 3), np.uint8), "fine_labels": [1, 2]}) + b"."
    for length in range(len(whole)):
        (tmp_path / "train").write_bytes(whole[:length])
        with pytest.raises(InputError, match="train is not a readable pickle"):
            files.load_pickle(tmp_path / "train")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00" * 50,
        b"<html>404 Not Found</html>",
        b"\x80\x04\x8e" + (1 << 62).to_bytes(8, "little"),  # bytes longer than any memory
        b"\x80\x04\x95" + (1 << 63).to_bytes(8, "little"),  # a frame of that kind
        b"\x80\x63.",  # a protocol to come
        b"I1\n" + b"0" * 3 + b".",  # takes more from the stack than it put there
        b"\x80\x02}]K\x01s.",  # a list as a key
        b"\x80\x02K\x01r\xff\xff\xff\x7f.",  # a note under a number that takes 32 GB
        b"K\x01p4294967295\n.",  # another one
    ],
)
def test_absurd_bytes_are_refused(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "train").write_bytes(raw)
    with pytest.raises(InputError, match="train is not a readable pickle"):
        files.load_pickle(tmp_path / "train")


def test_bytes_copied_again_and_again_are_refused(tmp_path: Path) -> None:
    """A megabyte once in the file, a thousand times in memory."""
    raw, dtype = b"x" * (1 << 20), np.dtype("u1")
    copies = [
        Reduced(RECONSTRUCT, (np.ndarray, (0,), b"b"), (1, (len(raw),), dtype, False, raw))
        for _ in range(1000)
    ]
    (tmp_path / "x").write_bytes(pickle.dumps(copies))
    assert (tmp_path / "x").stat().st_size < 1.2 * len(raw)
    with pytest.raises(InputError, match="it copies the same bytes over and over"):
        files.load_pickle(tmp_path / "x")


# CIFAR-100.


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("below", ["", "cifar-100-python"])
def test_cifar_keeps_planes_labels_and_file_order(below: str, tmp_path: Path) -> None:
    write_cifar(tmp_path)
    for part, images in zip(PER_CLASS, files.read_cifar100(tmp_path / below), strict=True):
        expected = cifar_content(part)
        assert images.x.shape == (100 * PER_CLASS[part], 3, 32, 32)
        assert images.x[7, 2, 5, 9] == expected["data"][7, 2 * 1024 + 5 * 32 + 9]
        np.testing.assert_array_equal(images.x.reshape(-1, 3072), expected["data"], strict=True)
        np.testing.assert_array_equal(images.y, np.array(expected["fine_labels"], np.int64), strict=True)
        assert images.classes == tuple(f"class {label}" for label in range(100))
        assert type(images.x) is np.ndarray
        assert images.x.flags.writeable


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("order", ["C", "F"])
def test_cifar_written_again_by_python_3_is_read_too(protocol: int, order: Any, tmp_path: Path) -> None:
    folder, content = write_cifar(tmp_path), cifar_content("train")
    stored = np.array(content["data"], order=order)
    stored.flags.writeable = False  # protocol 5 keeps that
    (folder / "train").write_bytes(pickle.dumps(content | {"data": stored}, protocol))
    x = files.read_cifar100(folder)[0].x
    np.testing.assert_array_equal(x.reshape(-1, 3072), content["data"], strict=True)
    assert x.flags.c_contiguous
    assert x.flags.writeable


def test_cifar_that_is_not_there_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="holds no folder `cifar-100-python`; .*reprise data fetch cifar100 --data DIR"
    ):
        files.read_cifar100(tmp_path)


def changed(key: str, value: Any) -> dict[str, Any]:
    return cifar_content("train") | {key: value}


LABELS = cifar_content("train")["fine_labels"]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ([1, 2], "train is not a dictionary with data, fine_labels"),
        ({"data": 1}, "train is not a dictionary with fine_labels"),
        (changed("data", [[1, 2]]), r"holds list, not uint8 \(N, 3072\)"),
        (
            changed("data", np.zeros((300, 3071), np.uint8)),
            r"holds uint8 \(300, 3071\), not uint8 \(N, 3072\)",
        ),
        (changed("fine_labels", [*LABELS[1:], 100]), r"`fine_labels` is not a list of 0..99"),
        (changed("fine_labels", [*LABELS[1:], -1]), r"`fine_labels` is not a list of 0..99"),
        (changed("fine_labels", [*LABELS[1:], "7"]), r"`fine_labels` is not a list of 0..99"),
        (changed("fine_labels", "7" * 300), r"`fine_labels` is not a list of 0..99"),
        (
            changed("fine_labels", LABELS * 2),
            "holds 300 images, 600 labels, 6 of class 0, .*, not 3 of each class",
        ),
        (
            changed("data", np.zeros((299, 3072), np.uint8)),
            "holds 299 images, 300 labels, not 3 of each class",
        ),
        (
            changed("fine_labels", [5, *LABELS[1:]]),
            "4 of class 5, 2 of class 12, not 3 of each class; get it",
        ),
    ],
)
def test_cifar_with_wrong_content_is_refused(content: Any, sentence: str, tmp_path: Path) -> None:
    write_cifar(tmp_path, train=content)
    with pytest.raises(InputError, match=sentence):
        files.read_cifar100(tmp_path)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "names", [["a"] * 100, [f"{n}" for n in range(99)], [*map(str, range(99)), 99], "names"]
)
def test_cifar_without_100_names_is_refused(names: Any, tmp_path: Path) -> None:
    write_cifar(tmp_path, meta={"fine_label_names": names})
    with pytest.raises(InputError, match="meta: `fine_label_names` is not a list of 100 names"):
        files.read_cifar100(tmp_path)


def test_cifar_is_held_to_the_full_counts(tmp_path: Path) -> None:
    write_cifar(tmp_path)
    with pytest.raises(
        InputError, match="holds 300 images, 300 labels, 3 of class 0, .* not 500 of each class"
    ):
        files.read_cifar100(tmp_path)


# What may stand where a file is expected.


def make_directory(path: Path) -> None:
    path.mkdir()


def make_loop(path: Path) -> None:
    path.symlink_to(path.name)


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_empty(path: Path) -> None:
    path.touch()


def make_nothing(path: Path) -> None:
    assert not path.exists()


IN_PLACE = [make_directory, make_loop, make_pipe, make_empty, make_nothing]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("make", IN_PLACE)
def test_cifar_refuses_what_is_no_file(make: Any, tmp_path: Path) -> None:
    folder = write_cifar(tmp_path)
    (folder / "train").unlink()
    make(folder / "train")
    with pytest.raises(InputError, match="train (is not a|cannot be)"):
        files.read_cifar100(tmp_path)


@pytest.mark.parametrize("make", IN_PLACE[:-1])
def test_mini_imagenet_refuses_what_is_no_picture(make: Any, jpegs: Path) -> None:
    make(jpegs / "train" / WNIDS[4] / "0.jpg")
    with pytest.raises(InputError, match=f"{WNIDS[4]}/0.jpg (is not a|cannot be)"):
        files.read_mini_imagenet(jpegs)


@pytest.mark.parametrize("make", IN_PLACE)
@pytest.mark.parametrize("read", [files.read_cifar100, files.read_mini_imagenet])
def test_a_root_that_is_no_folder_is_refused(make: Any, read: Any, tmp_path: Path) -> None:
    make(tmp_path / "root")
    with pytest.raises(InputError, match="root (does not exist|is no folder|holds no folder)"):
        read(tmp_path / "root")


@pytest.mark.parametrize("root", ["a\0b", "\ud800"])
@pytest.mark.parametrize(
    "read", [files.read_cifar100, files.read_mini_imagenet, files.load_pickle, files.read_jpeg]
)
def test_a_root_that_is_no_path_is_refused(read: Any, root: str) -> None:
    with pytest.raises(InputError) as caught:
        read(root)
    assert str(caught.value).encode()


def test_a_file_without_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "x").touch()
    monkeypatch.setattr("reprise.streams.fetch.open", denied, raising=False)
    with pytest.raises(
        InputError, match=r"x cannot be read \(Permission denied\); put a readable file there"
    ):
        files.load_pickle(tmp_path / "x")


# mini-ImageNet.


@pytest.mark.parametrize("below", ["", "mini-imagenet"])
def test_mini_imagenet_folders_are_sorted_by_class_and_name(below: str, jpeg_tree: Path) -> None:
    for images, numbers in zip(files.read_mini_imagenet(jpeg_tree / below), ((1, 2), (3,)), strict=True):
        assert images.classes == tuple(WNIDS)
        expected = np.array([grey(wnid, number) for wnid in WNIDS for number in numbers], np.uint8)
        shades = np.broadcast_to(expected[:, None, None, None], (len(expected), 3, 84, 84))
        np.testing.assert_array_equal(images.x, shades, strict=True)
        np.testing.assert_array_equal(images.y, np.repeat(np.arange(100), len(numbers)), strict=True)
        assert images.x.flags.c_contiguous
        assert images.x.flags.writeable


def test_the_number_of_threads_changes_nothing(jpeg_tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prints = set()
    for threads in (1, 2, 7):
        monkeypatch.setattr(files, "THREADS", threads)
        prints.add(files.fingerprint(files.read_mini_imagenet(jpeg_tree)))
    assert len(prints) == 1


def test_a_picture_of_another_size_or_mode_becomes_rgb_84(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (50, 120, 3), dtype=np.uint8)).save(tmp_path / "wide.jpg")
    Image.fromarray(rng.integers(0, 256, (84, 84), dtype=np.uint8)).save(tmp_path / "grey.jpg")
    with Image.open(tmp_path / "wide.jpg") as image:
        expected = np.asarray(image.resize((84, 84), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    np.testing.assert_array_equal(files.read_jpeg(tmp_path / "wide.jpg"), expected, strict=True)
    with Image.open(tmp_path / "grey.jpg") as image:
        expected = np.broadcast_to(np.asarray(image), (3, 84, 84))
    np.testing.assert_array_equal(files.read_jpeg(tmp_path / "grey.jpg"), expected, strict=True)


def test_a_truncated_picture_is_named(jpegs: Path) -> None:
    path = jpegs / "val" / WNIDS[60] / "3.jpg"
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(InputError, match=f"val/{WNIDS[60]}/3.jpg is not a readable JPEG .*; replace it."):
        files.read_mini_imagenet(jpegs)


def test_only_jpeg_is_decoded(tmp_path: Path) -> None:
    Image.new("RGB", (84, 84)).save(tmp_path / "a.jpg", format="PNG")
    with pytest.raises(InputError, match=r"a.jpg is not a readable JPEG \(no JPEG data\)"):
        files.read_jpeg(tmp_path / "a.jpg")


def test_a_picture_that_claims_absurd_sizes_is_not_decoded(tmp_path: Path) -> None:
    Image.new("L", (8, 8)).save(tmp_path / "a.jpg")
    raw = (tmp_path / "a.jpg").read_bytes()
    frame = raw.index(b"\xff\xc0") + 5  # height and width follow the marker, its length and the precision
    for height, width in ((9000, 9000), (65500, 65500)):
        (tmp_path / "a.jpg").write_bytes(raw[:frame] + struct.pack(">HH", height, width) + raw[frame + 4 :])
        with pytest.raises(InputError, match="a.jpg is not a readable JPEG .*pixels"):
            files.read_jpeg(tmp_path / "a.jpg")


def test_a_class_must_be_in_both_parts(jpegs: Path) -> None:
    shutil.rmtree(jpegs / "val" / WNIDS[3])
    for path in (jpegs / "val" / WNIDS[8]).iterdir():
        path.unlink()
    with pytest.raises(InputError, match=f"has no test images of {WNIDS[3]}, {WNIDS[8]}; put"):
        files.read_mini_imagenet(jpegs)


@pytest.mark.parametrize("part", ["train", "val"])
def test_a_whole_part_that_is_missing_is_named(part: str, jpegs: Path) -> None:
    shutil.rmtree(jpegs / part)
    with pytest.raises(InputError, match=f"{part} cannot be listed .No such file"):
        files.read_mini_imagenet(jpegs)


def test_there_must_be_100_classes(jpegs: Path) -> None:
    for part in ("train", "val"):
        shutil.rmtree(jpegs / part / WNIDS[3])
    with pytest.raises(InputError, match="mini-imagenet holds 99 classes, not 100; put"):
        files.read_mini_imagenet(jpegs)


def test_strays_are_no_classes_and_no_pictures(jpegs: Path, jpeg_tree: Path) -> None:
    (jpegs / "train" / "labels.csv").touch()
    (jpegs / "train" / "loop").symlink_to("loop")
    (jpegs / "train" / ".hidden").mkdir()
    (jpegs / "train" / WNIDS[0] / "._1.jpg").touch()
    (jpegs / "train" / WNIDS[0] / "Thumbs.db").touch()
    assert files.fingerprint(files.read_mini_imagenet(jpegs)) == files.fingerprint(
        files.read_mini_imagenet(jpeg_tree)
    )


def test_names_that_are_not_utf8_end_in_a_printable_sentence(jpegs: Path) -> None:
    name = os.fsencode(jpegs / "train" / WNIDS[0]) + b"/\xff\xfe.jpg"
    try:
        Path(os.fsdecode(name)).touch()
    except OSError:
        pytest.skip("this file system takes only UTF-8 names")
    with pytest.raises(InputError, match=r"udcff.*is not a readable JPEG") as caught:
        files.read_mini_imagenet(jpegs)
    assert str(caught.value).encode()
    Path(os.fsdecode(name)).unlink()
    for part in ("train", "val"):
        (jpegs / part / WNIDS[0]).rename(jpegs / part / os.fsdecode(b"\xff"))
    assert files.read_mini_imagenet(jpegs)[0].classes[-1] == r"\udcff"


@pytest.mark.parametrize("below", ["", "mini-imagenet"])
def test_mini_imagenet_pickles_are_merged_and_every_class_is_divided(below: str, tmp_path: Path) -> None:
    write_pickles(tmp_path / "mini-imagenet")
    for images, numbers in zip(files.read_mini_imagenet(tmp_path / below), (range(5), (5,)), strict=True):
        assert images.classes == tuple(WNIDS)
        assert images.x.shape == (100 * len(numbers), 3, 84, 84)
        assert images.x[:, 1, 40, 50].tolist() == [grey(wnid, number) for wnid in WNIDS for number in numbers]
        np.testing.assert_array_equal(images.y, np.repeat(np.arange(100), len(numbers)), strict=True)
        assert images.x.flags.c_contiguous
        assert images.x.flags.writeable


def test_channels_of_a_pickle_come_first(tmp_path: Path) -> None:
    content = mini_split(WNIDS[:16])
    content["image_data"][..., 2] = 77
    train, _test = files.read_mini_imagenet(write_pickles(tmp_path / "mini-imagenet", val=content))
    assert (train.x[:80, 2] == 77).all()
    assert not (train.x[:80, 0] == 77).all()


def test_a_missing_pickle_is_named(tmp_path: Path) -> None:
    (write_pickles(tmp_path / "mini-imagenet") / "mini-imagenet-cache-val.pkl").unlink()
    with pytest.raises(InputError, match="mini-imagenet-cache-val.pkl cannot be read .No such file"):
        files.read_mini_imagenet(tmp_path)


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)
SPLIT = mini_split(WNIDS[:16])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            SPLIT | {"image_data": SPLIT["image_data"][:, :80]},
            r"uint8 \(96, 80, 84, 3\), not uint8 \(N, 84, 84, 3\)",
        ),
        (
            SPLIT | {"image_data": SPLIT["image_data"].astype(float)},
            r"holds float64 \(96, 84, 84, 3\), not uint8",
        ),
        (SPLIT | {"class_dict": WNIDS[:16]}, "`class_dict` does not map wnids to rows"),
        (SPLIT | {"class_dict": {5: [1]}}, "`class_dict` does not map wnids to rows"),
        (SPLIT | {"class_dict": {WNIDS[0]: [96]}}, r"`class_dict` is not a list of 0..95"),
        (SPLIT | {"class_dict": {WNIDS[0]: [-1]}}, r"`class_dict` is not a list of 0..95"),
        (SPLIT | {"class_dict": {WNIDS[0]: ENDLESS}}, r"`class_dict` is not a list of 0..95"),
        (
            SPLIT | {"class_dict": SPLIT["class_dict"] | {WNIDS[0]: [0]}},
            f"has no training images of {WNIDS[0]};",
        ),
        (SPLIT | {"class_dict": {WNIDS[0]: [0, 1]}}, "holds 85 classes, not 100"),
        ({"image_data": 3}, "is not a dictionary with class_dict"),
    ],
)
def test_mini_imagenet_pickles_with_wrong_content_are_refused(
    content: Any, sentence: str, tmp_path: Path
) -> None:
    write_pickles(tmp_path / "mini-imagenet", val=content)
    with pytest.raises(InputError, match=sentence):
        files.read_mini_imagenet(tmp_path)


# The fingerprint.


def test_a_fingerprint_tells_any_change_from_the_layout_in_memory() -> None:
    x = np.arange(2 * 3 * 4 * 4, dtype=np.uint8).reshape(2, 3, 4, 4)
    train = files.Images(x, np.array([0, 1]), ("a", "b"))
    test = files.Images(x[:1], np.array([1]), ("a", "b"))
    same = files.Images(np.asfortranarray(x), np.array([0, 1]), ("a", "b"))
    others = [
        files.Images(x ^ np.uint8(1), train.y, train.classes),
        files.Images(x, train.y[::-1], train.classes),
        files.Images(x, train.y, ("a", "c")),
        files.Images(x, train.y, ("ab", "")),
        files.Images(x.reshape(2, 3, 2, 8), train.y, train.classes),
    ]
    base = files.fingerprint((train, test))
    assert len(base) == 16
    assert int(base, 16) >= 0
    assert files.fingerprint((same, test)) == base
    different = {files.fingerprint((other, test)) for other in others} | {files.fingerprint((test, train))}
    assert len(different | {base}) == 7


def test_a_fingerprint_is_the_same_on_every_machine() -> None:
    images = files.Images(np.zeros((1, 3, 2, 2), np.uint8), np.zeros(1, np.int64), ("é",))
    assert files.fingerprint((images, images)) == "576fd3bbbc05ddad"
