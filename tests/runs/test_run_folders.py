"""Files of a run: only their owner can read them, they survive a power cut, and a foreign run opens no other files."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copytree, move

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import verfedgnn as vf
from helpers import config
from verfedgnn.core import files
from verfedgnn.core.array_files import read_arrays, write_arrays
from verfedgnn.core.errors import Interrupted, RunError
from verfedgnn.runs.run_folder import list_runs


@pytest.fixture
def open_umask() -> Iterator[None]:
    """Let new files be readable by everybody unless the program says otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture(scope="module")
def trained(small_parties: list[vf.PartyData], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, trained under an umask that hides nothing."""
    before = os.umask(0)
    try:
        folder = tmp_path_factory.mktemp("runs") / "run"
        vf.train(small_parties, vf.Config.preset("best", epochs=4, dim=8, final=False), out=folder)
    finally:
        os.umask(before)
    return folder


def readable_by_others(folder: Path) -> list[str]:
    places = [folder, *folder.rglob("*")]
    return [str(place.relative_to(folder)) for place in places if place.stat().st_mode & 0o077]


def test_only_the_owner_reads_a_run(trained: Path) -> None:
    assert (trained / "lists" / "model").is_dir()
    assert readable_by_others(trained) == []


@pytest.mark.usefixtures("open_umask")
def test_only_the_owner_reads_a_checkpoint(small_parties: list[vf.PartyData], tmp_path: Path) -> None:
    rounds = iter(range(100))
    with pytest.raises(Interrupted):
        vf.train(small_parties, config(), out=tmp_path / "cut", stop=lambda: next(rounds) == 3)
    assert any((tmp_path / "cut" / "checkpoint").rglob("*.safetensors"))
    assert readable_by_others(tmp_path / "cut") == []


@pytest.mark.usefixtures("open_umask")
def test_only_the_owner_reads_exports(
    trained: Path, tmp_path: Path, command: Callable[..., tuple[int, str, str]]
) -> None:
    assert command("recommend", trained, "--all", "--out", tmp_path / "best.parquet")[0] == 0
    assert stat.S_IMODE((tmp_path / "best.parquet").stat().st_mode) == 0o600
    assert command("report", trained, "--out", tmp_path / "report")[0] == 0
    assert readable_by_others(tmp_path / "report") == []


@pytest.mark.usefixtures("open_umask")
def test_a_file_is_private_before_it_has_content(tmp_path: Path) -> None:
    """Also where a readable file of the temporary name was left behind."""
    part = tmp_path / ".file.part"
    part.write_text("left behind")
    part.chmod(0o666)
    with files.replacing(tmp_path / "file") as file:
        assert stat.S_IMODE(part.stat().st_mode) == 0o600
        file.write(b"content")
    assert (tmp_path / "file").read_bytes() == b"content"
    assert not part.exists()


def test_every_file_of_a_run_is_flushed_before_it_appears(
    small_parties: list[vf.PartyData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut, a file or folder with its final name is complete: its bytes and its entry are on disk."""
    flushed: set[int] = set()
    fsync = os.fsync

    def note(handle: int) -> None:
        flushed.add(os.fstat(handle).st_ino)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", note)
    vf.train(small_parties, config(), out=tmp_path / "run")
    places = list((tmp_path / "run").rglob("*"))
    missing = [str(place) for place in places if place.stat().st_ino not in flushed and place.name != ".lock"]
    assert missing == []


@pytest.mark.parametrize("name", ["/etc/passwd", "../elsewhere/film", "..", "a/b", ".hidden", ""])
def test_a_foreign_table_of_parties_names_no_other_files(trained: Path, tmp_path: Path, name: str) -> None:
    """A run from elsewhere must not bring in another run's tables, which a report or an export would publish."""
    foreign = tmp_path / "foreign"
    copytree(trained, foreign)
    (tmp_path / "foreign" / "elsewhere").mkdir()
    secret = sorted((foreign / "parties").glob("[!_]*.parquet"))[0]
    move(secret, foreign / "elsewhere" / "film.parquet")
    listed = pq.read_table(foreign / "parties" / "_parties.parquet")["file"].to_pylist()
    pq.write_table(pa.table({"file": [name, *listed[1:]]}), foreign / "parties" / "_parties.parquet")
    with pytest.raises(vf.RunError, match="cannot be a file of the run"):
        vf.Run.load(foreign)


@pytest.mark.parametrize("place", ["parties", "parties/_users.parquet", "model/_public.safetensors"])
def test_a_foreign_run_links_to_no_other_files(trained: Path, tmp_path: Path, place: str) -> None:
    foreign = tmp_path / "foreign"
    copytree(trained, foreign)
    move(foreign / place, tmp_path / "elsewhere")
    (foreign / place).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(vf.RunError, match="outside the run"):
        vf.Run.load(foreign)


def test_a_foreign_run_in_a_list_links_to_no_other_files(trained: Path, tmp_path: Path) -> None:
    foreign = Path(copytree(trained, tmp_path / "foreign"))
    move(foreign / "metrics.json", tmp_path / "elsewhere")
    (foreign / "metrics.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="outside the run"):
        list_runs(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("history", 2_000_000),
        ("history", -1),
        ("item_rows", 10**9),
        ("history_pointers", -5),
        ("history_pointers", 10**12),
    ],
)
def test_weights_between_items_lead_to_items_of_the_run(
    trained: Path, tmp_path: Path, name: str, value: int
) -> None:
    """`forget` and `add_items` hand them to native code, which wrote wherever they led."""
    file = Path(copytree(trained, tmp_path / "run")) / "lists" / "model" / "party-0.safetensors"
    arrays = read_arrays(file)
    users, items = len(arrays["users"]), len(arrays["items"])
    arrays |= {"item_weights": np.zeros((items, items), np.float16), "item_rows": np.arange(items)}
    arrays |= {"history_pointers": np.minimum(np.arange(users + 1), 1), "history": np.zeros(1, np.int64)}
    write_arrays(file, arrays)
    vf.Run.load(tmp_path / "run")
    changed = arrays[name].copy()
    changed[-1] = value
    write_arrays(file, arrays | {name: changed})
    with pytest.raises(RunError, match="lead outside"):
        vf.Run.load(tmp_path / "run")
    # the difference of two numbers of 8 bits is never negative
    back = (np.arange(users + 1) % 2).astype(np.uint8)
    write_arrays(file, arrays | {"history_pointers": back})
    with pytest.raises(RunError, match="lead outside"):
        vf.Run.load(tmp_path / "run")


@pytest.mark.parametrize("column", ["user", "item"])
@pytest.mark.parametrize("value", [-1, 2_000_000_000, 0.5])
def test_ratings_of_a_foreign_run_are_of_its_users_and_items(
    trained: Path, tmp_path: Path, column: str, value: float
) -> None:
    file = Path(copytree(trained, tmp_path / "run")) / "parties" / "party-0.parquet"
    table = pq.read_table(file)
    values = [value, *table[column].to_pylist()[1:]]
    place = table.column_names.index(column)
    pq.write_table(table.set_column(place, column, pa.array(values)), file)
    with pytest.raises(RunError, match="of no user or item"):
        vf.Run.load(tmp_path / "run")


def test_a_link_to_a_whole_run_is_followed(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(trained)
    assert vf.Run.load(tmp_path / "latest").parties
