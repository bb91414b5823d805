r"""Item features as a prior: what an item's vector is likely to be before anybody has rated it.

With :math:`h = m + F z` the vectors of a party's trained items (`item_prior.py`) and :math:`g_v` an item's features,

.. math::
    z_v \sim N(\bar z + B (g_v - \bar g), S), \qquad
    B = \arg\min_B \sum_v w_v |z_v - \bar z - B (g_v - \bar g)|^2 + \lambda |B|^2, \qquad w_v = \frac{n_v}{n_v + \kappa}

The weights :math:`w_v` let items with many ratings count more. :math:`\lambda` minimises the error of leaving one item out, as the
users see it: the mean of :math:`(x_u \cdot F (z_v - B g_v))^2` over users. S is the covariance of the same errors. B and g stay at
the party. Categories, numbers, text, and embeddings that the user brings become features.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from verfedgnn.core.errors import ConfigError, DataError, RunError
from verfedgnn.core.files import make_folder, replacing, writing
from verfedgnn.data.ids import to_numpy
from verfedgnn.data.table_sources import ItemTable
from verfedgnn.upkeep.item_prior import ItemDistribution

Floats = NDArray[np.float64]
SEPARATOR = "|"
"""Between the values of a category that has several, such as Comedy|Romance."""
MOST_CATEGORIES = 1000
"""Most values of one category that are told apart; the most frequent ones."""
FEWEST_ITEMS = 2
"""Fewest items that a value of a category needs."""
TEXT_COLUMNS = 512
"""Columns into which the words of a text are hashed."""
DISTINCT_SHARE = 0.8
"""A column of text whose entries differ in more than this share of the items is free text, otherwise a category."""
STRENGTHS = tuple(float(10.0 ** (step / 2)) for step in range(-4, 9))
"""Values of lambda that are tried."""
HALF_WEIGHT = 10.0
"""kappa: the number of ratings at which an item has half of the largest weight."""

FEATURES = "features"
"""Folder in a run's folder with the features of items, which stay at the party: RUN/features/PARTY.parquet."""
_ID = "item"

Encode = Callable[[Sequence[Any]], Floats]


@dataclass(frozen=True)
class FeatureEncoder:
    """Turns columns of items into vectors. Every column of a table has the same mean squared length, 1."""

    columns: Mapping[str, Encode]
    """Function for each column, from its values to a matrix (n, G_c)."""

    def encode(self, values: Mapping[str, Sequence[Any]], rows: int) -> Floats:
        """Return the vectors (rows, G) of items; a column that is missing counts as unknown."""
        blocks = [encode(values.get(name, [None] * rows)) for name, encode in self.columns.items()]
        return np.concatenate([np.zeros((rows, 0)), *blocks], 1)


def fit_encoder(table: pa.Table) -> FeatureEncoder:
    """Choose how each column is encoded, from the values of all items in `table`."""
    found: dict[str, Encode] = {}
    for name in table.column_names:
        column = table[name]
        values = column.to_pylist()
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            encode = _fit_numbers(values, name)
        elif pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type):
            encode = _fit_embeddings(values, name)
        elif pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            distinct = {value for value in values if value}
            free = len(distinct) > DISTINCT_SHARE * len(values) and not any(SEPARATOR in v for v in distinct)
            encode = _make_hasher() if free else _fit_categories(values)
        else:
            raise DataError(
                f"the column '{name}' of the features has the type {column.type}; use text, numbers or lists of numbers"
            )
        found[name] = _scaled(encode, values)
    return FeatureEncoder(found)


def _scaled(encode: Encode, values: Sequence[Any]) -> Encode:
    found = encode(values)
    length = float(np.square(found).sum(1).mean()) if found.size else 0.0
    scale = 1 / np.sqrt(length) if length > 0 else 0.0
    return lambda given: encode(given) * scale


def _fit_numbers(values: Sequence[float | None], name: str) -> Encode:
    known = np.array([value for value in values if value is not None and np.isfinite(value)], np.float64)
    mean = float(known.mean()) if len(known) else 0.0
    spread = float(known.std()) or 1.0

    def encode(given: Sequence[float | None]) -> Floats:
        if not all(map(_is_number, given)):
            raise DataError(f"the column '{name}' of the features holds numbers; give a number")
        numbers = np.array([np.nan if value is None else value for value in given], np.float64)
        standard = (numbers - mean) / spread
        return np.nan_to_num(np.clip(standard, -5, 5))[:, None]

    return encode


def _fit_embeddings(values: Sequence[Sequence[float] | None], name: str) -> Encode:
    widths = {len(value) for value in values if value is not None}
    if len(widths) > 1:
        raise DataError(f"the lists in the column '{name}' of the features differ in length; give equal ones")
    width = widths.pop() if widths else 0

    def stack(given: Sequence[Sequence[float] | None]) -> Floats:
        if not all(_is_list(value, width) for value in given):
            raise DataError(f"the column '{name}' of the features holds lists of {width} numbers; give one")
        unknown = [0.0] * width
        return np.nan_to_num(np.array([unknown if v is None else v for v in given], np.float64)).reshape(
            len(given), width
        )

    mean = stack([value for value in values if value is not None]).mean(0) if widths or width else np.zeros(0)

    def encode(given: Sequence[Sequence[float] | None]) -> Floats:
        known = np.array([value is not None for value in given], bool)
        centred: Floats = (stack(given) - mean) * known[:, None]
        return centred

    return encode


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, Real)


def _is_list(value: Any, width: int) -> bool:
    return value is None or (isinstance(value, list) and len(value) == width and all(map(_is_number, value)))


