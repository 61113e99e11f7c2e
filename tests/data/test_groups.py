"""Samples that belong together stay on one side of every split, however they are read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import unskew
from tests.data import arrow
from unskew import data
from unskew.attacks import auxiliary_samples, shadows
from unskew.attacks.kinds.audit import Audit
from unskew.attacks.kinds.membership import Membership
from unskew.attacks.target_run import TargetRun
from unskew.data.clients.partition import Index
from unskew.data.kinds.column_roles import file_question, number_ids
from unskew.data.python_objects import settings_of, take
from unskew.data.readers.from_npz import save_dataset
from unskew.data.samples.dataset import validation_of
from unskew.errors import DataError, UsageError

PATIENTS, VISITS = 20, 4
PATIENT = np.repeat(np.arange(PATIENTS), VISITS)
NAMES = np.array([f"P{p:02d}" for p in PATIENT])
Y = PATIENT % 2
X = np.random.default_rng(0).random((len(Y), 3)).astype(np.float32) + PATIENT[:, None]


def table(path, patient="patient", split=None):
    """A table of 20 patients with four rows each; a feature is the number of the patient and a fraction."""
    lines = [f"{patient},a,b,c,label" + (",split" if split is not None else "")]
    for i, row in enumerate(X.tolist()):
        cells = [NAMES[i], *row, "ill" if Y[i] else "well"]
        lines.append(",".join(map(str, cells if split is None else [*cells, split[i]])))
    path.write_text("\n".join(lines) + "\n")
    return path


def warnings_of(dataset):
    return [text for topic, text in dataset.intake.notes if topic == "warning"]


def patients_of(x):
    """The patients of samples, by their first number; that of an image is its brightness."""
    return set(np.floor(np.asarray(x[:]).reshape(len(x), -1)[:, 0]).astype(int).tolist())


def assert_apart(dataset, patients=patients_of):
    """No patient is in training and test, nor in training and validation."""
    for divided in (dataset, validation_of(dataset, 0.25)):
        train, test = patients(divided.x), patients(divided.x_test)
        assert train
        assert test
        assert not train & test
    assert len(dataset.y) + len(dataset.y_test) == len(Y)
    assert len(dataset.y_test) == len(Y) // 5


def pictures(folder, name):
    for i, patient in enumerate(PATIENT.tolist()):
        numbers = {"patient": NAMES[i], "slice": i % VISITS, "level": i % 10}
        path = folder / ("ill" if Y[i] else "well") / name.format(**numbers)
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.full((8, 8, 3), 10 * patient, np.uint8)
        pixels[0, 1] = i
        Image.fromarray(pixels).save(path)


def brightness(x):
    return set(np.round(np.asarray(x[:]).reshape(len(x), -1)[:, 0] * 25.5).astype(int).tolist())


def test_a_table_is_divided_by_patient_and_the_patient_is_no_feature(tmp_path):
    dataset = data.read(f"{table(tmp_path / 'visits.csv')}(group=patient)")
    assert_apart(dataset)
    assert dataset.x.shape[1:] == (3,)
    assert np.bincount(dataset.y_test).tolist() == [8, 8]
    assert not warnings_of(dataset)
    assert ("note", "80 samples of 20 groups ('patient'), which no split divides") in dataset.intake.notes


def test_a_column_of_ids_is_asked_about_with_its_numbers(tmp_path):
    path = table(tmp_path / "visits.csv", "patient_id")
    text = (
        "80 rows have 20 different values in 'patient_id'; if they belong together say group=patient_id, or"
    )
    assert warnings_of(data.read(path)) == [f"{text} group=none"]
    assert not warnings_of(data.read(f"{path}(group=none)"))
    assert not warnings_of(data.read(f"{path}(site=patient_id)"))  # each patient is a client
    assert not warnings_of(data.read(table(tmp_path / "other.csv", "street")))
    settings = {"skew": "iid", "clients": 2, "rounds": 1, "model": "mlp", "progress": False}
    with pytest.warns(UserWarning, match=text) as shown:
        unskew.run("fedavg", path, **settings)
    assert shown[0].filename == __file__


@pytest.mark.parametrize("column", ["patient", "subject", "speaker", "Patientennummer", "subj_code", "case"])
def test_patients_in_files_of_sites_are_asked_about_and_stay_together(tmp_path, column):
    """Patients are groups within the sites, no rivals of the files' names, as hospitals are."""
    for site, rows in (("north", range(40)), ("south", range(40, 80))):
        lines = [f"{NAMES[i]},{','.join(map(str, X[i]))},{Y[i]}" for i in rows]
        (tmp_path / f"{site}.csv").write_text("\n".join([f"{column},a,b,c,label", *lines, ""]))
    asked = data.read(tmp_path)
    assert any(f"80 rows have 20 different values in '{column}'" in text for text in warnings_of(asked))
    assert_apart(data.read(f"{tmp_path}(group={column})"))


