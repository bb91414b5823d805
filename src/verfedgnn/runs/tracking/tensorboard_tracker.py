"""TensorBoard: event files in the folder RUN-tensorboard beside the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from verfedgnn.core.files import make_folder


class TensorBoardTracker:
    """A run as event files, for `tensorboard --logdir RUN-tensorboard`."""

    def start(self, name: str, folder: Path, run_id: str | None) -> str | None:
        """Open the event file; a resumed training adds another one, which TensorBoard joins to the first."""
        place = folder.parent / f"{folder.name}-tensorboard"
        make_folder(place)
        self._writer = SummaryWriter(str(place))
        return None

    def parameters(self, values: Mapping[str, str]) -> None:
        """Log the settings as a table."""
        rows = "\n".join(f"| {name} | {value} |" for name, value in values.items())
        self._writer.add_text("settings", f"| setting | value |\n|---|---|\n{rows}")

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Log figures at a round."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def artefacts(self, files: Sequence[Path]) -> None:
        """Show the report, if there is one, as text; TensorBoard stores no other files."""
        for file in files:
            if file.suffix == ".md":
                self._writer.add_text("report", file.read_text("utf-8"))

    def end(self, finished: bool) -> None:
        """Write the last events and close their file."""
        self._writer.close()
