"""A trained run in Python: its settings, its networks, and what they say of other images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from rbue.errors import InvalidInput
from rbue.lab.data import ImageSet
from rbue.lab.data.folder import read_image
from rbue.lab.data.images import Bytes
from rbue.lab.environment import default_device
from rbue.lab.own_code import trust as trust_names
from rbue.lab.runs.folders import RunConfig, RunFolder, settings_and_root
from rbue.lab.runs.measuring import predict_images
from rbue.lab.runs.networks import load_networks, trained_on
from rbue.lab.runs.passes import Passes, best_draws
from rbue.prediction import Prediction


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A run as :func:`rbue.lab.load_run` finds it.

    Attributes:
        path: its folder.
        config: everything that decided it.
        networks: the trained networks, in evaluation mode: one, or the members of an ensemble. A converted one works
            with :func:`rbue.predict` as it is; its inputs are normalised by ``mean`` and ``std``.
        device: where the networks are.
    """

    path: Path
    config: RunConfig
    networks: list[nn.Module]
    device: torch.device
    _like: ImageSet

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in label order."""
        return self._like.classes

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the images."""
        height, width, channels = self._like.images.shape[1:]
        return height, width, channels

    @property
    def mean(self) -> tuple[float, ...]:
        """Channel means of the training images, as fractions of 255."""
        return self._like.mean

    @property
    def std(self) -> tuple[float, ...]:
        """Channel standard deviations of the training images, likewise."""
        return self._like.std

    def __repr__(self) -> str:
        count = f"{len(self.networks)} network{'s' if len(self.networks) > 1 else ''}"
        return f"TrainedRun({self.config.method!r}, {self.config.model!r} on {self.config.data!r}, {count})"

    def predict(
        self, images: Any, samples: int = 100, seed: int = 0, draws: str | None = None, augment: str = ""
    ) -> Prediction:
        """What the method of the run says of images, as ``rbue predict`` does.

        Args:
            images: bytes ``(N, H, W, C)``, not normalised, as an array or tensor; or paths of image files.
            samples: random passes; a method with fewer draws all it has.
            seed: of the random passes.
            draws: ``balanced`` or ``independent``; left out: balanced where the method has them.
            augment: what each pass does to its images, such as ``flip,shift:2``.
        """
        passes = Passes(samples, seed, draws=draws or best_draws(self.config), augment=augment)
        pixels = self._pixels(images)
        unlabelled = self._like.unlabelled(pixels)
        return predict_images(self.config, self.networks, unlabelled, passes, self.device)

    def _pixels(self, images: Any) -> Bytes:
        if isinstance(images, str | PathLike):
            images = [images]
        if isinstance(images, Sequence) and images and all(isinstance(one, str | PathLike) for one in images):
            return np.stack([read_image(Path(one).expanduser(), self._like) for one in images])
        found = images.cpu().numpy() if isinstance(images, torch.Tensor) else np.asarray(images)
        if found.dtype != np.uint8 or found.shape[1:] != self.shape or not len(found):
            height, width, channels = self.shape
            raise InvalidInput(
                f"images must be bytes (uint8) of shape (N, {height}, {width}, {channels}) or paths of image files, "
                f"not {found.dtype} of shape {found.shape}."
            )
        return found


def load_run(
    path: str | PathLike[str], device: str | torch.device | None = None, trust: Sequence[str] | str = ()
) -> TrainedRun:
    """The trained run in a folder, for use in Python.

    Args:
        path: the run folder that ``rbue train`` prints.
        device: where the networks go; left out: a GPU if there is one.
        trust: code of your own that the run may ask for, such as ``my_networks:make``. None is run because a file names
            it, unless a run was trained with it here by you (:mod:`rbue.lab.own_code`).

    Raises:
        InvalidInput: there is no run in the folder.
        NotNamed: it asks for other code.
        RbueError: it was not trained to the end, its weights are elsewhere, or a file is damaged.
    """
    trust_names(trust)
    folder = RunFolder(Path(path).expanduser())
    if not (folder.path / "config.json").is_file():
        raise InvalidInput(f"{folder.path} is no run folder; give the one that `rbue train` printed.")
    config, root = settings_and_root(folder)
    place = default_device() if device is None else torch.device(device)
    networks = [network.eval() for network in load_networks(config, root, place)]
    return TrainedRun(folder.path, config, networks, place, trained_on(config, root))
