"""Files as other programs, cameras and operating systems leave them: what they hold is what is read, or they
are refused by name.
"""

import gzip
import struct
import zipfile
import zlib

import numpy as np
import pytest
from PIL import Image

from unskew import data
from unskew.data import prediction_inputs
from unskew.data.files import archives, sheets
from unskew.data.kinds.images import ImageSettings, decode_image
from unskew.errors import DataError

RNG = np.random.default_rng(0)
SIDE = 16
LABELS = [RNG.integers(0, 3, (SIDE, SIDE)) for _ in range(8)]
"""Where three classes lie in the masks of eight images."""


def png(pixels, kind):
    """A PNG of 16 bits. kind: 2 for colours, 4 for grey and alpha, 6 for colours and alpha."""

    def chunk(name, content):
        return (
            struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        )

    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", *pixels.shape[1::-1], 16, kind, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def tiff(pixels, order="<", shown=1):
    """A TIFF. order: of bytes; shown: 0 for white is zero, 1 for black is zero, 2 for colours."""
    body = np.ascontiguousarray(pixels).astype(pixels.dtype.newbyteorder(order)).tobytes()
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    kind = {"u": 1, "i": 2, "f": 3}[pixels.dtype.kind]
    height, width = pixels.shape[:2]
    tags = {
        **{256: ("I", [width]), 257: ("I", [height]), 258: ("H", [8 * pixels.dtype.itemsize] * channels)},
        **{259: ("H", [1]), 262: ("H", [shown]), 273: ("I", [8]), 277: ("H", [channels])},
        **{278: ("I", [height]), 279: ("I", [len(body)]), 284: ("H", [1]), 339: ("H", [kind] * channels)},
    }
    at = 8 + len(body) + 6 + 12 * len(tags)
    entries, far = b"", b""
    for tag, (letter, values) in tags.items():
        value = struct.pack(f"{order}{len(values)}{letter}", *values)
        if len(value) > 4:
            value, far = struct.pack(f"{order}I", at + len(far)), far + value
        entries += struct.pack(f"{order}HHI", tag, 3 if letter == "H" else 4, len(values)) + value.ljust(
            4, b"\0"
        )
    start = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HI", 42, 8 + len(body))
    return start + body + struct.pack(f"{order}H", len(tags)) + entries + bytes(4) + far


