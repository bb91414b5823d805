r"""Random projection of neighbourhoods (Sec. 4.4, Theorems 1 and 2).

.. math::
    Y = \Phi X, \quad \hat X = \Phi^T Y, \quad \Phi \in R^{q \times N}, \quad \Phi_{ij} \sim N(0, 1/q)

With a block size B < N, users are cut into blocks of B and Phi is block-diagonal. Each block has its own
Gaussian matrix and satisfies Theorem 1 separately; the cost is O(N B) instead of O(N q). B >= N is the
paper's Phi.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from verfedgnn.core.errors import ConfigError

TILE_VALUES = 1 << 22
"""Number of values of Phi that are drawn at a time (16 MiB)."""
CACHE_VALUES = 1 << 28
"""Largest number of values of Phi that is cached (1 GiB).

A larger Phi is redrawn from its seed for each use.
"""
MOST_VALUES = 1 << 34
"""Largest number of values of Phi. Redrawing it takes about 90 seconds on one core, twice a round."""


@dataclass(frozen=True)
class Tile:
    """A piece of Phi: all rows of one block and a range of its columns."""

    rows: slice
    columns: slice
    index: int

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and columns."""
        return self.rows.stop - self.rows.start, self.columns.stop - self.columns.start


Piece = tuple[slice, slice, Tensor]
"""Rows, columns and values (B, q, w) of B successive blocks of one shape, or of some columns of one large
block.
"""


class Projection:
    """The projection Phi for N users, defined by its seed alone and therefore equal on every device."""

    def __init__(
        self,
        users: int,
        *,
        ratio: float,
        block: int = 0,
        seed: int = 0,
        reconstruction: Literal["adjoint", "scaled"] = "adjoint",
        device: torch.device | str = "cpu",
        cache_values: int = CACHE_VALUES,
    ) -> None:
        self.users = users
        self.seed = seed
        self.device = torch.device(device)
        bounds = cut_blocks(users, block)
        self.tiles: list[Tile] = []
        self.protected = True
        self.rows = 0
        values = 0
        for start, stop in bounds:
            q = block_rows(stop - start, ratio)
            self.protected &= is_protected(stop - start, q)
            width = max(1, TILE_VALUES // q)
            for left in range(start, stop, width):
                right = min(left + width, stop)
                self.tiles.append(Tile(slice(self.rows, self.rows + q), slice(left, right), len(self.tiles)))
            self.rows += q
            values += q * (stop - start)
        if values > MOST_VALUES:
            raise ConfigError(
                f"with exchange.block = {block}, the projection of {users:,} users has {values:.1e} values, too many to "
                "draw in every round; set exchange.block = 256, which protects each block equally well"
            )
        self._cache: list[Piece] | None = [] if values <= cache_values else None
        self._scale = self._scales(bounds, ratio) if reconstruction == "scaled" else None
        self._members: Tensor | None = None

    def part(self, users: slice, rows: slice) -> Projection:
        """Return the part of Phi for a range of `users` that consists of whole blocks."""
        part = copy.copy(self)
        part.users = users.stop - users.start
        part.rows = rows.stop - rows.start
        part.tiles = [
            Tile(_moved(tile.rows, rows.start), _moved(tile.columns, users.start), tile.index)
            for tile in self.tiles
            if users.start <= tile.columns.start < users.stop
        ]
        part._cache = None if self._cache is None else []
        part._scale = None if self._scale is None else self._scale[users]
        return part

    def among(self, members: Tensor) -> Projection:
        """Return the same Phi for an X with rows of `members` only (in order); the other rows are 0.

        Both share one cache.
        """
        among = copy.copy(self)
        among._members = members
        among._scale = None if self._scale is None else self._scale[members]
        return among

    def _scales(self, bounds: list[tuple[int, int]], ratio: float) -> Tensor:
        """Return 1 / (1 + (m+1)/q) for each user's block (N, 1), the multiple of Phi^T Y with the least
        expected error.
        """
        scale = np.empty((self.users, 1), np.float32)
        for start, stop in bounds:
            m = stop - start
            scale[start:stop] = 1 / (1 + (m + 1) / block_rows(m, ratio))
        return torch.from_numpy(scale).to(self.device)

    def project(self, x: Tensor) -> Tensor:
        """Compute Y = Phi X: (N, C) -> (q, C) (eq. 13)."""
        y = x.new_zeros(self.rows, x.shape[1])
        for rows, columns, phi in self._pieces():
            place, inside = self._inside(columns)
            piece = x[place]
            if inside is not None:
                piece = x.new_zeros(columns.stop - columns.start, x.shape[1]).index_copy_(0, inside, piece)
            _blocks_of(y[rows], phi).baddbmm_(phi, _blocks_of(piece, phi))
        return y

    def reconstruct(self, y: Tensor) -> Tensor:
        """Compute X^ = Phi^T Y, scaled if configured: (q, C) -> (N, C) (eq. 14)."""
        x = y.new_empty(self.users if self._members is None else len(self._members), y.shape[1])
        for rows, columns, phi in self._pieces():
            place, inside = self._inside(columns)
            if place.start < place.stop:
                piece = torch.bmm(phi.mT, _blocks_of(y[rows], phi)).flatten(0, 1)
                x[place] = piece if inside is None else piece.index_select(0, inside)
        return x if self._scale is None else x.mul_(self._scale)

    def _inside(self, columns: slice) -> tuple[slice, Tensor | None]:
        """Return the rows of X that belong to `columns`, and the position of each among them; None if all are
        there.
        """
        if self._members is None:
            return columns, None
        first, last = torch.searchsorted(
            self._members, self._members.new_tensor([columns.start, columns.stop])
        ).tolist()
        return slice(first, last), self._members[first:last] - columns.start

    def _pieces(self) -> Iterator[Piece]:
        if self._cache is None:
            return map(self._drawn, self._groups())
        if not self._cache:
            drawn = map(self._drawn, self._groups())
            self._cache += [
                _joined(list(pieces)) for _, pieces in groupby(drawn, lambda piece: piece[0].start)
            ]
        return iter(self._cache)

    def _groups(self) -> Iterator[list[Tile]]:
        """Group successive tiles of one shape, up to `TILE_VALUES` values together."""
        group: list[Tile] = []
        for tile in self.tiles:
            if group and (
                tile.shape != group[0].shape or (len(group) + 1) * math.prod(tile.shape) > TILE_VALUES
            ):
                yield group
                group = []
            group.append(tile)
        yield group

    def _drawn(self, tiles: list[Tile]) -> Piece:
        q, width = tiles[0].shape
        values = np.empty((len(tiles), q, width), np.float32)
        for tile, place in zip(tiles, values, strict=True):
            rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([self.seed, tile.index])))
            rng.standard_normal(out=place, dtype=np.float32)
        values *= np.float32(1 / math.sqrt(q))
        first = tiles[0]
        last = tiles[-1]
        rows = slice(first.rows.start, last.rows.stop)
        columns = slice(first.columns.start, last.columns.stop)
        return rows, columns, torch.from_numpy(values).to(self.device)


