"""TinyImageNet-200 (Stanford CS231n): 64x64 photographs. Its validation images are the test split."""

from pathlib import Path

from rbue.lab.data import readers
from rbue.lab.data.registry import DataSet, Download, Layout, Published, official, register

# WordNet codes in label order (sorted) and their first names
_LINES = Path(__file__).with_name("tiny_imagenet_classes.txt").read_text(encoding="utf-8").splitlines()
_CLASSES = dict(line.split(" ", 1) for line in _LINES)

register(
    DataSet(
        name="tiny-imagenet",
        title="TinyImageNet-200: 64x64 photographs, 200 classes; tested on its validation images",
        classes=tuple(_CLASSES.values()),
        codes=tuple(_CLASSES),
        shape=(64, 64, 3),
        mean=(0.4802, 0.4481, 0.3975),
        std=(0.2764, 0.2689, 0.2816),
        splits=official(train=Published(100_000), test=Published(10_000)),
        layouts=(
            Layout(
                name="tree of JPEG files",
                files={"train": ("train/",), "test": ("val/images/", "val/val_annotations.txt")},
                read=readers.tiny_imagenet_tree,
                shared=("wnids.txt",),
                folders=("tiny-imagenet-200",),
                archives=("tiny-imagenet-200.zip",),
            ),
            Layout(
                name="JPEGs without headers",
                files={"train": ("train-0.bin", "train-0.npz"), "test": ("val-0.bin", "val-0.npz")},
                read=readers.tiny_imagenet_parts,
                shared=("index.json",),
                folders=("tiny-imagenet-200",),
            ),
        ),
        downloads=(Download("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"),),
    )
)
