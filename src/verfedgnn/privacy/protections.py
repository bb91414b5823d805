"""The protections of public gradients (Sec. 4.5), one class a mechanism; `protection_of` chooses it.

A protection says what leaves a party (`protect`), how releases add up (`add_up`), what a sum is worth (`worth`), what it
guarantees (`releases`, `guarantee`), and how to describe it (`shown`, `named`). Nobody else compares its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.config.rules import fewest_parties_in_sum
from verfedgnn.core.errors import ProtocolError
from verfedgnn.core.key_stream import KeyStream, NoiseKey
from verfedgnn.privacy import rating_dp
from verfedgnn.privacy import release_events as events
from verfedgnn.privacy.masking import GRADIENT, MaskStream, remove_masks, share_threshold
from verfedgnn.privacy.release_events import Release

PIECE = 1 << 16
"""Number of coordinates that are quantized at a time, few enough for the processor's cache."""
WORTHLESS = 0.5
"""Smallest delta that is reported as no guarantee."""
TOO_LARGE = 20.0
"""Epsilon from which on a guarantee is said to protect nothing: it allows odds to change by a factor of e^20."""
LARGEST_ROUNDED = (100, 127)
"""Range of the largest rounded value that a party may release; 127 fits into 8 bits."""
NEIGHBOURING = "two gradients of one party that differ by at most 1 in l1 after rescaling and clipping"


class SumError(ProtocolError):
    """Masked values that do not cancel. The sum does not tell whose values are wrong."""


class Protection:
    """Unprotected gradients, and what all protections have in common. `parties` is the number of parties of the federation."""

    shown: str = "exact"
    """How a release looks, in a table."""
    is_noisy: ClassVar[bool] = False
    """Whether its guarantee rests on noise."""
    noise: float = 0.0
    """Standard deviation of noise without a guarantee on what is rounded, as a multiple of a column's root mean square."""
    largest: int = 0
    """Largest rounded value; 0 if nothing is rounded."""
    bits: int = 0
    """Bits of a masked value, in which the sum of all parties has room."""
    sum_type: np.dtype[Any] = np.dtype(np.float32)
    """Array type of a release before masks, and of a sum of releases."""

    def __init__(self, config: Config, parties: int = 1) -> None:
        self.config, self.masked, self.parties = config, config.masking, parties
        self.settings: Any = config.gradients
        self.fewest = fewest_parties_in_sum(config, parties)
        """Fewest parties in a sum."""
        self.sent_type = np.dtype(f"u{self.sum_type.itemsize}") if self.masked else self.sum_type
        """Array type of a release on the wire: as it is, or as residues if it is masked."""

    # -- protect -------------------------------------------------------------------------------------------

    def clip(self, gradient: Tensor) -> Tensor:
        """Rescale a gradient, and clamp each coordinate to [-clip, clip]."""
        scaled = gradient * float(self.settings.rescale)
        bound = self.settings.clip
        return scaled if bound is None else scaled.clamp(-bound, bound)

    def protect(self, gradient: Tensor, key: NoiseKey, *, sharing: int = 1) -> NDArray[Any]:
        """Return a flat public gradient as it leaves the party, before masks; `sharing` parties enter the sum."""
        return self.clip(gradient).cpu().numpy()

    # -- sum -----------------------------------------------------------------------------------------------

    def fewest_survivors(self, active: int, smallest: int) -> int:
        """Return how many of the `active` parties a masked sum must include after dropouts.

        At least the threshold of the shares, the agreed number (`smallest`), and what every sum needs.
        """
        return max(share_threshold(active), smallest, self.fewest)

    def add_up(self, releases: Sequence[NDArray[Any]], masks: Sequence[MaskStream] = ()) -> NDArray[Any]:
        """Add up releases in the order of the parties, and remove the `masks`; raise `SumError` if the sum is out of range."""
        total = np.zeros(releases[0].shape, self.sent_type)
        for values in releases:
            total += values  # masked values modulo 2^bits
        if self.masked:
            total = remove_masks(total, masks, GRADIENT, self.bits)
        if not self.fits(total, len(releases)):
            raise SumError(
                "the masked values of this round do not add up to gradients: a party sent other values"
            )
        return total

    def fits(self, total: NDArray[Any], count: int) -> bool:
        """Return whether so many releases can have this sum."""
        return True

    def worth(self, scale: float) -> float:
        """Return the gradient that 1 in a sum of releases is worth, times the participation factor `scale`."""
        return scale / float(self.settings.rescale)

    # -- account -------------------------------------------------------------------------------------------

    def releases(self, count: int) -> list[Release]:
        """Return the events of so many releases."""
        return [Release("gradients", count)]

    def validation_releases(self, count: int) -> list[Release]:
        """Return the events of so many reported validation errors."""
        return [Release("validation errors", count)]

    def guarantee(self, count: int, validations: int) -> dict[str, Any]:
        """Return what so many releases guarantee, for metrics.json."""
        return {"guarantee": "none: the coordinator receives each party's exact gradients"}

    def validation_guarantee(self) -> dict[str, Any]:
        """Return what protects the validation errors, for metrics.json."""
        summed = "1 - NDCG@20 over its users" if self.config.ranks else "squared errors"
        return {"mechanism": "none", "guarantee": f"none: each party's exact sum of {summed} and its count"}