COLOURS = RNG.integers(0, 65_536, (SIDE, SIDE, 3)).astype(np.uint16)
GREY = COLOURS[..., 0]


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("rgb.png", png(COLOURS, 2), "colours of 16 bits"),
        ("rgb.tif", tiff(COLOURS, ">", 2), "colours of 16 bits"),
        ("ct.tif", tiff(GREY.astype(np.int8)), "signed bytes"),
    ],
)
def test_what_pillow_would_read_as_something_else_is_refused(tmp_path, name, content, kind):
    """Of colours of 16 bits it keeps the upper 8: of images that use 12, 4 were left, and all of them were
    nearly black. A signed byte of -1 becomes 255."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"E401 .*{name} holds {kind}"):
        decode_image(tmp_path / name, name, ImageSettings(SIDE, "pad", 16))


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_images_in_which_white_is_zero_are_read_as_they_look(tmp_path, kind):
    """Those of 16 bits were read as their negatives."""
    most = int(np.iinfo(kind).max)
    values = (GREY.astype(np.int64) % (most + 1)).astype(kind)
    (tmp_path / "a.tif").write_bytes(tiff(values, shown=0))
    x, _ = decode_image(tmp_path / "a.tif", "a.tif", ImageSettings(SIDE, "pad", 16))
    np.testing.assert_allclose(x[0], 1 - values / most, atol=1e-6)


def drawn(colours, classes=3):
    """Masks in colour, of which class 0 has the first colour."""
    return [Image.fromarray(np.array(colours, np.uint8)[labels % classes]) for labels in LABELS]


def palette(*lists, numbers=LABELS):
    """Masks with a palette of their own each, of these by turns."""
    images = [Image.fromarray(labels.astype(np.uint8), "P") for labels in numbers]
    for i, image in enumerate(images):
        image.putpalette(sum(lists[i % len(lists)], ()))
    return images


def masks(root, files, ending="png"):
    """The classes [N, H, W] of masks, and what was said of them. files: each an image, or the content of a
    file."""
    for kind in ("images", "masks"):
        (root / kind).mkdir()
    for i, content in enumerate(files):
        Image.fromarray(RNG.integers(0, 256, (SIDE, SIDE)).astype(np.uint8)).save(
            root / "images" / f"{i}.png"
        )
        file = root / "masks" / f"{i}.{ending}"
        content.save(file) if isinstance(content, Image.Image) else file.write_bytes(content)
    read = data.read(f"{root}(size={SIDE})")
    rows = np.concatenate([read.y, read.y_test])
    said = [text for topic, text in read.intake.notes if topic == "labels"]
    return sorted(row.tobytes() for row in rows), said


def expected(classes):
    return sorted(np.asarray(one, np.uint8).tobytes() for one in classes)


BLACK, WHITE, RED, GREEN = (0, 0, 0), (255, 255, 255), (255, 0, 0), (0, 130, 0)
TWO = [labels % 2 for labels in LABELS]
TURNED = [1 - two for two in TWO]
VOC = [BLACK, (128, 0, 0), (0, 128, 0)]


@pytest.mark.parametrize(
    "files",
    [
        lambda: drawn([BLACK, WHITE], 2),
        lambda: palette([BLACK, WHITE], numbers=TWO),
        lambda: palette([WHITE, BLACK], numbers=TURNED),
        lambda: palette([BLACK, RED], numbers=TWO),
    ],
)
def test_greys_and_palettes_are_background_and_foreground(tmp_path, files):
    """A palette that begins with white turned every mask round."""
    assert masks(tmp_path, files())[0] == expected(TWO)


def test_a_palette_that_all_masks_share_numbers_their_classes(tmp_path):
    said = "masks have a palette, whose numbers were read: 0 is (0, 0, 0), 1 is (128, 0, 0), 2 is (0, 128, 0)"
    assert masks(tmp_path, palette(VOC)) == (expected(LABELS), [said])


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (lambda: drawn([BLACK, RED, GREEN]), r"masks/0\.png is in colours, .*nothing says which number"),
        (lambda: drawn([BLACK, (1, 0, 0), (2, 0, 0)]), "is in colours"),
        (lambda: drawn([(255, 255, 255, 0), (255, 255, 255, 255)], 2), "partly transparent"),
        (
            lambda: palette(VOC, [VOC[0], VOC[2], VOC[1]]),
            r"number 1 is the colour \(128, 0, 0\) in .*0\.png and",
        ),
    ],
)
def test_colours_that_do_not_say_which_class_they_are_are_refused(tmp_path, files, told):
    """Red and a green have one grey: they became one class. So did classes that stand in the red of an
    image."""
    with pytest.raises(DataError, match=rf"E404 .*{told}"):
        masks(tmp_path, files())


def archive_with(path, name, shape, kind="|u1", size=0):
    """An archive of x, y and an array of this header, after which only so many zeros follow."""
    np.savez(path, x=RNG.random((12, 3)), y=np.arange(12) % 2)
    header = {"descr": kind, "fortran_order": False, "shape": shape}
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as file, file.open(f"{name}.npy", "w") as entry:
        np.lib.format.write_array_header_1_0(entry, header)
        entry.write(bytes(size))
    return path


def test_an_array_that_is_no_column_is_named_unread(tmp_path):
    """It ends after its header, so that it cannot be read."""
    path = archive_with(tmp_path / "a.npz", "scans", (12, 300))
    notes = data.read(path).intake.notes
    assert ("left out", "arrays that are no columns: scans [12, 300]") in notes
    assert prediction_inputs.read_inputs(path, {"kind": "arrays"})[1].shape == (12, 3)


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (("scans", (3 << 30,)), r"unpack to 3,221,2"),
        (("scans", (12,), "|u1", 2 << 20), r"unpack to 2,09"),
        (("classes", (2,), "<U200000"), r"the words of the array 'classes' take 800,000 bytes each"),
    ],
)
def test_archives_that_announce_far_more_than_their_size_are_refused_unread(
    tmp_path, monkeypatch, array, says
):
    monkeypatch.setattr(archives, "SMALL_SIZE", 1 << 20)
    path = archive_with(tmp_path / "a.npz", *array)
    for read in (data.read, lambda path: prediction_inputs.read_inputs(path, {"kind": "arrays"})):
        with pytest.raises(DataError, match=rf"E401 .*a\.npz: .*{says}"):
            read(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("0" * (1 << 18), "has a line of more than 65,536 characters"),
        ("a,label\n1," + "0" * (1 << 18), "has a line of more than 65,536 characters"),
        ("a,label\n" + "1,0\n" * (1 << 16), "its .* bytes unpack to more than 131,072"),
    ],
)
def test_a_packed_table_is_not_read_to_the_end_of_what_it_unpacks_to(tmp_path, monkeypatch, content, says):
    """A line is held in memory: 700 KB without an end of line took 2 GB."""
    monkeypatch.setattr(archives, "SMALL_SIZE", 1 << 17)
    monkeypatch.setattr(sheets, "LONGEST_LINE", 1 << 16)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(content.encode()))
    with pytest.raises(DataError, match=rf"E401 .*t\.csv\.gz:? {says}"):
        data.read(tmp_path / "t.csv.gz")


def wav(samples, rate=8000, kind=1):
    """A .wav of one channel or several, [N] or [N, channels]. kind: 3 of floats, 6 of A-law."""
    channels, size = samples.shape[1] if samples.ndim > 1 else 1, samples.dtype.itemsize
    head = struct.pack("<HHIIHH", kind, channels, rate, rate * channels * size, channels * size, 8 * size)
    chunks = [(b"fmt ", head), (b"data", samples.tobytes())]
    body = b"WAVE" + b"".join(name + struct.pack("<I", len(content)) + content for name, content in chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def tone(seconds, rate=8000):
    return (9000 * np.sin(np.arange(round(seconds * rate)) * 2764 / rate)).astype("<i2")


def sounds(root, *more, n=6):
    """The set of these files, each a .wav, beside others of one second."""
    for name in "ab":
        (root / name).mkdir()
        for i in range(n):
            (root / name / f"{i}.wav").write_bytes(wav(tone(1 + i / 1000)))
    for i, content in enumerate(more):
        (root / "b" / f"more-{i}.wav").write_bytes(content)
    return data.read(str(root))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (
            wav(np.where(np.arange(900) == 5, np.nan, 0.5).astype("<f4"), kind=3),
            "E405 .*more-0.wav holds nan, which is no number; correct it",
        ),
        (
            wav(np.zeros(900, np.uint8), kind=6),
            r"E401 .*more-0.wav cannot be read as a .wav file: Unknown wave file format: ALAW.*; save it again, as PCM",
        ),
    ],
)
def test_sounds_that_cannot_be_read_are_named(tmp_path, content, told):
    with pytest.raises(DataError, match=told):
        sounds(tmp_path, content)


FORM = {"kind": "images", "size": 8, "fit": "pad", "bits": 16}


def test_masks_are_not_predicted_from(tmp_path):
    """Of a folder as it was for training, masks were answered as if they were images, and a row of the answer
    was anybody's."""
    for kind in ("images", "masks"):
        (tmp_path / "set" / "lyon" / kind).mkdir(parents=True)
        for i in range(2):
            Image.new("L", (8, 8), i).save(tmp_path / "set" / "lyon" / kind / f"{i}.png")
    names, x = prediction_inputs.read_inputs(tmp_path / "set", FORM)
    assert (names, len(x)) == (["lyon/images/0.png", "lyon/images/1.png"], 2)
    assert prediction_inputs.read_inputs(tmp_path / "set/lyon/masks", FORM)[0] == ["0.png", "1.png"]


