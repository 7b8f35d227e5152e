"""What the server takes for the clients' mean, when some clients may be hostile.

All of these read the clients' vectors one by one. Where those were sanitised by the clients, or no privacy is promised,
that is post-processing. Under central privacy it is refused: the noise is calibrated to how far one client moves a
*sum*; a median or a choice among vectors can move by as much as the vectors differ, whatever they were clipped to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sordina.errors import InvalidInput


class Aggregator(Protocol):
    """One vector in place of many."""

    def combine(self, vectors: Tensor) -> Tensor:
        """``(clients, D) -> (D,)``; the order of the clients does not matter."""
        ...


@dataclass(frozen=True)
class Median:
    """The median of each coordinate (Yin et al. 2018): right as long as fewer than half of the clients are hostile.

    >>> Median().combine(torch.tensor([[1.0, 0.0], [2.0, 9e9], [3.0, 1.0], [9e9, 2.0]]))
    tensor([2.5000, 1.5000])
    """

    def combine(self, vectors: Tensor) -> Tensor:
        """The middle value, or the mean of the two middle ones."""
        ordered = vectors.sort(dim=0).values
        middle = len(vectors) // 2
        return ordered[middle] if len(vectors) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


@dataclass(frozen=True)
class TrimmedMean:
    """The mean of each coordinate without its ``share`` lowest and highest values (Yin et al. 2018).

    >>> TrimmedMean(0.25).combine(torch.tensor([[1.0], [2.0], [4.0], [9e9]]))
    tensor([3.])
    """

    share: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.share < 0.5:
            raise InvalidInput(f"the share trimmed at each end must lie in [0, 0.5), got {self.share}.")

    def combine(self, vectors: Tensor) -> Tensor:
        """Sort, cut, average; a share that is no whole number of clients is rounded up, if enough remain."""
        cut = min(-int(-self.share * len(vectors) // 1), (len(vectors) - 1) // 2)
        return vectors.sort(dim=0).values[cut : len(vectors) - cut].mean(dim=0)


@dataclass(frozen=True)
class Krum:
    """The vector closest to its ``n - f - 2`` nearest others, f being the hostile ones feared (Blanchard et al. 2017).

    The paper's theorem needs ``n >= 2 f + 3``; f is ``share`` of the clients that answered, cut to what that allows.

    >>> Krum(0.2).combine(torch.tensor([[1.0], [1.1], [1.25], [9e9], [1.5]]))
    tensor([1.1000])
    """

    share: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.share < 0.5:
            raise InvalidInput(f"the share of hostile clients must lie in [0, 0.5), got {self.share}.")

    def combine(self, vectors: Tensor) -> Tensor:
        """The vector with the lowest sum of squared distances; with fewer than three there is no closest pair."""
        count = len(vectors)
        if count < 3:
            return Median().combine(vectors)
        hostile = min(-int(-self.share * count // 1), (count - 3) // 2)
        rows = vectors.double()
        distances = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
        squares = distances.square().fill_diagonal_(torch.inf)
        scores = squares.sort(dim=1).values[:, : count - hostile - 2].sum(dim=1)
        return vectors[int(scores.argmin())]


NAMES = ("mean", "median", "trimmed-mean", "krum")


def named(name: str, share: float = 0.2) -> Aggregator | None:
    """The aggregator called ``name``; the mean is what a placement makes by itself, so None."""
    known: dict[str, Aggregator | None] = {
        "mean": None,
        "median": Median(),
        "trimmed-mean": TrimmedMean(share),
        "krum": Krum(share),
    }
    if name not in known:
        raise InvalidInput(f"unknown aggregation {name!r}: choose one of {', '.join(NAMES)}.")
    return known[name]
