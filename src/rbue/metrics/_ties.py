"""Equal scores have no order: taken as one group, they make results independent of the data's order."""

from __future__ import annotations

import torch
from torch import Tensor


def descending_with_tied_means(scores: Tensor, flags: Tensor) -> tuple[Tensor, Tensor]:
    """Sort by falling score; every flag of a group of equal scores becomes the mean flag of the group.

    That mean is the expectation over a random order inside the group.

    Returns:
        The sorted scores and, beside each, the tied mean as float64.
    """
    order = scores.argsort(descending=True)
    scores = scores[order]
    _, group, size = torch.unique_consecutive(scores, return_inverse=True, return_counts=True)
    hits = torch.zeros(size.shape, dtype=torch.float64, device=scores.device)
    hits.index_add_(0, group, flags[order].double())
    return scores, (hits / size)[group]


def counts_above(scores: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """Count the positives and the negatives at or above each distinct score, from the highest score down."""
    order = scores.argsort(descending=True)
    _, size = torch.unique_consecutive(scores[order], return_counts=True)
    flagged = size.cumsum(0)
    true_positives = positive[order].long().cumsum(0)[flagged - 1]
    return true_positives, flagged - true_positives
