"""A party's run folder: aligned data, a secret, checkpoints, and in the end its model. All of it is the party's own."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

import torch

from verfedgnn.core.errors import RunError
from verfedgnn.core.files import writing
from verfedgnn.federation.certificates import write_secret
from verfedgnn.federation.identity import MemberIdentity
from verfedgnn.runs.party_tables import read_parties
from verfedgnn.runs.prepared_data import Prepared, prepare
from verfedgnn.runs.run import begin_folder
from verfedgnn.training.local_runtime import party_secret

_MARK = "federation.txt"
"""Which agreement and which alignment the folder belongs to; written last."""


class PartyStore:
    """What a party remembers between two starts."""

    def __init__(self, folder: Path, identity: MemberIdentity) -> None:
        self.folder, self.identity = folder, identity

    @property
    def is_aligned(self) -> bool:
        """Whether the users are aligned and stored."""
        return (self.folder / _MARK).is_file()

    @property
    def is_finished(self) -> bool:
        """Whether the model is there."""
        return (self.folder / "metrics.json").is_file()

    @property
    def needs_gate(self) -> bool:
        """Whether a gate is agreed on and was not chosen, because the party was stopped while it trained alone."""
        wanted = self.identity.agreement.config.training.gate
        return wanted and not (self.folder / "model" / "alone").is_dir()

    @property
    def has_training(self) -> bool:
        """Whether there is more than aligned users."""
        return self.is_finished or (self.folder / "checkpoint").is_dir()

    def save_alignment(self, prepared: Prepared, alignment: str) -> None:
        """Store the aligned data, and a secret that noise and batches derive from."""
        config = self.identity.agreement.config
        self.clear()
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self.folder.chmod(0o700)
        begin_folder(self.folder, config, [prepared.party], [prepared.parts])
        write_secret(self.folder / "secret", secrets.token_bytes(16))
        with writing(self.folder):
            (self.folder / _MARK).write_text(
                f"{self.identity.agreement.fingerprint()}\n{alignment}\n", "utf-8"
            )

    def clear(self) -> None:
        """Forget the alignment and everything after it."""
        with writing(self.folder):
            for name in (_MARK, "secret", "status.json"):
                (self.folder / name).unlink(missing_ok=True)
            for name in ("parties", "checkpoint"):
                shutil.rmtree(self.folder / name, ignore_errors=True)

    def load(self, device: torch.device) -> tuple[Prepared, str]:
        """What `begin` stored: the data and the name of its alignment."""
        agreement, alignment = (self.folder / _MARK).read_text("utf-8").split()
        if agreement != self.identity.agreement.fingerprint():
            raise RunError(
                f"{self.folder} belongs to another agreement than the federation file given; choose another --out"
            )
        parties, parts = read_parties(self.folder / "parties")
        (prepared,) = prepare(parties, self.identity.agreement.config, device, parts)
        return prepared, alignment

    def read_secret(self) -> int:
        """The seed of everything random at this party, unless the agreement asks for the shared one."""
        config = self.identity.agreement.config
        if "noise" in config.unprotected:
            return party_secret(config.seed, self.identity.index)
        return int.from_bytes((self.folder / "secret").read_bytes())