def test_a_given_split_that_divides_patients_is_reported_with_its_numbers(tmp_path):
    """Every fourth row of the first fifteen patients is a test row, and none of the others."""
    divides = np.where((np.arange(len(Y)) % VISITS == 3) & (PATIENT < 15), "test", "train")
    path = table(tmp_path / "bad.csv", split=divides)
    assert warnings_of(data.read(path)) == [
        "80 rows have 20 different values in 'patient', and 15 of 15 test rows have one that is trained on; if"
        " they belong together say group=patient, or group=none"
    ]
    (warning,) = warnings_of(data.read(f"{path}(group=patient)"))
    assert warning.startswith("15 of 15 test samples are of groups that are also trained on ('patient')")
    whole = table(tmp_path / "good.csv", split=np.where(PATIENT < 4, "test", "train"))
    assert warnings_of(data.read(whole)) == [
        "64 training rows have 16 different values in 'patient'; if they belong together say group=patient,"
        " or group=none"
    ]
    assert not warnings_of(data.read(f"{whole}(group=none)"))
    assert not warnings_of(data.read(f"{whole}(group=patient)"))


@pytest.mark.parametrize("lists", [False, True])
def test_parquet_is_divided_by_patient(tmp_path, lists):
    columns = {"patient": ("string", NAMES.tolist()), "label": ("int64", Y.tolist())}
    if lists:
        columns["x"] = ("list<element: double>", X.tolist())
    else:
        columns |= {name: ("double", X[:, i].tolist()) for i, name in enumerate("abc")}
    arrow.write(tmp_path / "visits.parquet", columns)
    assert warnings_of(data.read(tmp_path / "visits.parquet"))
    assert_apart(data.read(f"{tmp_path}/visits.parquet(group=patient)"))


def test_an_archive_names_its_groups(tmp_path):
    for name, option in (("group", ""), ("groups", ""), ("who", "(group=who)")):
        np.savez(tmp_path / "a.npz", x=X, y=Y, **{name: NAMES})
        assert_apart(data.read(f"{tmp_path}/a.npz{option}"))
    np.savez(tmp_path / "a.npz", x=X, y=Y, groups=NAMES)
    assert not data.read(f"{tmp_path}/a.npz(group=none)").group_column


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("{patient}_{slice}.png", "P[0-9]+"),
        ("scan-{slice}-of-{patient}.png", "of-(P[0-9]+)"),
    ],
)
def test_files_are_divided_by_a_pattern_of_their_names(tmp_path, name, pattern):
    pictures(tmp_path / "scans", name)
    assert_apart(data.read(f"{tmp_path}/scans(size=8,group='{pattern}')"), brightness)


def assert_asked(text, value):
    """The set has one question, which shows this value, and its answer keeps patients apart."""
    (question,) = warnings_of(data.read(f"{text}(size=8)"))
    assert f"80 files have 20 different {value}; if they belong together say group=" in question
    choice = question.partition("say group=")[2].partition(", or group=none")[0]
    assert_apart(data.read(f"{text}(size=8,group={choice})"), brightness)
    assert not warnings_of(data.read(f"{text}(size=8,group=none)"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("{patient}_{slice}.png", "parts of their names, such as 'P01'"),
        ("{level}_of_{patient}.png", "parts of their names, such as 'of_P05'"),  # of which one has one class
        ("{patient}/{slice}.png", "folders, such as 'P01'"),
        ("{patient}S{slice}.png", "parts of their names, such as 'P01'"),
        ("scan{slice}of{patient}.png", "parts of their names, such as 'ofP01'"),
    ],
)
def test_folders_and_numbers_in_names_are_asked_about(tmp_path, name, value):
    pictures(tmp_path / "scans", name)
    assert_asked(tmp_path / "scans", value)


def test_files_of_training_are_asked_about_beside_a_test_set_of_other_patients():
    """Of patients with a single file of training, nothing is asked."""
    paths, test = [f"a/{name}_{i % VISITS}.png" for i, name in enumerate(NAMES)], PATIENT < 6
    ((_, question),) = file_question(paths, Y, test)
    assert question.startswith("56 training files have 14 different parts of their names")
    once = test | SPLIT
    assert not file_question([p for p, kept in zip(paths, once) if kept], Y[once], test[once])


def test_random_names_and_names_of_cameras_are_not_asked_about():
    r = np.random.default_rng(0)
    for names in (
        [r.bytes(8).hex() for _ in range(200)],
        [f"IMG_{i:04}" for i in range(200)],
        [f"DSC{i:05}" for i in range(200)],
        [f"img{i}_32x32" for i in range(200)],
    ):
        assert not file_question([f"a/{name}.png" for name in names], np.arange(200) % 2, None)


def test_where_no_class_decides_all_numbers_are_named():
    paths = [f"images/slice{v}_patient{p:02}.png" for p in range(40) for v in range(6)]
    ((_, question),) = file_question(paths, np.zeros((240, 8, 8)), None)
    assert "240 files have 40 different parts of their names, such as 'patient00'" in question
    assert "say group='patient[0-9]+' or group='slice[0-9]+', or group=none" in question


