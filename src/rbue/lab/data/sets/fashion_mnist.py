"""Fashion-MNIST (Xiao et al. 2017): 28x28 grey pictures of clothes."""

from rbue.lab.data import readers
from rbue.lab.data.fetching import debian_package
from rbue.lab.data.registry import DataSet, Download, Layout, Mirror, Published, official, register

_ADDRESS = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_PLAIN = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_PACKED = {split: (f"{images}.gz", f"{labels}.gz") for split, (images, labels) in _PLAIN.items()}
_FOLDERS = ("FashionMNIST/raw", "usr/share/datasets/fashion-mnist")
_MD5 = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}

register(
    DataSet(
        name="fashion-mnist",
        title="Fashion-MNIST: 28x28 grey pictures of clothes, 10 classes",
        classes=(
            *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
            *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
        ),
        shape=(28, 28, 1),
        mean=(0.2860,),
        std=(0.3530,),
        splits=official(
            train=Published(
                60_000,
                "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
                "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
            ),
            test=Published(
                10_000,
                "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
                "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
            ),
        ),
        layouts=(
            Layout(name="compressed idx files", files=_PACKED, read=readers.idx, folders=_FOLDERS),
            Layout(name="idx files", files=_PLAIN, read=readers.idx, folders=_FOLDERS),
        ),
        downloads=tuple(Download(_ADDRESS + file, md5) for file, md5 in _MD5.items()),
        mirror=Mirror("Debian's package dataset-fashion-mnist", debian_package("dataset-fashion-mnist")),
    )
)