def test_files_for_validation_are_predicted_from(tmp_path):
    """Beside a folder train/ they were left out of the answer without a word."""
    for part in ("train", "val"):
        (tmp_path / part / "a").mkdir(parents=True)
        Image.new("L", (8, 8)).save(tmp_path / part / "a" / "0.png")
    assert prediction_inputs.read_inputs(tmp_path, FORM)[0] == ["train/a/0.png", "val/a/0.png"]


def test_volumes_to_predict_from_are_called_by_their_paths_and_are_no_masks(tmp_path):
    """Each patient's slices had the names of the others'."""
    nib = pytest.importorskip("nibabel")
    for patient in ("p1", "p2"):
        (tmp_path / patient).mkdir()
        for name in ("scan", "scan_seg"):
            nib.save(
                nib.Nifti1Image(np.ones((4, 4, 2), np.int16), np.eye(4)), tmp_path / patient / f"{name}.nii"
            )
    form = {"kind": "volumes", "size": 8, "axis": "axial"}
    assert prediction_inputs.read_inputs(tmp_path, form)[0] == [
        f"p{p}/scan.nii slice {i}" for p in (1, 2) for i in (0, 1)
    ]
    assert prediction_inputs.read_inputs(tmp_path / "p1/scan_seg.nii", form)[0] == [
        "scan_seg.nii slice 0",
        "scan_seg.nii slice 1",
    ]


PIXELS = RNG.integers(0, 256, (20, 8, 8, 3)).astype(np.uint8)
COLOURS = [Image.fromarray(np.repeat(np.repeat(p[:2, :2], 4, 0), 4, 1)) for p in PIXELS]


class Images:
    """A Dataset of images as Pillow has them."""

    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i], i % 2


def samples(images):
    dataset = data.take({"train": Images(images), "test": Images(images[:2])})
    return dataset.x, " ".join(text for _, text in dataset.intake.notes)


@pytest.mark.parametrize("mode", ["P", "CMYK"])
def test_a_palette_is_read_as_its_colours(mode):
    plain, _ = samples(COLOURS)
    other, _ = samples([image.quantize(4) if mode == "P" else image.convert(mode) for image in COLOURS])
    assert other.shape == plain.shape
    assert np.abs(other - plain).max() < 0.02


def test_grey_images_among_coloured_ones_are_read_in_colour():
    mixed, _ = samples([image.convert("L") if i % 3 == 2 else image for i, image in enumerate(COLOURS)])
    assert mixed.shape == (20, 3, 8, 8)
    assert np.array_equal(mixed[1], samples(COLOURS)[0][1])
    assert np.array_equal(mixed[2, 0], mixed[2, 2])


def test_an_image_of_more_pixels_than_memory_is_meant_for_is_refused(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.new("L", (9, 9)).save(tmp_path / name / "1.png")
    monkeypatch.setattr("unskew.data.kinds.images.MOST_PIXELS", 80)
    with pytest.raises(DataError, match=r"E401 .*1\.png has 9 x 9 pixels; at most 80 are decoded"):
        data.folder(tmp_path, size=8)