class IdentityProjection:
    """The identity in place of Phi: X itself is sent, without protection."""

    protected = False

    def __init__(self, users: int, members: Tensor | None = None) -> None:
        self.users = self.rows = users
        self._members = members

    def part(self, users: slice, rows: slice) -> IdentityProjection:
        """Return the identity for a range of users."""
        return IdentityProjection(users.stop - users.start)

    def among(self, members: Tensor) -> IdentityProjection:
        """Return the identity for an X with rows of `members` only; the other rows are 0."""
        return IdentityProjection(self.users, members)

    def project(self, x: Tensor) -> Tensor:
        """Return X, with rows of zeros for users who are not members."""
        return (
            x
            if self._members is None
            else x.new_zeros(self.users, x.shape[1]).index_copy_(0, self._members, x)
        )

    def reconstruct(self, y: Tensor) -> Tensor:
        """Return the rows of Y that belong to members."""
        return y if self._members is None else y.index_select(0, self._members)


def _joined(pieces: list[Piece]) -> Piece:
    """Join the pieces of one large block, so that a cached block needs one product.

    Other lists have one piece.
    """
    rows, first, _ = pieces[0]
    _, last, _ = pieces[-1]
    return rows, slice(first.start, last.stop), torch.cat([phi for _, _, phi in pieces], -1)


def _blocks_of(x: Tensor, phi: Tensor) -> Tensor:
    """View rows (B w, C) as (B, w, C), one matrix for each block of `phi`."""
    return x.view(len(phi), -1, x.shape[1])


def _moved(place: slice, by: int) -> slice:
    return slice(place.start - by, place.stop - by)


def cut_blocks(users: int, block: int) -> list[tuple[int, int]]:
    """Return the start and stop of each block of users. With `block` = 0 there is one block.

    There are `users` // `block` blocks. The remaining users are spread over the last blocks, so that no block
    is smaller than `block` and successive blocks mostly have the same size.
    """
    count = max(1, users // block) if block else 1
    size, larger = divmod(users, count)
    bounds = [size * i + max(0, i - (count - larger)) for i in range(count + 1)]
    return list(pairwise(bounds))


def block_rows(users: int, ratio: float) -> int:
    """Return q for a block of `users`: users / ratio, rounded down, at least 1."""
    return max(1, int(users / ratio))


def is_protected(users: int, rows: int) -> bool:
    """Return whether Theorem 1's condition 2q <= N + 1 holds and q < N.

    A block of one user has q = N: its value would be sent times a known number.
    """
    return 2 * rows <= users + 1 and rows < users
