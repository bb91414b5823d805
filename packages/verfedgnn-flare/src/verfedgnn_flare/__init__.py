"""A federation as a job of NVIDIA FLARE, for sites that already run it.

from nvflare.recipe import PocEnv
import verfedgnn_flare

verfedgnn_flare.recipe("coordinator/federation.toml").run(PocEnv(num_clients=3))
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nvflare.recipe.spec import Recipe


def recipe(federation: Path | str, *, name: str | None = None) -> Recipe:
    """Return FLARE's recipe of a job that trains the federation with this `federation.toml`: one controller, an executor a site.

    Args:
        federation: The agreement, or the folder that holds it. Parties must have the names of FLARE's sites.
        name: Name of the job. Default: the name of the federation.

    The job holds the fingerprint of the agreement, no code and no data. Each site reads its federation folder, its key and its
    ratings as `local/verfedgnn.toml` in its workspace says (`verfedgnn flare site` writes it). Submitted again, the job resumes.
    """
    from nvflare.job_config.api import FedJob
    from nvflare.recipe.spec import Recipe

    from verfedgnn.federation.agreement import load_agreement
    from verfedgnn.federation.certificates import short_fingerprint
    from verfedgnn.federation.roster import check_ready
    from verfedgnn_flare.controller import FederationController
    from verfedgnn_flare.executor import PartyExecutor
    from verfedgnn_flare.job_site import TASK

    agreement = load_agreement(Path(federation))
    check_ready(agreement)
    # FLARE ends the job when fewer sites than a round needs are left.
    job = FedJob(name or agreement.name, min_clients=agreement.quorum, fail_fast=True)
    job.set_app_packages(["verfedgnn", "verfedgnn_flare"])  # the classes are installed at the sites
    fingerprint = short_fingerprint(agreement.digest())
    job.to_server(FederationController(fingerprint))
    for party in agreement.parties:
        job.to(PartyExecutor(fingerprint), party.name, tasks=[TASK])
    return Recipe(job)
