"""TinyImageNet-200 (Stanford CS231n): 64x64 photographs. Its validation images are the test split."""

from rbue.lab.data.formats import tiny_imagenet
from rbue.lab.data.images import OFFICIAL
from rbue.lab.data.registry import DataSet, Download, Layout, Published, register
from rbue.lab.data.sets._tiny_imagenet_classes import CLASSES

register(
    DataSet(
        name="tiny-imagenet",
        title="TinyImageNet-200: 64x64 photographs, 200 classes; tested on its validation images",
        classes=tuple(CLASSES.values()),
        codes=tuple(CLASSES),
        shape=(64, 64, 3),
        mean=(0.4802, 0.4481, 0.3975),
        std=(0.2764, 0.2689, 0.2816),
        splits={"train": {OFFICIAL: Published(100_000)}, "test": {OFFICIAL: Published(10_000)}},
        layouts=(
            Layout(
                name="tree of JPEG files",
                files={"train": ("train/",), "test": ("val/images/", "val/val_annotations.txt")},
                read=tiny_imagenet.read_tree,
                shared=("wnids.txt",),
                folders=("tiny-imagenet-200",),
                archives=("tiny-imagenet-200.zip",),
            ),
            Layout(
                name="JPEGs without headers",
                files={"train": ("train-0.bin", "train-0.npz"), "test": ("val-0.bin", "val-0.npz")},
                read=tiny_imagenet.read_parts,
                shared=("index.json",),
                folders=("tiny-imagenet-200",),
            ),
        ),
        downloads=(
            Download(
                "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
                "tiny-imagenet-200.zip",
                "90528d7ca1a48142e341f4ef8d21d0de",
            ),
        ),
    )
)
