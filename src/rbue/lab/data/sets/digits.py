"""The 8x8 handwritten digits that come inside scikit-learn (the test part of the UCI optical digits).

Values 0..16 are scaled to 0..255 and rounded. scikit-learn ships no split: here every fifth image of each class (its
5th, 10th, ...) is a test image.
"""

import numpy as np

from rbue.lab.data.registry import Chunk, DataSet, Published, official, register


def read_digits(split: str) -> Chunk:
    """The images and labels of a split."""
    from sklearn.datasets import load_digits

    content = load_digits()
    images = np.rint(content.images * (255 / 16)).astype(np.uint8)[..., None]
    test = np.zeros(len(images), dtype=bool)
    for digit in range(10):
        test[np.flatnonzero(content.target == digit)[4::5]] = True
    chosen = test if split == "test" else ~test
    return images[chosen], content.target[chosen]


register(
    DataSet(
        name="digits",
        title="Digits: 8x8 handwritten digits, 10 classes; comes with scikit-learn",
        classes=tuple("0123456789"),
        shape=(8, 8, 1),
        mean=(0.3052,),
        std=(0.376,),
        splits=official(
            train=Published(
                1442,
                "503377f9cfaca149d5f4766a565f241ffa34779a6052ed8f96ddd783e9ed34eb",
                "a2e9b5aad772889452f916b3583eb978fb46384ff7116fda4a634c7c4caa4586",
            ),
            test=Published(
                355,
                "747b8e40cc4d21a26c27e6681d6b5641b1d1c96162f713457890ca5ee65f561d",
                "ae868ceb6e5b065cfdba65e639e01c0dbb262d32bea34ba86eab9eb6eddd8d59",
            ),
        ),
        embedded=read_digits,
    )
)
