"""A federation as a job of NVIDIA FLARE, for sites that already run it.

from nvflare.recipe import PocEnv
import verfedgnn_flare

verfedgnn_flare.recipe("coordinator/federation.toml").run(PocEnv(num_clients=3))
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verfedgnn_flare.job_recipe import FederationRecipe


def recipe(federation: Path | str, *, name: str | None = None) -> FederationRecipe:
    """Return FLARE's recipe of a job that trains the federation with this `federation.toml`.

    Args:
        federation: The agreement, or the folder that holds it. Parties must have the names of FLARE's sites.
        name: Name of the job. Default: the name of the federation.

    The job holds the fingerprint of the agreement and no data. Each site reads its federation folder, its key and its ratings
    as `local/verfedgnn.toml` in its workspace says (`verfedgnn flare site` writes it).
    """
    from verfedgnn_flare.job_recipe import FederationRecipe

    return FederationRecipe(Path(federation), name)