@pytest.mark.parametrize("place", ["{kind}/{patient}", "{site}/{kind}/{patient}"])
def test_folders_of_images_with_masks_are_asked_about(tmp_path, place):
    for i, patient in enumerate(PATIENT.tolist()):
        pixels = np.full((8, 8, 3), 10 * patient, np.uint8)
        pixels[0, 1] = i
        for kind, values in (("images", pixels), ("masks", np.eye(8, dtype=np.uint8) * 255)):
            path = tmp_path / place.format(kind=kind, patient=NAMES[i], site="ab"[patient % 2])
            path.mkdir(parents=True, exist_ok=True)
            Image.fromarray(values).save(path / f"{i % VISITS}.png")
    assert_asked(tmp_path, "folders, such as 'P00'")


def test_a_column_of_too_many_words_for_a_feature_is_asked_about(tmp_path):
    """It is left out, so only an answer can keep its rows together; numbers and sites are no such words."""
    codes = [f"U{i // 2:02}" for i in range(80)]
    for name, cells in (("USUBJID", codes), ("hospital", codes), ("age", [f"{i // 2}.5" for i in range(80)])):
        lines = [f"{cell},{','.join(map(str, x))},{y}" for cell, x, y in zip(cells, X.tolist(), Y)]
        (tmp_path / f"{name}.csv").write_text("\n".join([f"{name},a,b,c,label", *lines, ""]))
    text = "80 rows have 40 different values in 'USUBJID'; if they belong together say group=USUBJID, or"
    assert warnings_of(data.read(tmp_path / "USUBJID.csv")) == [f"{text} group=none"]
    for text in ("USUBJID.csv(group=none)", "USUBJID.csv(site=USUBJID)", "hospital.csv", "age.csv"):
        assert not warnings_of(data.read(f"{tmp_path}/{text}"))
    frame = Frame({name: X[:, i] for i, name in enumerate("abc")} | {"label": Y, "rec": np.array(codes)})
    for given in (frame, {"a": frame, "b": frame}, KeyedSamples(codes)):
        assert [text for text in warnings_of(take(given)) if "40 different values in 'rec'" in text]
    assert warnings_of(data.arrays(X, Y, columns={"rec": codes}))


def numbered(seed=0):
    """150 visits of 50 patients, shuffled: a number and the sex of the patient, and measurements."""
    r = np.random.default_rng(seed)
    patient = r.permutation(np.repeat(np.arange(50), 3))
    nr, sex = r.permutation(9000)[:50] + 1000, r.integers(0, 2, 50)
    age = r.integers(18, 90, 150)
    return {"age": age, "decade": age // 10, "pulse": r.normal(70, 9, 150).round()}, {
        "nr": nr[patient],
        "sex": np.array(["f", "m"])[sex[patient]],
        "sick": r.integers(0, 2, 150),
    }


