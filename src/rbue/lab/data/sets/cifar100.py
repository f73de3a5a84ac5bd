"""CIFAR-100 (Krizhevsky 2009): 32x32 colour photographs; the 100 fine classes."""

from rbue.lab.data import readers
from rbue.lab.data.registry import DataSet, Download, Layout, Published, official, register

_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""

register(
    DataSet(
        name="cifar100",
        title="CIFAR-100: 32x32 photographs, 100 classes",
        classes=tuple(name.replace("_", " ") for name in _CLASSES.split()),
        shape=(32, 32, 3),
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        splits=official(
            train=Published(
                50_000,
                "4e457917601a66aed021f5fa37957b56c6319557c0a8ed5484de3c390af45430",
                "9f11b9f97aad759ba6df0a33e3218b01d8deaf4ed3a14aa1185d69b9ad7ebcb3",
            ),
            test=Published(
                10_000,
                "4cb8e5d9309da489bf6b19cc10cd96c3ae6f8daf225380b605aaee4c0d6aee19",
                "4dad7d09c7c97d33f6cb928d705cf4196221316fd6e31bdd978a08ed9103ee0b",
            ),
        ),
        layouts=(
            Layout(
                name="binary files",
                files={"train": ("train.bin",), "test": ("test.bin",)},
                read=readers.cifar_binary(label_bytes=2, label_at=1),
                folders=("cifar-100-binary",),
                archives=("cifar-100-binary.tar.gz",),
            ),
            Layout(
                name="lossless WebP sheets",
                files={"train": tuple(f"train-{i}.webp" for i in range(5)), "test": ("test-0.webp",)},
                read=readers.grid_sheets("labels.npz", {"train": "train_fine", "test": "test_fine"}),
                shared=("labels.npz",),
            ),
            Layout(
                name="python files",
                files={"train": ("train",), "test": ("test",)},
                read=readers.cifar_pickled("fine_labels"),
                folders=("cifar-100-python",),
                archives=("cifar-100-python.tar.gz",),
            ),
        ),
        downloads=(
            Download("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
        ),
    )
)
