"""Byte records in the store, and sources of data that is not text."""

import dataclasses
import itertools

import numpy as np
import pytest

from tests.data.stores import change, contents, flip, refuse
from transformer_jax import config as configs
from transformer_jax import records
from transformer_jax.config import UserError
from transformer_jax.contracts.source import Source
from transformer_jax.data import store
from transformer_jax.data.store import Record

pytestmark = pytest.mark.usefixtures("small_shards")

CONTENTS = [bytes(range(n)) for n in (0, 3, 200, 1, 0, 77)]


def made():
    for number, content in enumerate(CONTENTS):
        yield Record(content, {"label": number % 3, "width": -len(content)})


def build(cache, read=made, rebuild=False):
    return store.build_records(str(cache), "records", {"key": 1}, read, rebuild=rebuild)


def assert_all(stored):
    assert len(stored) == len(CONTENTS)
    order = [5, 0, 2, 2, 4, 1, 3]
    assert [content.tobytes() for content in stored.read(order)] == [CONTENTS[i] for i in order]
    assert stored.array("label").tolist() == [0, 1, 2, 0, 1, 2]
    assert stored.array("width").tolist() == [-len(content) for content in CONTENTS]


def test_records_are_read_at_random_and_built_once(cache):
    assert_all(build(cache))
    assert_all(build(cache, read=refuse))


@pytest.mark.parametrize(
    "damage",
    [
        ("00000/bytes/c/0", flip(20)),
        ("00000/number.label/c/0", flip(1)),
        ("00000/offsets/c/0", None),
    ],
)
def test_damage_is_named_and_mended(tmp_path, damage):
    build(tmp_path)
    (path,) = tmp_path.glob("records-*")
    file, how = damage
    change(path, file, how or (lambda content: None), None)
    with pytest.raises(store.DamagedStore, match=f"{path} is damaged.*data.rebuild=true"):
        assert_all(build(tmp_path, read=refuse))
    assert_all(build(tmp_path, rebuild=True))


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(store, "_BLOCK_RECORDS", 1)
    monkeypatch.setattr(store, "_PART_BYTES", 100)


def test_an_interrupted_build_continues(tmp_path, monkeypatch, small_parts):
    asked = []

    def stopping():
        yield from itertools.islice(made(), 4)
        raise KeyboardInterrupt

    def watched():
        for record in made():
            asked.append(record)
            yield record

    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, read=stopping)
    assert not list(tmp_path.glob("records-*/store.json"))
    written = []
    monkeypatch.setattr(
        store.Writer,
        "append",
        lambda self, values, append=store.Writer.append: written.append(append(self, values)),
    )
    assert_all(build(tmp_path, read=watched))
    # The first process completed the part of the first three records.
    assert len(written) == 3 and len(asked) == len(CONTENTS)
    assert_all(build(tmp_path / "straight"))
    straight, continued = (
        next(folder.glob("records-*")) for folder in (tmp_path / "straight", tmp_path)
    )
    assert contents(straight) == contents(continued)


@pytest.mark.parametrize(
    "read, message",
    [
        (lambda: iter(()), "the source has no records"),
        (
            lambda: iter([Record(b"a", {"label": 1}), Record(b"b")]),
            r"record 1 of the source has the numbers \[\]: the records before it have \['label'\]",
        ),
    ],
)
def test_records_that_cannot_be_stored_are_refused(read, message, tmp_path):
    with pytest.raises(UserError, match=message):
        build(tmp_path, read=read)
    assert not list(tmp_path.glob("records-*/store.json"))


GUEST = '''
"""Numbers."""
import dataclasses
import numpy as np
from transformer_jax.contracts.source import Source
from transformer_jax.data.store import Record


def helper():
    pass


@dataclasses.dataclass
class Numbers(Source):
    """Counts up."""

    count: int = 6  # records of a split
    step: float = 1.0  # between two numbers

    def fingerprint(self, split):
        return {"count": self.count} if split == "train" else None

    def read(self, split):
        for number in range(self.count):
            yield Record(np.int32(number * self.step).tobytes(), {"label": number % 2})
'''


@pytest.fixture
def guest(tmp_path, monkeypatch):
    (tmp_path / "guests").mkdir()
    (tmp_path / "guests" / "numbers_of_test.py").write_text(GUEST)
    monkeypatch.setattr(records, "__path__", [*records.__path__, str(tmp_path / "guests")])


def experiment(**source):
    return configs.experiment(
        model=dict(name="gpt"),
        task=dict(name="causal_lm"),
        **({"source": source} if source else {}),
    )


def test_a_source_has_its_own_keys(guest, tmp_path):
    assert "numbers_of_test" in configs.class_names("source")
    config = experiment(name="numbers_of_test", count=4)
    assert configs.get(config, "source.step") == 1.0
    configs.set_key(config, "source.step", "2")
    with pytest.raises(UserError, match="unknown key config.source.cuont; did you mean.*count"):
        configs.set_key(config, "source.cuont", "3")
    with pytest.raises(UserError, match="config.source.name decides which keys exist"):
        configs.set_key(config, "source.name", "other")
    names = configs.chosen(config)
    assert configs.meaning("source.count", *names) == "records of a split"
    assert configs.meaning("source.name", *names) == "Counts up."
    recorded = configs.from_record(config.to_dict(), "a record")
    assert configs.differences(recorded, config) == []
    assert configs.differences(config, experiment()) == [
        "source.count: 4 -> None",
        "source.name: numbers_of_test -> ''",
        "source.step: 2.0 -> None",
    ]
    configs.set_key(config, "data.cache", str(tmp_path / "cache"))
    source = configs.build_source(config)
    assert dataclasses.is_dataclass(source) and isinstance(source, Source)
    read = source.records("train").read([3, 1])
    # The fingerprint of the content does not say how the keys change the records.
    assert [content.view(np.int32).item() for content in read] == [6, 2]
    configs.set_key(config, "source.step", 5.0)
    assert configs.build_source(config).records("train").read([1])[0].view(np.int32).item() == 5
    assert source.records("valid") is None


def test_a_wrong_source_is_refused(guest):
    with pytest.raises(UserError, match="no such source; did you mean numbers_of_test"):
        experiment(name="numbers_of_tset")
    with pytest.raises(UserError, match="config.source.name='tables': no such source"):
        experiment(name="tables")
    with pytest.raises(UserError, match="config.source.name is missing"):
        configs.build_source(experiment())
    with pytest.raises(UserError, match="config.source='numbers' must be a dict of its keys"):
        configs.experiment(model={"name": "gpt"}, task={"name": "causal_lm"}, source="numbers")


def test_the_files_of_a_source_are_the_users_own(guest, tmp_path):
    (tmp_path / "a.bin").write_bytes(b"a")
    config = experiment(name="numbers_of_test")
    configs.set_key(config, "data.train_files", str(tmp_path / "*.bin"))
    source = configs.build_source(config)
    assert source.files("train") == (str(tmp_path / "a.bin"),) and source.files("valid") is None
    configs.set_key(config, "data.train_files", str(tmp_path / "*.png"))
    with pytest.raises(UserError, match="config.data.train_files"):
        source.files("train")
