"""A party's run folder: aligned data, a secret, checkpoints and finally its model. Nothing in it leaves the party."""

from __future__ import annotations

import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from verfedgnn.core.errors import RunError
from verfedgnn.core.files import make_folder, write_bytes, writing
from verfedgnn.core.key_stream import KEY_BYTES, derive_key
from verfedgnn.core.random_streams import simulated_secret
from verfedgnn.data.ids import StrArray
from verfedgnn.federation.certificates import write_secret
from verfedgnn.federation.identity import MemberIdentity
from verfedgnn.federation.stages import Stage, list_stages
from verfedgnn.protocol.checkpoint_state import CheckpointState
from verfedgnn.runs.checkpoint import read_checkpoint, write_checkpoint
from verfedgnn.runs.ledger import Ledger
from verfedgnn.runs.party_tables import read_party_tables
from verfedgnn.runs.prepared_data import Prepared, prepare
from verfedgnn.runs.run import begin_folder, write_history
from verfedgnn.runs.run_layout import LAST_RELEASE, LISTS, RESULT
from verfedgnn.runs.start_from import recorded_ancestor

FIRST_ROUNDS = "first_rounds"
"""Prefix of the arrays of the model of the first rounds in a stored result."""
_MARK = "federation.txt"
"""File that names the agreement and the alignment of the folder; written last."""


@dataclass(frozen=True)
class StageResult:
    """What one training gave this party, before the gate."""

    rounds: int
    """Number of rounds; 0 if the training was skipped, because a party had nothing to train it on."""
    arrays: dict[str, Tensor]
    """The model (`PartyModel.arrays`), the public parameters `public`, `others_means` where users' means were shared, and the model
    of the first rounds where users were withheld."""
    ledger: Ledger
    figures: dict[str, Any]
    """best_round, seconds, privacy, digest, and ratings: the training ratings of all parties."""

    @property
    def is_skipped(self) -> bool:
        """Whether no rounds took place."""
        return not self.rounds


class PartyStore:
    """The state of a party that survives a restart."""

    def __init__(self, folder: Path, identity: MemberIdentity) -> None:
        self.folder = folder
        self.identity = identity
        self.stages = list_stages(identity.agreement)
        """The trainings of the federation, in their order."""

    @property
    def is_aligned(self) -> bool:
        """Whether aligned users are stored."""
        return (self.folder / _MARK).is_file()

    @property
    def is_finished(self) -> bool:
        """Whether all trainings have finished and the served model is stored."""
        return (self.folder / "metrics.json").is_file()

    @property
    def is_trained(self) -> bool:
        """Whether all trainings have finished; the gates may not be chosen yet."""
        return self.is_finished or self.next_stage is None

    @property
    def has_training(self) -> bool:
        """Whether there is a checkpoint or a model in addition to aligned users."""
        return self.is_finished or (self.folder / "checkpoint").is_dir()

    def save_alignment(self, prepared: Prepared, alignment: str) -> None:
        """Store the aligned data and a new secret, from which noise and batches derive."""
        agreement = self.identity.agreement
        self.clear()
        with writing(self.folder):
            make_folder(self.folder)
            self.folder.chmod(0o700)  # where somebody else created it
        begin_folder(self.folder, agreement.training_config, [prepared.party], [prepared.parts])
        write_secret(self.folder / "secret", secrets.token_bytes(KEY_BYTES))
        with writing(self.folder):
            write_bytes(self.folder / _MARK, f"{agreement.digest()}\n{alignment}\n".encode())

    def clear(self) -> None:
        """Remove the alignment and everything that depends on it."""
        with writing(self.folder):
            for name in (_MARK, "secret", "status.json"):
                (self.folder / name).unlink(missing_ok=True)
            for name in ("parties", "checkpoint", LISTS):
                shutil.rmtree(self.folder / name, ignore_errors=True)

    @staticmethod
    def read_rows(folder: Path) -> StrArray:
        """Return the users of a party's run folder by row, "" for users of other parties."""
        parties, _ = read_party_tables(folder / "parties")
        if len(parties) != 1:
            raise RunError(
                f"{folder} is not the run folder of one party; give the folder that `party` or `align` wrote"
            )
        return parties[0].ratings.user_ids

    def load(self, device: torch.device) -> tuple[Prepared, str]:
        """Return the stored data and the name of its alignment; raise `RunError` if the agreement has changed."""
        agreement, alignment = (self.folder / _MARK).read_text("utf-8").split()
        if agreement != self.identity.agreement.digest():
            raise RunError(
                f"{self.folder} belongs to another agreement than the given federation.toml; choose another --out"
            )
        parties, parts = read_party_tables(self.folder / "parties")
        continues = recorded_ancestor(self.folder) is not None
        (prepared,) = prepare(
            parties, self.identity.agreement.training_config, device, parts, continues=continues
        )
        return prepared, alignment

    def read_secret(self, stage: Stage) -> bytes:
        """Return the secret of this party's randomness in a training; with unprotected noise it derives from the agreed seed."""
        if "noise" in stage.config.unprotected:
            return simulated_secret(stage.config.seed, self.identity.index)
        secret = (self.folder / "secret").read_bytes()
        if not stage.first:  # no two trainings share their noise
            secret = derive_key(secret, stage.name)
        return secret

    def begin_stage(self, stage: Stage) -> Path:
        """Create the folder of a training and return it."""
        folder = stage.folder(self.folder)
        with writing(folder):
            make_folder(folder)
            if not stage.first:
                write_bytes(folder / "config.toml", stage.config.to_toml().encode())
            if not (folder / "history.jsonl").is_file():
                write_history(folder, [])
        return folder

    def worker_folder(self, stage: Stage, rank: int) -> Path:
        """Return the folder of a worker other than the first in a training."""
        return stage.folder(self.folder) / "checkpoint" / f"worker-{rank}"

    # -- results of single trainings, until the run is complete ------------------------------------------

    def write_result(self, stage: Stage, result: StageResult) -> None:
        """Store the result of a training, all of it or nothing."""
        state = CheckpointState({key: value.cpu().numpy() for key, value in result.arrays.items()})
        values = {"ledger": result.ledger.to_dict(), "figures": result.figures}
        write_checkpoint(self._result_folder(stage), result.rounds, {"result": state}, values)
        # From now on nobody can ask for a round of this training again.
        for last in list(stage.folder(self.folder).rglob(LAST_RELEASE)):
            shutil.rmtree(last)

    def read_result(self, stage: Stage) -> StageResult | None:
        """Return the stored result of a training; None if the training has not finished."""
        found = read_checkpoint(self._result_folder(stage))
        if found is None:
            return None
        states, values = found
        arrays = {key: torch.from_numpy(value) for key, value in states["result"].arrays.items()}
        return StageResult(values["round"], arrays, Ledger.from_dict(values["ledger"]), values["figures"])

    @property
    def next_stage(self) -> Stage | None:
        """The first training without a result; None if all have finished."""
        open_stages = (stage for stage in self.stages if read_checkpoint(self._result_folder(stage)) is None)
        return next(open_stages, None)

    def remove_results(self) -> None:
        """Remove the results of single trainings, once the run is complete, and what is left of a skipped one."""
        for stage in self.stages:
            result = self.read_result(stage)
            shutil.rmtree(self._result_folder(stage), ignore_errors=True)
            if result is not None and result.is_skipped:
                shutil.rmtree(stage.folder(self.folder), ignore_errors=True)

    def _result_folder(self, stage: Stage) -> Path:
        return stage.folder(self.folder) / "checkpoint" / RESULT
