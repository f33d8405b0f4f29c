"""Sources of images: folders, arrays and TFDS sets; bounds, formats and damage."""

import io

import numpy as np
import pytest
from PIL import Image

from tests.tasks.images import picture, write_images
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.contracts.source import ImageSource
from transformer_jax.data import images
from transformer_jax.records.images import Images


def source(folder, files, **keys):
    config = configs.experiment(
        model=dict(name="vit"),
        task=dict(name="image_classification"),
        source=dict(name="images", **keys),
        data=dict(train_files=str(files), cache=f"{folder}/cache"),
    )
    return configs.build_source(config)


def refused(folder, files, message, **keys):
    with pytest.raises(UserError, match=f"^[^\n]*{message}[^\n]*$"):
        source(folder, files, **keys).records("train")


def test_a_folder_of_each_class(tmp_path):
    folder = write_images(tmp_path / "images")
    (folder / "notes.txt").write_text("no image")
    made = source(tmp_path, folder)
    records = made.records("train")
    assert made.label_names("train") == ("dark", "light")
    assert records.array("label").tolist() == [0] * 6 + [1] * 6
    assert set(records.array("height")) == {20} and set(records.array("width")) == {24}
    assert set(records.array("channels")) == {images.ENCODED}
    [content] = records.read([0])
    assert content.tobytes() == (folder / "dark" / "00.png").read_bytes()
    assert made.records("valid") is None
    pattern = source(tmp_path, folder / "*/*.png")
    before = made.fingerprint("train")
    assert pattern.fingerprint("train") == before
    (folder / "dark" / "00.png").write_bytes((folder / "light" / "01.png").read_bytes())
    assert source(tmp_path, folder).fingerprint("train") != before