def test_numbers_that_identify_patients_are_asked_about(tmp_path):
    """The sex is the same in all rows of a number; without it `nr` is a measurement as any other. The decade
    of an age is the same, too, but follows from its size."""
    measured, of_patient = numbered()
    for sex in (True, False):
        columns = measured | {n: v for n, v in of_patient.items() if sex or n != "sex"}
        lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values()))]
        (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
        text = (
            "150 rows have 50 different values in 'nr'; if they belong together say group=nr, or group=none"
        )
        for given in (f"{tmp_path}/t.csv(label=sick)", Frame(columns)):
            read = take(given, label="" if isinstance(given, str) else "sick")
            assert [t for t in warnings_of(read) if "group=" in t] == [text] * sex


class NumberedSamples:
    """Samples with the columns of a table."""

    def __init__(self, columns):
        self.columns = columns

    def __len__(self):
        return len(self.columns["nr"])

    def __getitem__(self, i):
        return {"x": X[i % 80], "label": i % 2, **{name: v[i] for name, v in self.columns.items()}}


@pytest.mark.parametrize("sex", [True, False])
def test_numbers_that_identify_patients_are_asked_about_without_a_table(sex, tmp_path):
    measured, of_patient = numbered()
    columns = measured | {"nr": of_patient["nr"]} | ({"sex": of_patient["sex"]} if sex else {})
    x, y = np.resize(X, (150, 3)), np.arange(150) % 2
    np.savez(tmp_path / "t.npz", x=x, y=y, **columns)
    text = "150 rows have 50 different values in 'nr'; if they belong together say group=nr, or group=none"
    for given in (tmp_path / "t.npz", data.arrays(x, y, columns=columns), NumberedSamples(columns)):
        assert [t for t in warnings_of(take(given)) if "group=" in t] == [text] * sex


@pytest.mark.parametrize("seed", range(3))
def test_measurements_in_whole_numbers_are_not_asked_about(seed):
    measured, of_patient = numbered(seed)
    table = measured | {"sick": of_patient["sick"]}
    assert not number_ids(table, table)


@pytest.mark.parametrize("sides", ["LR", ["left", "right"]])
def test_sides_after_the_number_of_a_patient_are_asked_about(sides):
    paths = [f"{'ab'[p % 2]}/{p:03}{side}.png" for p in range(30) for side in sides]
    ((_, question),) = file_question(paths, np.repeat(np.arange(30) % 2, 2), None)
    assert "60 files have 30 different parts of their names, such as '000'" in question
    assert "say group='[0-9]+'" in question
    assert not file_question([f"a/{p:03}L.png" for p in range(60)], np.arange(60) % 2, None)


def test_a_set_is_printed_in_a_few_lines():
    """With its samples, what is predicted, its sites and its groups; it was the arrays with all notes."""
    site = np.repeat(["north", "south"], 40)
    given = data.arrays(X, Y, classes=["well", "ill"], columns={"site": site, "who": NAMES}, group="who")
    lines = repr(given).split("\n ")
    assert lines[0] == "<Dataset 'arrays': 64 training and 16 test samples"
    assert lines[1:4] == ["each     3 numbers", "classes  2: well, ill", "column   'site', 2 values"]
    assert lines[4] == "groups   'who', 16 values>"
    dealt = unskew.run("fedavg", given, skew="column:site", rounds=1, epochs=1, workers=1).federation
    assert "2 with 64 training samples, divided by column:site" in repr(dealt)
    inputs = {"scan": np.zeros((80, 1, 8, 8)), "age": X[:, 0]}
    assert "age float32 number, scan float32 [1, 8, 8]" in repr(data.arrays(inputs, Y))
    many = data.arrays(X, np.arange(80) % 40, classes=[f"c{i}" for i in range(40)])
    assert "40: c0, c1" in repr(many)
    assert len(repr(many)) < 300


@pytest.mark.parametrize("several", [False, True])
def test_the_index_of_a_frame_is_asked_about_and_may_be_the_groups(several):
    levels = FrameLevels(patient=PATIENT, visit=np.arange(80) % 4) if several else FrameIndex(NAMES)
    frame = Frame({name: values for name, values in FRAME.items() if name != "patient"})
    frame.index = levels
    features = Frame({name: values for name, values in frame.items() if name != "label"})
    features.index = levels
    for given in (frame, (features, Y), {"one": frame}):
        (question,) = warnings_of(take(given))
        assert question.startswith("80 rows have 20 different values in 'patient'; if they belong together")
        dataset = take(given, group="patient")
        assert_apart(dataset, lambda x: patients_of(x[:, np.argsort(x[0])]))
        assert dataset.x.shape[1] == 3


@pytest.mark.parametrize("masks", [False, True])
def test_files_that_a_table_lists_and_masks_have_groups(tmp_path, masks):
    root = tmp_path / "scans"
    (root / "images").mkdir(parents=True)
    lines = ["file,patient,label"]
    for i, patient in enumerate(PATIENT.tolist()):
        name = f"{i:03}_{NAMES[i]}.png"
        pixels = np.full((8, 8, 3), 10 * patient, np.uint8)
        pixels[0, 1] = i
        Image.fromarray(pixels).save(root / "images" / name)
        lines.append(f"{name},{NAMES[i]},{'ill' if Y[i] else 'well'}")
        if masks:
            (root / "masks").mkdir(exist_ok=True)
            Image.fromarray(np.eye(8, dtype=np.uint8) * 255).save(root / "masks" / name)
    if not masks:
        (root / "list.csv").write_text("\n".join(lines) + "\n")
        assert "80 rows have 20 different values in 'patient'" in warnings_of(data.read(f"{root}(size=8)"))[0]
    group = "'P[0-9]+'" if masks else "patient"
    assert_apart(data.read(f"{root}(size=8,group={group})"), brightness)


class Samples:
    """A set whose samples are dictionaries."""

    def __len__(self):
        return len(Y)

    def __getitem__(self, i):
        return {"x": X[i], "label": int(Y[i]), "patient": NAMES[i]}


class KeyedSamples(Samples):
    """Samples with a code."""

    def __init__(self, codes):
        self.codes = codes

    def __getitem__(self, i):
        return {"x": X[i], "label": int(Y[i]), "rec": self.codes[i]}


class FrameIndex(list):
    """The part of pandas' Index that is read: one level, or several by name."""

    name = "patient"


class FrameLevels(dict):
    """The part of pandas' MultiIndex that is read."""

    names = property(list)

    def get_level_values(self, i):
        return list(self.values())[i]


class Frame(dict):
    """The part of a DataFrame that is read."""

    iloc = index = None

    @property
    def columns(self):
        return list(self)

    def __len__(self):
        return len(Y)


FRAME = Frame(label=Y, patient=NAMES, **{name: X[:, i] for i, name in enumerate("abc")})


@pytest.mark.parametrize(
    ("given", "group"),
    [
        ((X, Y), NAMES),
        ((X, Y), PATIENT.tolist()),
        (Samples(), "patient"),
        (Samples(), NAMES),
        (Frame({k: v for k, v in FRAME.items() if k != "patient"}), NAMES),
        (FRAME, "patient"),
        ((Frame({k: v for k, v in FRAME.items() if k != "label"}), Y), "patient"),
    ],
)
def test_python_objects_are_divided_by_patient(given, group):
    dataset = take(given, group=group)
    assert dataset.x.shape[1:] == (3,)
    order = np.argsort(dataset.x[0])  # the columns of frames need not be in order
    assert_apart(dataset, lambda x: patients_of(x[:, order]))


def test_groups_that_do_not_fit_are_refused(tmp_path):
    path = table(tmp_path / "visits.csv")
    pictures(tmp_path / "scans", "{patient}_{slice}.png")
    for given, group, text in (
        ((X, Y), PATIENT[1:], r"E403 .*\[79\] for 80 samples"),
        ((X, Y), "patient", "E403 .*names a column, and these samples have none"),
        (FRAME, PATIENT[1:], r"E403 .*80 rows, and .*\[79\]"),
        (Frame({**FRAME, "group": Y}), PATIENT, "E403 .*column 'group' is in the table, too"),
        (path, "patients", "E403 .*no column 'patients'.*'patient'"),
        (path, PATIENT, "E403 .*data are a path"),
        (f"{tmp_path}/scans(size=8)", "person", "E404 .*found in no part of P01_0.png .80 such files"),
        (f"{tmp_path}/scans(size=8)", "P", "E404 .*names of all files have it"),
        (f"{tmp_path}/scans(size=8)", "P(", "E125 .*regular expression"),
        (take((X, Y)), PATIENT, "E403 .*divided already"),
        ([(X, Y), (X, Y)], PATIENT, "E403 .*each client"),
    ):
        with pytest.raises((DataError, UsageError), match=text):
            take(given, group=group)
    assert not take((X, Y), group="none").group_column


def test_a_patient_at_two_clients_is_one():
    (question,) = warnings_of(take({"a": FRAME, "b": FRAME}))  # one for all clients
    assert question.startswith("160 rows have 20 different values in 'patient'")
    dataset = take({"a": FRAME, "b": FRAME}, group="patient")
    assert len(np.unique(dataset.columns["patient"])) + len(np.unique(dataset.test_columns["patient"])) == 20
    assert not {*dataset.columns["patient"].tolist()} & {*dataset.test_columns["patient"].tolist()}
    assert not patients_of(dataset.x) & patients_of(dataset.x_test)


@pytest.mark.parametrize("skew", ["iid", "dirichlet:0.5", "classes:1", "pathological:1"])
@pytest.mark.parametrize("samples", [None, 8])
def test_a_group_is_at_one_client(skew, samples):
    dataset = take((X, Y), group=NAMES)
    rngs = np.random.default_rng(0), np.random.default_rng(1)
    federation = data.build(dataset, skew, 4, *rngs, samples=samples, validation=0.3)
    held = [set(federation.group_ids[[*train, *val]]) for train, val in zip(federation.train, federation.val)]
    assert sum(map(len, held)) == len(set.union(*held)) == (8 if samples else 16)
    for train, val in zip(federation.train, federation.val):
        assert not set(federation.group_ids[train]) & set(federation.group_ids[val])
    assert samples or federation.val.sizes.any()


@pytest.mark.parametrize("alone", [False, True])
def test_a_group_of_several_clients_is_validated_at_all_or_none(alone):
    """Each patient has a visit at each of four sites; a site of a single patient still trains."""
    site = np.where(alone & (PATIENT > 0) & (np.arange(80) % 4 == 3), 2, np.arange(80) % 4)
    columns = {"site": site, "who": PATIENT}
    for seed in range(10):
        rngs = np.random.default_rng(seed), np.random.default_rng(1)
        federation = data.build(
            data.arrays(
                X,
                Y,
                X[:0],
                Y[:0],
                columns=columns,
                test_columns={n: v[:0] for n, v in columns.items()},
                group="who",
            ),
            "column:site",
            4,
            *rngs,
            validation=0.3,
        )
        own = [set(federation.group_ids[part.rows]) for part in (federation.train, federation.val)]
        assert not own[0] & own[1]
        assert federation.train.sizes.all()
        assert own[1]


def test_groups_are_saved_with_a_set_and_named_in_settings(tmp_path):
    dataset = take((X, Y), group=NAMES)
    save_dataset(dataset, tmp_path / "data.npz")
    again = data.read(tmp_path / "data.npz")
    assert again.group_column == "group"
    assert_apart(again)
    with pytest.raises(UsageError, match=r"E109 .*; leave out group, layout"):
        data.read(tmp_path / "data.npz", group="site", layout="channels last")
    text = settings_of(table(tmp_path / "visits.csv"), "label", group="patient")[1]["data"]
    assert text == f"{tmp_path}/visits.csv(label=label, group=patient)"
    result = unskew.run(
        "fedavg", text, name="r", folder=tmp_path, clients=2, rounds=1, model="mlp", progress=False
    )
    assert result.settings.data == text
    again = unskew.resume(tmp_path / "r", progress=False)
    assert again.federation.group_column == "patient"


def test_attacks_do_not_mix_the_samples_of_a_group(tmp_path, monkeypatch):
    """Non-members are of patients that no client holds, a shadow has all candidates of a patient or none, and
    of a patient one sample is a canary."""
    patients = np.repeat(np.arange(200), 4)
    x = np.random.default_rng(0).random((800, 3)).astype(np.float32)
    np.savez(tmp_path / "a.npz", x=x, y=patients % 2, group=patients)
    settings = {"skew": "iid", "clients": 2, "samples": 100, "rounds": 1, "epochs": 1, "model": "mlp"}
    unskew.run("fedavg", tmp_path / "a.npz", name="r", folder=tmp_path, progress=False, **settings)
    target = TargetRun(tmp_path / "r")
    federation = target.run.federation
    first = replace(federation, train=Index.of([np.arange(0, 202), np.arange(202, 402)]))  # ends in a patient
    own = auxiliary_samples.unseen(first, torch.zeros(0, 3), 0)
    assert own.name == "training samples that no client holds"
    assert not {*first.group_ids[first.train.rows]} & {*own.groups}

    drawn, sure = [], []
    halves, confident = shadows.halves, Audit._sure

    def noted_halves(*given):
        drawn.append((halves(*given), given[3]))
        return drawn[-1][0]

    monkeypatch.setattr(shadows, "halves", noted_halves)
    Membership(shadows=4, clients=0, samples=60, passes=1).attempt(target, 0)
    ((inside, groups),) = drawn
    assert len(np.unique(groups)) < len(groups)
    for group in np.unique(groups):
        assert len(np.unique(inside[:, groups == group], axis=1).T) == 1
    assert (inside.sum(0) == 2).all()

    monkeypatch.setattr(Audit, "_sure", lambda *given: sure.append(given[3]) or confident(*given))
    Audit(samples=30).attempt(target, 0)
    target.close()
    assert len(sure[0]) == len({*federation.group_ids[sure[0]]}) == 30


def test_non_members_of_a_test_set_are_of_groups_that_no_client_holds():
    """Each of the first 60 patients is in both sets, the other 60 in the test set alone."""
    patients, seen = np.repeat(np.arange(120), 2), np.arange(120) % 2 == 0
    x, y = np.random.default_rng(0).random((240, 3)).astype(np.float32), patients % 2
    train = np.flatnonzero((patients < 60) & np.tile(seen, 2))
    test = np.setdiff1d(np.arange(240), train)
    sets = x[train], y[train], x[test], y[test]
    columns = {"columns": {"patient": patients[train]}, "test_columns": {"patient": patients[test]}}
    dataset = data.arrays(*sets, **columns, group="patient")
    first = data.build(dataset, "iid", 1, np.random.default_rng(0), np.random.default_rng(1))
    several = replace(first, skew="sites")  # whose samples look otherwise at each client
    for own in (
        auxiliary_samples.unseen(first, torch.zeros(0, 3), 0),
        auxiliary_samples.like_those_of(several, 0, torch.zeros(0, 3), 0),
    ):
        assert {*own.groups} == set(range(60, 120))


SPLIT = np.arange(len(Y)) % VISITS == 0
"""The first visit of every patient."""


def part(rows, patient=NAMES, key="patient"):
    return Frame({key: patient[rows], "label": Y[rows], **{n: X[rows, i] for i, n in enumerate("abc")}})


class KeyedPart:
    """Samples that are dictionaries."""

    def __init__(self, rows, patient=NAMES):
        self.rows, self.patient = np.flatnonzero(rows), patient

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i]
        return {"x": X[row], "label": int(Y[row]), "patient": self.patient[row]}