class TernaryProtection(Protection):
    """Gradients quantized to -1, 0 and 1 (Def. 4.2)."""

    shown = "quantized to -1, 0, 1"
    is_noisy = True

    def __init__(self, config: Config, parties: int = 1) -> None:
        self.sum_type = np.dtype(np.int8 if parties <= 127 else np.int16 if parties <= 32767 else np.int32)
        self.bits = (2 * parties).bit_length()
        super().__init__(config, parties)

    def protect(self, gradient: Tensor, key: NoiseKey, *, sharing: int = 1) -> NDArray[Any]:
        """Return the signs of the clipped gradient."""
        r = self.settings.r
        signs = quantize_ternary(self.clip(gradient), r, key.stream("ternary", r)).cpu().numpy()
        return signs.astype(self.sum_type, copy=False)

    def fits(self, total: NDArray[Any], count: int) -> bool:
        """Return whether so many signs can have this sum."""
        return max(int(total.max(initial=0)), -int(total.min(initial=0))) <= count

    def worth(self, scale: float) -> float:
        """Return r, rescaled."""
        return float(self.settings.r) * scale / float(self.settings.rescale)

    def releases(self, count: int) -> list[Release]:
        """Return ternary events."""
        return [Release("gradients", count, events.ternary(self.settings.r))]

    def guarantee(self, count: int, validations: int) -> dict[str, Any]:
        """Return the delta of one release and of all of them."""
        delta = min(1.0, 1 / self.settings.r)
        composed = events.compose_total_variation(self.releases(count))
        meaning = "no guarantee" if composed >= WORTHLESS else f"delta {composed:.3g}"
        return {
            "neighbouring": NEIGHBOURING,
            "r": self.settings.r,
            "per_round": {"epsilon": 0.0, "delta": delta},
            "composed": {"epsilon": 0.0, "delta": composed},
            "guarantee": f"(0, {delta:.3g})-DP per release; composed over {count:,} releases: {meaning} over the whole run",
        }


class LaplaceProtection(Protection):
    """Gradients with Laplace noise (Table 6)."""

    shown = "with Laplace noise"
    is_noisy = True

    def protect(self, gradient: Tensor, key: NoiseKey, *, sharing: int = 1) -> NDArray[Any]:
        """Return the clipped gradient with noise."""
        epsilon = self.settings.epsilon
        return add_laplace(self.clip(gradient), epsilon, key.stream("laplace", epsilon)).cpu().numpy()

    def releases(self, count: int) -> list[Release]:
        """Return Laplace events."""
        return [Release("gradients", count, events.laplace(self.settings.epsilon))]

    def guarantee(self, count: int, validations: int) -> dict[str, Any]:
        """Return the better of the plain sum of epsilons, which needs no delta, and the composed epsilon."""
        epsilon = self.settings.epsilon
        pure = epsilon * count
        composed = events.compose_epsilon(self.releases(count))
        whole = (pure, 0.0) if pure <= composed else (composed, events.DELTA)
        return {
            "neighbouring": NEIGHBOURING,
            "per_round": {"epsilon": epsilon, "delta": 0.0},
            "composed": dict(zip(("epsilon", "delta"), whole, strict=True)),
            "guarantee": f"epsilon = {epsilon:g} per release, at worst {name_epsilon(pure)} over the run",
        }


class SkellamProtection(Protection):
    """Masked sums with Skellam noise: differential privacy of single ratings (`privacy/rating_dp.py`)."""

    shown = "with Skellam noise"
    is_noisy = True
    bits = 32
    sum_type = np.dtype(np.int32)

    def protect(self, gradient: Tensor, key: NoiseKey, *, sharing: int = 1) -> NDArray[Any]:
        """Return the gradient as integers, with the party's share of the noise."""
        parties = self.parties
        return rating_dp.release_gradient(gradient, self.config, parties=parties, sharing=sharing, key=key)

    def fewest_survivors(self, active: int, smallest: int) -> int:
        """Return `active`: parties scale their noise to the number of active parties, so a sum includes all of them."""
        return active

    def worth(self, scale: float) -> float:
        """Return the value of the unit of the integers."""
        return scale / rating_dp.unit(self.config)

    def releases(self, count: int) -> list[Release]:
        """Return what a training rating affects."""
        return rating_dp.training_releases(self.config, count)

    def validation_releases(self, count: int) -> list[Release]:
        """Return what a validation rating affects."""
        return rating_dp.validation_releases(self.config, count)

    def guarantee(self, count: int, validations: int) -> dict[str, Any]:
        """Return the epsilon of one round and of the whole training."""
        config, delta = self.config, events.DELTA
        one, whole = (
            rating_dp.rating_epsilon(config, rounds=r, validations=v)
            for r, v in ((1, 0), (count, validations))
        )
        tables = rating_dp.sampling_delta(config, rounds=count, validations=validations, epsilon=whole)
        return {
            "clip": config.training.error_clip,
            "noise": rating_dp.noise_multiplier(config),
            "neighbouring": "two data sets of which one has one rating of one user at one party more",
            "per_round": {"epsilon": one, "delta": delta},
            "composed": {"epsilon": whole, "delta": min(1.0, delta + tables)},
            "guarantee": f"epsilon {name_epsilon(whole)} at delta {delta:g} for every single rating, over all {count:,} rounds, against "
            "anyone who sees the sums and the trained model",
        }

    def validation_guarantee(self) -> dict[str, Any]:
        """Return the guarantee that validation errors share with gradients."""
        guarantee = "covered by the epsilon of gradients: a rating is in one of the two parts"
        return {"mechanism": "skellam", "guarantee": guarantee}