def test_hidden_files_are_no_images(gcs, tmp_path):
    """Previews of macOS and copies of Jupyter become neither examples nor classes."""
    folder = write_images(tmp_path / ".cache" / "images")
    expected = source(tmp_path, folder).files("train")
    picture = (folder / "dark" / "00.png").read_bytes()
    for name in (".ipynb_checkpoints/a.png", "dark/.ipynb_checkpoints/b.png", "light/._00.png"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(picture)
    made = source(tmp_path, folder)
    assert made.files("train") == expected and len(expected) == 12
    assert made.label_names("train") == ("dark", "light")
    for file in folder.rglob("*.png"):
        gcs.put(f".sets/{file.relative_to(folder)}", file.read_bytes())
    found = source(tmp_path, "gs://bucket/.sets").files("train")
    assert [name.removeprefix("gs://bucket/.sets") for name in found] == [
        name.removeprefix(str(folder)) for name in expected
    ]


@pytest.mark.parametrize("shape", [(5, 4, 6), (5, 4, 6, 3)])
def test_arrays_with_labels(shape, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    labels = np.array([2, 0, 1, 1, 0])
    np.savez_compressed(tmp_path / "set.npz", images=pixels, labels=labels)
    np.save(tmp_path / "plain.npy", pixels)
    for name in ("set.npz", "plain.npy"):
        made = source(tmp_path, tmp_path / name)
        records = made.records("train")
        for content, image in zip(records.read(range(5)), pixels):
            np.testing.assert_array_equal(content.reshape(image.shape), image)
        has_labels = name == "set.npz"
        assert made.label_names("train") == (("0", "1", "2") if has_labels else ())
        assert records.array("label").tolist() == (labels.tolist() if has_labels else [-1] * 5)
    np.save(tmp_path / "plain.labels.npy", labels)
    assert source(tmp_path, tmp_path / "plain.npy").label_names("train") == ("0", "1", "2")


def test_arrays_that_are_no_images_are_refused(tmp_path):
    def saved(**arrays):
        np.savez(tmp_path / "x.npz", **arrays)
        return tmp_path / "x.npz"

    good = np.zeros((3, 4, 4), np.uint8)
    refused(tmp_path, saved(other=good), "x.npz: no array 'images', only other")
    refused(tmp_path, saved(images=good.astype(float)), r"float64 \(3, 4, 4\): images are uint8")
    refused(tmp_path, saved(images=good, labels=np.zeros(2, int)), r"labels of int64 \(2,\)")
    refused(tmp_path, saved(images=good, labels=np.array([0, -1, 2])), "label -1: must be at least")
    refused(tmp_path, saved(images=good), "images of 4 x 4 pixels: may have at most", max_pixels=15)
    objects = np.array([object()] * 3)
    refused(tmp_path, saved(images=objects), "an array of objects")
    (tmp_path / "x.npz").write_bytes(b"no zip")
    refused(tmp_path, tmp_path / "x.npz", "x.npz: not an .npz file")
    np.save(tmp_path / "y.npy", good)
    content = (tmp_path / "y.npy").read_bytes()
    (tmp_path / "y.npy").write_bytes(content[:-20])
    refused(tmp_path, tmp_path / "y.npy", "y.npy: image 1: the file is damaged|image 2")
    (tmp_path / "y.npy").write_bytes(b"no array")
    refused(tmp_path, tmp_path / "y.npy", "y.npy: not an array of NumPy")


DAMAGED = {
    "cut.png": lambda: png(0)[:-300],
    "cut.jpg": lambda: jpeg(0)[:-200],
    "text.png": lambda: b"this is no image",
    "empty.png": lambda: b"",
    "ppm.png": lambda: encoded(0, "PPM"),
}


def encoded(number, kind):
    buffer = io.BytesIO()
    picture(number).save(buffer, kind)
    return buffer.getvalue()


def png(number):
    return encoded(number, "PNG")


def jpeg(number):
    return encoded(number, "JPEG")


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_image_is_named_or_skipped(name, tmp_path, capsys):
    folder = write_images(tmp_path / "images", 4)
    (folder / "dark" / name).write_bytes(DAMAGED[name]())
    refused(tmp_path, folder, f"images/dark/{name}: ")
    records = source(tmp_path, folder, skip_damaged=True).records("train")
    assert len(records) == 4
    err = capsys.readouterr().err
    assert f"dark/{name}" in err.replace("\n", "") and "1 damaged images are left out" in err


def test_pixels_and_bytes_are_bounded_before_decoding(tmp_path, monkeypatch):
    folder = write_images(tmp_path / "images", 2)
    with monkeypatch.context() as patch:
        patch.setattr(images, "loaded", lambda *_: pytest.fail("decoded"))
        refused(tmp_path, folder, "24 x 20 pixels: an image may have", max_pixels=479)
        refused(tmp_path, folder, "bytes: a file may have at most", max_bytes=100)
        # Pillow's own warning is an error, and twice the pixels raise Pillow's error.
        patch.setattr(Image, "MAX_IMAGE_PIXELS", 300)
        refused(tmp_path, folder, "decompression bomb")
        patch.setattr(Image, "MAX_IMAGE_PIXELS", 200)
        refused(tmp_path, folder, "decompression bomb")
    with pytest.raises(UserError, match="config.source.max_pixels=100000000: must be from 1"):
        source(tmp_path, folder, max_pixels=100_000_000)


def test_only_listed_formats_are_opened():
    for kind in images.FORMATS:
        opened = images.opened(encoded(0, kind), "a test", 1000)
        assert images.loaded(opened, "a test").size == (24, 20)
    for kind in ("PPM", "ICO", "TGA"):
        with pytest.raises(UserError, match="a test: no image of the formats PNG, JPEG"):
            images.opened(encoded(0, kind), "a test", 1000)


def test_files_that_do_not_exist(tmp_path):
    (tmp_path / "nothing").mkdir()
    refused(tmp_path, tmp_path / "nothing", "a folder without images")
    refused(tmp_path, tmp_path / "*.png", "no such file")
    folder = write_images(tmp_path / "images", 2)
    np.save(tmp_path / "x.npy", np.zeros((1, 2, 2), np.uint8))
    refused(tmp_path, f"{folder},{tmp_path}/x.npy", "names arrays and image files")


def test_a_prepared_tfds_set(tmp_path):
    import tensorflow_datasets as tfds

    class Pictures(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")
        code_path = None

        def _info(self):
            label = tfds.features.ClassLabel(names=["dark", "light"])
            image = tfds.features.Image(shape=(None, None, 3), encoding_format="png")
            return tfds.core.DatasetInfo(
                builder=self,
                features=tfds.features.FeaturesDict({"image": image, "label": label}),
            )

        def _split_generators(self, download):
            counts = dict(train=6, test=2, unlabelled=2, partly=3)
            return {split: self._generate_examples(split, n) for split, n in counts.items()}

        def _generate_examples(self, split, count):
            for number in range(count):
                label = number % 2 if split in ("train", "test") or number == 2 else -1
                yield number, {"image": io.BytesIO(png(number)), "label": label}

    Pictures(data_dir=str(tmp_path), file_format="array_record").download_and_prepare()
    config = configs.experiment(
        model=dict(name="vit"),
        task=dict(name="image_classification"),
        source=dict(name="images"),
        data=dict(tfds_name="pictures", tfds_dir=str(tmp_path), cache=f"{tmp_path}/cache"),
    )
    made = configs.build_source(config)
    records = made.records("train")
    assert made.label_names("train") == ("dark", "light")
    labels = records.array("label")
    for label, content in zip(labels, records.read(range(6))):
        image = images.loaded(images.opened(content.tobytes(), "", 10**6), "")
        number = next(n for n in range(6) if np.array_equal(image, picture(n)))
        assert number % 2 == label
    assert made.records("valid") is None and len(made.records("test")) == 2
    assert images.known_labels(records).tolist() == labels.tolist()
    # The label -1 would be the last class of an array of classes, and the first after clipping.
    for split, count in (("unlabelled", "2 of 2"), ("partly", "2 of 3")):
        config.data.test_split = split
        with pytest.raises(UserError, match=f"^config.data: {count} images have no label"):
            images.known_labels(configs.build_source(config).records("test"))
    config.source.image_feature = "picture"
    with pytest.raises(UserError, match="no feature 'picture', only (image, label|label, image)"):
        configs.build_source(config).records("train")


def test_digits():
    config = configs.experiment(
        model=dict(name="vit"),
        task=dict(name="image_classification"),
        source=dict(name="digits"),
    )
    made = configs.build_source(config)
    splits = {split: list(made.read(split)) for split in ("train", "valid", "test")}
    assert [len(records) for records in splits.values()] == [1257, 180, 360]
    for records in splits.values():
        counts = np.bincount([record.numbers["label"] for record in records])
        assert len(counts) == 10 and counts.min() >= 0.06 * len(records)
    pixels = np.frombuffer(b"".join(r.content for r in splits["train"]), np.uint8)
    assert pixels.min() == 0 and pixels.max() == 255
    assert isinstance(made, ImageSource) and not isinstance(made, Images)
