"""A party's run folder: aligned data, a secret, checkpoints and finally its model. Nothing in it leaves the party."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

import torch

from verfedgnn.core.errors import RunError
from verfedgnn.core.files import writing
from verfedgnn.data.ids import StrArray
from verfedgnn.federation.certificates import write_secret
from verfedgnn.federation.identity import MemberIdentity
from verfedgnn.runs.party_tables import read_party_tables
from verfedgnn.runs.prepared_data import Prepared, prepare
from verfedgnn.runs.run import begin_folder
from verfedgnn.training.local_runtime import party_secret

_MARK = "federation.txt"
"""File that names the agreement and the alignment of the folder; written last."""


class PartyStore:
    """The state of a party that survives a restart."""

    def __init__(self, folder: Path, identity: MemberIdentity) -> None:
        self.folder = folder
        self.identity = identity

    @property
    def is_aligned(self) -> bool:
        """Whether aligned users are stored."""
        return (self.folder / _MARK).is_file()

    @property
    def is_finished(self) -> bool:
        """Whether training has finished and the model is stored."""
        return (self.folder / "metrics.json").is_file()

    @property
    def needs_gate(self) -> bool:
        """Whether the agreement asks for a gate and the party was stopped before it chose one."""
        wanted = self.identity.agreement.config.training.gate
        return wanted and not (self.folder / "model" / "alone").is_dir()

    @property
    def has_training(self) -> bool:
        """Whether there is a checkpoint or a model in addition to aligned users."""
        return self.is_finished or (self.folder / "checkpoint").is_dir()

    def save_alignment(self, prepared: Prepared, alignment: str) -> None:
        """Store the aligned data and a new secret, from which noise and batches derive."""
        agreement = self.identity.agreement
        self.clear()
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self.folder.chmod(0o700)
        begin_folder(self.folder, agreement.config, [prepared.party], [prepared.parts])
        write_secret(self.folder / "secret", secrets.token_bytes(16))
        with writing(self.folder):
            (self.folder / _MARK).write_text(f"{agreement.fingerprint()}\n{alignment}\n", "utf-8")

    def clear(self) -> None:
        """Remove the alignment and everything that depends on it."""
        with writing(self.folder):
            for name in (_MARK, "secret", "status.json"):
                (self.folder / name).unlink(missing_ok=True)
            for name in ("parties", "checkpoint"):
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
        if agreement != self.identity.agreement.fingerprint():
            raise RunError(
                f"{self.folder} belongs to another agreement than the given federation.toml; choose another --out"
            )
        parties, parts = read_party_tables(self.folder / "parties")
        (prepared,) = prepare(parties, self.identity.agreement.config, device, parts)
        return prepared, alignment

    def read_secret(self) -> int:
        """Return the seed of this party's randomness; with unprotected noise it derives from the agreed seed."""
        config = self.identity.agreement.config
        if "noise" in config.unprotected:
            return party_secret(config.seed, self.identity.index)
        return int.from_bytes((self.folder / "secret").read_bytes())