def _fit_categories(values: Sequence[str | None]) -> Encode:
    counts = Counter(token for value in values for token in _split(value))
    kept = [token for token, count in counts.most_common(MOST_CATEGORIES) if count >= FEWEST_ITEMS]
    place = {token: number for number, token in enumerate(kept)}

    def encode(given: Sequence[str | None]) -> Floats:
        found = np.zeros((len(given), len(place)))
        for row, value in enumerate(given):
            for token in _split(value):
                if token in place:
                    found[row, place[token]] = 1.0
        return found

    return encode


def _split(value: str | None) -> set[str]:
    return {token.strip() for token in str(value or "").split(SEPARATOR) if token.strip()}


def _make_hasher() -> Encode:
    try:
        from sklearn.feature_extraction.text import HashingVectorizer
    except ModuleNotFoundError:
        raise ConfigError(
            "features of text need scikit-learn, which is not installed. Run: pip install 'verfedgnn[features]'"
        ) from None
    words = HashingVectorizer(n_features=TEXT_COLUMNS)

    def encode(given: Sequence[str | None]) -> Floats:
        if not given:
            return np.zeros((0, TEXT_COLUMNS))
        found: Floats = words.transform([str(value or "") for value in given]).toarray()
        return found

    return encode


@dataclass(frozen=True)
class FeaturePrior:
    """The distribution of an item's vector given its features."""

    items: ItemDistribution
    """Distribution of all items, without features."""
    level: Floats
    """Mean of z over the trained items, weighted (R,)."""
    centre: Floats
    """Mean of their features, weighted (G,)."""
    weights: Floats
    """B transposed (G, R): the effect of each feature on z."""
    factor: Floats
    """F times a factor of S (C, R)."""
    strength: float
    """Strength of the ridge regression, lambda."""
    explained: float
    """Share of the items' variance, as users see it, that the features explain for an item that was left out."""

    def describe(self, features: Floats) -> ItemDistribution:
        """Return the distribution of one item with these features (G,)."""
        z = self.level + (features - self.centre) @ self.weights
        return ItemDistribution(self.items.mean + self.items.factor @ z, self.factor)


def fit_feature_prior(
    items: ItemDistribution, vectors: Floats, features: Floats, counts: NDArray[np.int64], users: Floats
) -> FeaturePrior:
    """Fit B, lambda and S to trained items: their vectors (M, C), features (M, G) and numbers of ratings (M,).

    `users` are vectors of users (N, C) for whom the error counts.
    """
    z = np.linalg.lstsq(items.factor, (vectors - items.mean).T, rcond=None)[0].T.astype(np.float64)
    weight = counts / (counts + HALF_WEIGHT)
    total = max(float(weight.sum()), 1e-12)
    root = np.sqrt(weight)[:, None]
    level: Floats = weight @ z / total
    centre: Floats = weight @ features / total
    z = z - level
    centred = features - centre
    scaled = centred * root
    values, basis = np.linalg.eigh(scaled.T @ scaled)
    kept = values > 1e-9 * max(float(values.max(initial=0.0)), 1e-12)
    values, basis = values[kept], basis[:, kept]
    left = scaled @ basis / np.sqrt(values)
    target = left.T @ (z * root)

    def effects(strength: float) -> Floats:
        """Return B transposed (G, R)."""
        found: Floats = basis @ ((np.sqrt(values) / (values + strength))[:, None] * target)
        return found

    def leave_out(strength: float) -> Floats:
        """Return the error of each item (M, R), had it been left out."""
        leverage = (np.square(left) * (values / (values + strength))).sum(1)[:, None]
        predicted = (centred @ effects(strength) - leverage * z) / np.maximum(1 - leverage, 1e-3)
        found: Floats = z - predicted
        return found

    seen = users @ items.factor
    metric = seen.T @ seen / max(1, len(seen))

    def loss(errors: Floats) -> float:
        weighted = errors * root
        return float(np.einsum("vr,rs,vs->", weighted, metric, weighted)) / total

    strength = min(STRENGTHS, key=lambda each: loss(leave_out(each)))
    errors = leave_out(strength)
    weights = effects(strength)
    before = loss(z)
    explained = 1 - loss(errors) / before if before > 0 else 0.0
    if explained <= 0:  # the features say nothing about these items
        nothing = np.zeros_like(level), centre, np.zeros_like(weights), items.factor
        return FeaturePrior(items, *nothing, strength, 0.0)
    weighted = errors * root
    spread, directions = np.linalg.eigh(weighted.T @ weighted / total)
    factor = items.factor @ (directions * np.sqrt(np.maximum(spread, 0.0)))
    return FeaturePrior(items, level, centre, weights, factor, strength, explained)


def features_file(run: Path, party_file: str) -> Path:
    """Return the file of a party's features; `party_file` is the party's name among files."""
    return run / FEATURES / f"{party_file}.parquet"


def write_features(file: Path, table: ItemTable) -> None:
    """Write the features of all items, in place of earlier ones."""
    names = [_ID, *(f"f.{name}" for name in table.columns.column_names)]
    columns = [pa.array(table.ids.tolist(), pa.string()), *table.columns.columns]
    with writing(file):
        make_folder(file.parent)
        with replacing(file) as stream:
            pq.write_table(pa.table(columns, names=names), stream)


def read_features(file: Path) -> ItemTable | None:
    """Return the features that `write_features` wrote; None if there are none."""
    if not file.is_file():
        return None
    try:
        with pq.ParquetFile(file) as opened:
            rows = opened.read()
        columns = rows.drop_columns([_ID])
        return ItemTable(
            to_numpy(rows[_ID]),
            columns.rename_columns([name.removeprefix("f.") for name in columns.column_names]),
        )
    except (OSError, pa.ArrowException, KeyError) as error:
        raise RunError(f"the features in {file} cannot be read ({error}); give them again") from None
