"""Small networks that stress one property of the sampler each."""

import torch
from torch import nn
from torch.nn import functional as F

import rbue


def drawn_one_by_one(net, x, samples):
    """The samples of seed 0 by plain calls, which the sampler's have to be."""
    rbue.seed(net.eval(), 0)
    with torch.no_grad():
        return torch.stack([net(x) for _ in range(samples)]).softmax(2)


def assert_drawn_as_one_by_one(net, x, samples, **tolerance):
    """Predict, and return the samples, which have to be those of plain calls."""
    found = rbue.predict(net, x, samples=samples, return_samples=True, draws="independent").samples
    torch.testing.assert_close(found, drawn_one_by_one(net, x, samples), **tolerance)
    return found


class Residual(nn.Module):
    """Shared in-place ReLU modules, skip connections, BatchNorm and dropout."""

    def __init__(self, width=8):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.relu = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        x = self.relu(self.norm(self.stem(x)))
        y = self.relu(self.conv1(x))
        y = self.conv2(y)
        y += x
        x = self.relu(y)
        return self.head(self.drop(F.adaptive_avg_pool2d(x, 1).flatten(1)))


class Dense(nn.Module):
    """Concatenation with features from long before, and weights with as many rows as the batch."""

    def __init__(self, rows=4):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3 + rows * k, rows, 3, padding=1) for k in range(3))
        self.scale = nn.Parameter(torch.rand(rows, 1, 1))
        self.head = nn.Linear(3 + rows * 3, 4)

    def forward(self, x):
        for conv in self.convs:
            x = torch.cat([x, F.relu(conv(x)) * self.scale], dim=1)
        return self.head(x.mean((2, 3)))


class StatementInPlace(nn.Module):
    """``y.relu_()`` as a statement, the result read through the old name."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        y = self.first(x)
        y.relu_()
        z = self.second(y)
        z.relu_()
        y += z
        return self.head(y)


class TwoLayers(nn.Module):
    """What they do with the batch is up to subclasses."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(6, 8), nn.Linear(8, 3)


class RemembersBatchSize(TwoLayers):
    """Code that defeats prefix sharing: it reshapes by a batch size read before the first site."""

    def forward(self, x):
        batch = x.shape[0]
        return self.head(F.relu(self.first(x)).reshape(batch, -1, 8).mean(1))


class InPlaceThroughAView(nn.Module):
    """Code that defeats prefix sharing without an error: part of a tensor is changed and then the whole is read."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(6, 8), nn.Linear(12, 3)

    def forward(self, x):
        y = self.first(x)
        return self.head(torch.cat([F.relu_(y[:, :4]), y], 1))


class TimeFirst(TwoLayers):
    """A site whose first dimension is not the batch."""

    def forward(self, x):  # (B, 7, 6)
        y = F.relu(self.first(x.transpose(0, 1)))
        return self.head(y.mean(0))


class Patches(TwoLayers):
    """Images cut into patches along the batch dimension before the ReLU."""

    def forward(self, x):  # (B, 7, 6)
        y = F.relu(self.first(x.flatten(0, 1)))
        return self.head(y.unflatten(0, (-1, 7)).mean(1))


class PerPixel(nn.Module):
    """A per-pixel classifier with a dict output."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1)

    def forward(self, x):
        return {"out": self.head(F.relu(self.first(x)))}


NETWORKS = {
    "residual": (Residual, (3, 8, 8)),
    "dense": (Dense, (3, 8, 8)),
    "statement": (StatementInPlace, (6,)),
    "remembers": (RemembersBatchSize, (6,)),
    "view": (InPlaceThroughAView, (6,)),
    "time-first": (TimeFirst, (7, 6)),
    "patches": (Patches, (7, 6)),
    "per-pixel": (PerPixel, (3, 6, 6)),
}


def build(name, batch=4, seed=0):
    """A network in evaluation mode, with non-trivial BatchNorm statistics, and inputs for it."""
    torch.manual_seed(seed)
    kind, shape = NETWORKS[name]
    network = kind()
    x = torch.randn(batch, *shape)
    network.train()
    for _ in range(3):
        network(torch.randn(16, *shape) * 2)
    return network.eval(), x