@pytest.mark.parametrize("made", [part, KeyedPart])
def test_groups_of_a_test_set_for_all_clients_are_compared(made):
    """Half the patients are at each client, and all are in the test set."""
    sets = [made(~SPLIT & (PATIENT < 10)), made(~SPLIT & (PATIENT >= 10))]
    (warning,) = warnings_of(take((sets, made(SPLIT)), group="patient"))
    assert warning.startswith("20 of 20 test samples are of groups that are also trained on ('patient')")
    whole = [made(PATIENT < 8), made((PATIENT >= 8) & (PATIENT < 16))]
    dataset = take((whole, made(PATIENT >= 16)), group="patient")
    assert not warnings_of(dataset)
    assert ("note", "64 samples of 16 groups ('patient'), which no split divides") in dataset.intake.notes


def test_visits_in_both_parts_of_a_set_are_asked_about_together():
    """Each patient has one visit in each part; in one part alone, none repeats."""
    once = KeyedPart(SPLIT), KeyedPart(np.arange(80) % VISITS == 1)
    for given in (once, dict(zip(("train", "test"), once))):
        (question,) = warnings_of(take(given))
        assert "40 rows have 20 different values in 'patient', and 20 of 20 test rows have one" in question
        assert not warnings_of(take(given, group="none"))
    apart = KeyedPart(PATIENT < 10), KeyedPart(SPLIT & (PATIENT >= 10))
    (question,) = warnings_of(take(apart))
    assert question.startswith("40 training rows have 10 different values in 'patient'")


