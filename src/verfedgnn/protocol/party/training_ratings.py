"""The ratings that a party trains on: as a graph, as batches, and by users.

In the first rounds of a training that orders lists, a party leaves out all ratings of some users (`PartyInput.withheld`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from verfedgnn.core.graph import Graph
from verfedgnn.privacy.projection import IdentityProjection, Projection
from verfedgnn.protocol.party.batches import Batches
from verfedgnn.protocol.party.party_setup import PartySetup
from verfedgnn.protocol.round.user_blocks import UserBlock
from verfedgnn.protocol.round.user_subset import UserSubset


@dataclass(eq=False)
class TrainingRatings:
    """The training ratings of some rounds, and what is derived from them."""

    setup: PartySetup
    graph: Graph
    batches: Batches
    subsets: dict[tuple[int, bool], UserSubset] = field(default_factory=dict)

    @classmethod
    def of(cls, setup: PartySetup, all_items: int) -> TrainingRatings:
        """Derive everything from the data of `setup`; `all_items` counts the items of all parties."""
        return cls(setup, setup.make_graph(all_items), Batches(setup))

    @classmethod
    def of_first_rounds(cls, setup: PartySetup, all_items: int) -> TrainingRatings | None:
        """Return the ratings without those of withheld users; None if nothing is withheld."""
        data = setup.all_data.without_withheld()
        if not setup.config.training.withheld_rounds or len(data.train) == len(setup.all_data.train):
            return None
        return cls.of(setup.with_data(data), all_items)

    def subset(
        self, block: UserBlock, rated_only: bool, projection: Projection | IdentityProjection | None
    ) -> UserSubset:
        """Return the users to compute for a block: all of them, or only those with training ratings."""
        key = (block.index, rated_only)
        if key not in self.subsets:
            if rated_only:
                every = self.subset(block, False, projection)
                self.subsets[key] = every.with_ratings(self.setup.data.train.user, self.setup.config)
            else:
                self.subsets[key] = UserSubset.of_block(block, self.graph, projection)
        return self.subsets[key]
