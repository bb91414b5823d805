"""FLARE's recipe of a federation: one controller at the server, one executor at each site, and no code in the job."""

from __future__ import annotations

from pathlib import Path

from nvflare.job_config.api import FedJob
from nvflare.recipe.spec import Recipe

from verfedgnn.core.errors import ConfigError
from verfedgnn.federation.agreement import load_agreement
from verfedgnn.federation.certificates import short_fingerprint
from verfedgnn_flare.controller import FederationController
from verfedgnn_flare.executor import PartyExecutor
from verfedgnn_flare.job_site import TASK


class FederationRecipe(Recipe):  # type: ignore[misc]
    """A job that trains one federation. Resubmitting it resumes where the run folders of the sites are."""

    def __init__(self, federation: Path, name: str | None) -> None:
        agreement = load_agreement(federation)
        if len(agreement.parties) < 2:
            raise ConfigError(
                f"the roster in {federation} has fewer than two parties; approve their requests first"
            )
        if agreement.problem is not None:
            raise ConfigError(agreement.problem)
        # FLARE ends the job when fewer sites than a round needs are left.
        job = FedJob(name or agreement.name, min_clients=agreement.quorum, fail_fast=True)
        job.set_app_packages(["verfedgnn", "verfedgnn_flare"])  # the classes are installed at the sites
        fingerprint = short_fingerprint(agreement.digest())
        job.to_server(FederationController(fingerprint))
        for party in agreement.parties:
            job.to(PartyExecutor(fingerprint), party.name, tasks=[TASK])
        super().__init__(job)