class RoundedProtection(Protection):
    """Releases of solved models, rounded at random to 8 bits (`protocol/solved_round.py`)."""

    def __init__(self, config: Config, parties: int = 1) -> None:
        self.noise = config.noise_of(parties)
        self.shown = "rounded to 8 bits" + (", with noise" if self.noise else "")
        self.largest = largest_rounded(parties)
        self.bits = bits_of_sum(self.largest, parties)
        self.sum_type = np.dtype(np.int16 if self.bits <= 16 else np.int32)
        super().__init__(config, parties)

    def guarantee(self, count: int, validations: int) -> dict[str, Any]:
        """Return who sees the rounded sums."""
        seen = "sums over all parties" if self.masked else "each party's gradients"
        how = f", with noise of {self.noise:g} times their size" if self.noise else ""
        return {
            "noise": self.noise,
            "guarantee": f"none: the coordinator sees {seen}, rounded to 8 bits{how}",
        }


PROTECTIONS: dict[str, type[Protection]] = {
    "none": Protection,
    "ternary": TernaryProtection,
    "laplace": LaplaceProtection,
    "skellam": SkellamProtection,
    "rounded": RoundedProtection,
}


def protection_of(config: Config, parties: int = 1) -> Protection:
    """Return the configured protection in a federation of `parties`."""
    return PROTECTIONS[config.gradients.mechanism](config, parties)


def largest_rounded(parties: int) -> int:
    """Return the largest rounded value that each of so many parties may release.

    It is 127, or less if that saves a bit of the sum of all parties: five and ten parties release at most 102.
    """
    least, most = LARGEST_ROUNDED
    bits = bits_of_sum(most, parties)
    narrower = (2 ** (bits - 2) - 1) // parties
    return narrower if narrower >= least else most


def bits_of_sum(largest: int, parties: int) -> int:
    """Return the bits of a signed sum of so many values of at most `largest`."""
    return 1 + (parties * largest).bit_length()


def quantize_ternary(x: Tensor, r: float, stream: KeyStream) -> Tensor:
    r"""Quantize to the signs of the ternary scheme, int8 in {-1, 0, 1} (Def. 4.2).

    .. math::
        Q(x)_i = r \, \mathrm{sign}(x_i) \, b_i, \qquad
        P(b_i = 1) = 2^{-32} \lceil 2^{32} |x_i| / r \rceil

    The result is Q(x) / r. A coordinate is chosen if 32 uniform bits, as an integer, are below 2^32 |x_i| / r. Its probability is
    |x_i| / r rounded up to a multiple of 2^-32. The total variation between the releases of x and y is at most |x - y|_1 / r and
    2^-32 for each coordinate that differs.
    """
    flat = x.reshape(-1)
    signs = torch.empty(flat.shape, dtype=torch.int8, device=x.device)
    for values, chosen in zip(torch.split(flat, PIECE), torch.split(signs, PIECE), strict=True):
        bits = torch.from_numpy(stream.words((len(values),), "<i4")).to(x.device)
        # Signed bits are uniform from -2^31. Doubles hold all these integers exactly.
        threshold = values.abs().double().mul_(2.0**32 / r).sub_(2.0**31)
        chosen.copy_(values.sign().mul_(bits.double() < threshold))
    return signs.view(x.shape)


def add_laplace(x: Tensor, epsilon: float, stream: KeyStream) -> Tensor:
    """Add Laplace noise of scale 1/epsilon: epsilon-DP per release for gradients that differ by at most 1 in l1.

    The noise is computed in floating point, so the guarantee is that of the ideal mechanism (Mironov 2012).
    """
    uniform = stream.uniform(tuple(x.shape)) - 0.5
    noise = np.sign(uniform) * np.log1p(-2 * np.abs(uniform)) / -epsilon
    return x + torch.from_numpy(noise).to(x.device, x.dtype)


def name_epsilon(epsilon: float) -> str:
    """Return an epsilon, with a remark if it is so large that it means nothing."""
    text = f"{epsilon:,.0f}" if epsilon >= 100 else f"{epsilon:.3g}"
    return f"{text} (so large that it protects nothing)" if epsilon >= TOO_LARGE else text