@pytest.mark.parametrize("second", [NAMES, PATIENT, PATIENT.astype(float)], ids=["words", "ints", "floats"])
@pytest.mark.parametrize("source", ["frames", "items", "files"])
def test_a_patient_at_two_clients_is_on_one_side(tmp_path, source, second):
    first = NAMES if second is NAMES else PATIENT.astype(str)
    made = KeyedPart if source == "items" else part
    sets = {"north": made(SPLIT, first), "south": made(~SPLIT, second)}
    if source == "files":
        for name, frame in sets.items():
            rows = zip(*(values.tolist() for values in frame.values()))
            lines = [",".join(frame), *(",".join(map(str, row)) for row in rows)]
            (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
        sets = {name: tmp_path / f"{name}.csv" for name in sets}
    dataset = take(sets, label="label" if source == "frames" else "", group="patient")
    assert not patients_of(np.sort(dataset.x)) & patients_of(np.sort(dataset.x_test))
    assert len(dataset.y_test) == 16


@pytest.mark.parametrize("spelling", ["{}", "{}.0", "{:04}", "+{}"])
def test_a_group_has_one_spelling(tmp_path, spelling):
    """Within a file, and in train.csv and test.csv."""
    codes = [(spelling if SPLIT[i] else "{}").format(100 + p) for i, p in enumerate(PATIENT.tolist())]
    head = "patient,a,b,c,label"
    lines = [",".join(map(str, (code, *x, y))) for code, x, y in zip(codes, X.tolist(), Y.tolist())]
    (tmp_path / "one.csv").write_text("\n".join([head, *lines]) + "\n")
    assert "80 rows have 20 different values in 'patient'" in warnings_of(data.read(tmp_path / "one.csv"))[0]
    assert_apart(data.read(f"{tmp_path}/one.csv(group=patient)"))
    (tmp_path / "set").mkdir()
    for name, rows in (("train", ~SPLIT), ("test", SPLIT)):
        text = "\n".join([head, *(line for line, of_part in zip(lines, rows) if of_part)])
        (tmp_path / f"set/{name}.csv").write_text(text + "\n")
    assert "20 of 20 test rows have one that is trained on" in warnings_of(data.read(tmp_path / "set"))[0]
    assert (
        "20 of 20 test samples are of groups" in warnings_of(data.read(f"{tmp_path}/set(group=patient)"))[0]
    )


def test_a_test_set_without_groups_is_not_said_to_be_apart(tmp_path):
    parts = X[~SPLIT], Y[~SPLIT], X[SPLIT], Y[SPLIT]
    np.savez(
        tmp_path / "a.npz",
        **dict(zip(("x_train", "y_train", "x_test", "y_test"), parts)),
        who_train=NAMES[~SPLIT],
    )
    for dataset in (data.arrays(*parts, group=NAMES[~SPLIT]), data.read(f"{tmp_path}/a.npz(group=who)")):
        (warning,) = warnings_of(dataset)
        assert "the groups of the test samples are not given" in warning
        assert not any("no split divides" in text for _, text in dataset.intake.notes)


def table_of(tmp_path, key, values):
    names = [key, *"abc", "label"]
    lines = [",".join(map(str, (v, *x, y))) for v, x, y in zip(values.tolist(), X.tolist(), Y.tolist())]
    (tmp_path / "t.csv").write_text("\n".join([",".join(names), *lines]) + "\n")
    return tmp_path / "t.csv"


def archive_of(tmp_path, key, values):
    np.savez(tmp_path / "t.npz", x=X, y=Y, **{key: values})
    return tmp_path / "t.npz"


def archive_of_columns(tmp_path, key, values):
    return archive_of(tmp_path, key, values[:, None])


def archive_of_parts(tmp_path, key, values):
    facts = {f"train_{key}": values[SPLIT], f"test_{key}": values[~SPLIT]}
    facts |= {"x_train": X[SPLIT], "y_train": Y[SPLIT], "x_test": X[~SPLIT], "y_test": Y[~SPLIT]}
    np.savez(tmp_path / "t.npz", **facts)
    return tmp_path / "t.npz"


def parquet_of(tmp_path, key, values):
    form = {"i": "int64", "f": "double"}.get(values.dtype.kind, "string")
    columns = {key: (form, values.tolist()), "label": ("int64", Y.tolist())}
    arrow.write(
        tmp_path / "t.parquet", columns | {n: ("double", X[:, i].tolist()) for i, n in enumerate("abc")}
    )
    return tmp_path / "t.parquet"


READERS = {
    "table": table_of,
    "archive": archive_of,
    "archive [N, 1]": archive_of_columns,
    "archive of parts": archive_of_parts,
    "Parquet": parquet_of,
    "frame": lambda _, key, values: part(slice(None), values, key),
    "frame and labels": lambda _, key, values: (
        Frame({n: v for n, v in part(slice(None), values, key).items() if n != "label"}),
        Y,
    ),
    "frames of parts": lambda _, key, values: (part(SPLIT, values, key), part(~SPLIT, values, key)),
    "frames of clients": lambda _, key, values: {
        "n": part(PATIENT < 9, values, key),
        "s": part(PATIENT > 8, values, key),
    },
    "items": lambda _, key, values: KeyedItems(key, values),
    "columns": lambda _, key, values: data.arrays(X, Y, columns={key: values}),
}


class KeyedItems(Samples):
    """Samples with a key of this name."""

    def __init__(self, key, values):
        self.key, self.values = key, values

    def __getitem__(self, i):
        return {"x": X[i], "label": int(Y[i]), self.key: self.values[i]}


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_asks_about_ids_by_their_names(reader, tmp_path):
    """Words and whole numbers, also as floats; measurements are no ids."""
    wide = np.random.default_rng(1).permutation(1000)[PATIENT]  # a patient's label says nothing of its size
    for key, values in (
        ("patient_id", wide.astype(float)),
        ("patients", wide),
        ("pids", NAMES),
        ("PatientenNr", wide),
        ("patientnr", wide.astype(float)),
    ):
        (question, *_) = [
            t for t in warnings_of(take(READERS[reader](tmp_path, key, values))) if "group=" in t
        ]
        assert f"80 rows have 20 different values in '{key}'" in question
    for key, values in (("patient_weight", X[:, 0]), ("height", X[:, 1])):
        assert not [t for t in warnings_of(take(READERS[reader](tmp_path, key, values))) if "group=" in t]


def tables(folder, name):
    """A file for each patient and half of its visits, of both classes."""
    folder.mkdir()
    for p in range(PATIENTS):
        for s in range(2):
            lines = [
                f"{','.join(map(str, x))},{i % 2}" for i, x in enumerate(X[p == PATIENT][2 * s : 2 * s + 2])
            ]
            (folder / name.format(p=p, s=s)).write_text("\n".join(["a,b,c,label", *lines]) + "\n")
    return folder


@pytest.mark.parametrize(
    ("name", "question"),
    [
        ("S{p:02}_session{s}.csv", "80 rows have 40 different files, such as 'S00_session0'"),
        ("patient{p}x{s}.csv", "80 rows have 40 different files, such as 'patient0x0'"),
        ("hospital{p}_{s}.csv", ""),
        ("client_{p}{s}.csv", ""),
        ("{p}{s}.csv", ""),
    ],
)
def test_names_of_tables_that_look_like_patients_are_asked_about(tmp_path, name, question):
    warnings = warnings_of(data.read(tables(tmp_path / "t", name)))
    assert [question in text for text in warnings] == ([True] if question else [])
    if "_session" in name:
        assert "say group=site or group='S[0-9]+', or group=none" in warnings[0]
        dataset = data.read(f"{tmp_path}/t(group='S[0-9]+')")
        assert_apart(dataset)
        assert len(dataset.labels["group"]) == PATIENTS
    assert not warnings_of(data.read(f"{tmp_path}/t(group=none)"))


def test_paths_in_parquet_are_asked_about_and_found_by_a_pattern(tmp_path):
    pictures(tmp_path / "scans", "{patient}_{slice}.png")
    files = sorted((tmp_path / "scans").rglob("*.png"))
    cells = [{"bytes": file.read_bytes(), "path": file.name} for file in files]
    columns = {"image": ("struct", cells), "label": ("string", [file.parent.name for file in files])}
    arrow.write(tmp_path / "t.parquet", columns)
    (question,) = warnings_of(data.read(f"{tmp_path}/t.parquet(size=8)"))
    assert "80 files have 20 different parts of their names, such as 'P01'" in question
    assert_apart(data.read(f"{tmp_path}/t.parquet(size=8,group='P[0-9]+')"), brightness)


@pytest.mark.parametrize("name", ["patient_{:03}", "part-{:03}", "{:04}"])
def test_parquet_files_of_patients_are_asked_about(tmp_path, name):
    for p in range(PATIENTS):
        columns = {n: ("double", X[p == PATIENT, i].tolist()) for i, n in enumerate("abc")}
        columns["label"] = ("int64", [0, 1, 0, 1])
        arrow.write(tmp_path / "t" / f"{name.format(p)}.parquet", columns)
    warnings = warnings_of(data.read(tmp_path / "t"))
    assert ["20 different files, such as 'patient_000'" in text for text in warnings] == [
        True
    ] * name.startswith("patient")
    if warnings:
        assert_apart(data.read(f"{tmp_path}/t(group='patient_[0-9]+')"))


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("BraTS-GLI-{p:05}-{v:03}/BraTS-GLI-{p:05}-{v:03}-t1n.nii.gz", "BraTS-GLI-00000"),
        ("{site}/P{p:02}_v{v}/P{p:02}_v{v}.nii.gz", "P00"),
        ("P{p:02}_v{v}/scan.nii.gz", "P00"),
    ],
)
def test_folders_that_are_named_as_their_files_are_asked_about(name, number):
    visits = [(p, v) for p in range(12) for v in range(3)]
    paths = [name.format(p=p, v=v, site="ab"[p % 2]) for p, v in visits]
    stems = [path.split("/")[-2] for path in paths]
    ((_, question),) = file_question(paths, np.zeros((36, 0)), None, stems=stems)
    assert f"36 files have 12 different parts of their names, such as '{number}'" in question
