"""SVHN (Netzer et al. 2011): 32x32 house-number digits, format 2; here mainly as data from elsewhere."""

from rbue.lab.data import readers
from rbue.lab.data.images import OFFICIAL
from rbue.lab.data.registry import DataSet, Download, Layout, Published, register

RECUT = "first-5000-recut"

register(
    DataSet(
        name="svhn",
        title="SVHN: 32x32 house-number digits, 10 classes",
        classes=tuple("0123456789"),
        shape=(32, 32, 3),
        mean=(0.4377, 0.4438, 0.4728),
        std=(0.1980, 0.2010, 0.1970),
        splits={
            "train": {OFFICIAL: Published(73_257)},
            "test": {
                OFFICIAL: Published(26_032),
                # The first 5,000 test digits cut again from the full images: close to the crops, not bit-equal.
                RECUT: Published(
                    5_000,
                    "6edb281ef3bbde09da3e9fb0ea974c7d871b7a7b747f0f7c10d64a7cd90ad25b",
                    "0d45d38f65ea966af243d1b7142b82bc6b2abdfd5ca6ff13b818ea79f91586d8",
                ),
            },
        },
        layouts=(
            Layout(
                name="MATLAB files",
                files={"train": ("train_32x32.mat",), "test": ("test_32x32.mat",)},
                read=readers.svhn_mat,
            ),
            Layout(
                name="lossless WebP sheet",
                files={"test": ("test-first5000.webp",)},
                read=readers.grid_sheets("labels.npz", {"test": "test"}),
                shared=("labels.npz",),
                variant=RECUT,
            ),
        ),
        downloads=(
            Download("http://ufldl.stanford.edu/housenumbers/train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
            Download("http://ufldl.stanford.edu/housenumbers/test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
        ),
        terms="for non-commercial use only",
    )
)
