"""Plug-ins: found by name wherever names are taken, refused with cause and remedy where they are not installed."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import my_baseline
import my_gnn
import pytest
from typer.testing import CliRunner

import verfedgnn as vf
from hub import Trial, agree
from verfedgnn import plugins
from verfedgnn.cli.main import app
from verfedgnn.core.errors import Interrupted, PluginWarning, RunError
from verfedgnn.federation.agreement import load_agreement
from verfedgnn.federation.roster import MemberIdentity
from verfedgnn.gnn.model import Model
from verfedgnn_research.baselines import in_all, method
from verfedgnn_research.experiments.training_cell import Cell

EXAMPLES = Path(my_gnn.__file__).parent
INIT = ["--address", "localhost:7443", "--preset", "paper", "--model", "sage"]


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing registered, nothing found before; as it was afterwards."""
    monkeypatch.setattr(plugins, "_registered", {})
    monkeypatch.setenv(plugins.FILES, "")  # so that it is as before afterwards, too
    plugins._run.cache_clear()
    plugins._offered.cache_clear()
    yield
    plugins._run.cache_clear()
    plugins._offered.cache_clear()


def test_a_registered_gnn_is_configured_and_trained_by_name(small_parties: list[vf.PartyData]) -> None:
    with pytest.raises(
        vf.ConfigError, match=r"unknown GNN 'sage'; available: gcn, gat, ggnn; .*--plugin FILE.py"
    ):
        vf.Config.preset("paper", model="sage")
    vf.register(my_gnn.Sage)
    assert isinstance(Model(vf.Config.preset("paper", model="sage").model, 5).operator, my_gnn.Sage)
    run = vf.train(small_parties, vf.Config.preset("paper", model="sage", epochs=2))
    assert run.metrics["rounds"] == 2
    assert 1.1 < run.metrics["test"]["rmse"] < 1.25


def test_names_are_taken_once() -> None:
    vf.register(my_gnn.Sage)
    assert vf.register(my_gnn.Sage) is my_gnn.Sage, "a notebook's cell may be run again"
    for name, text in (
        ("gcn", "'gcn' is built in"),
        ("sage", "a GNN 'sage' is already registered by my_gnn"),
        ("A b", "lower-case letters"),
    ):
        with pytest.raises(vf.ConfigError, match=text):
            vf.register(type("Other", (my_gnn.Sage,), {"name": name}))
    with pytest.raises(vf.ConfigError, match="'mf' is built in"):
        vf.register(type("Other", (my_baseline.Ease,), {"name": "mf"}))
    with pytest.raises(vf.ConfigError, match="subclass of Operator or Method"):
        vf.register(dict)  # type: ignore[type-var]


def test_a_registered_method_is_compared_by_name() -> None:
    with pytest.raises(
        vf.ConfigError, match=r"no method 'item-ridge'; choose from: popularity, .*private; .*--plugin"
    ):
        method("item-ridge")
    vf.register(my_baseline.Ease)
    assert in_all("mf,item-ridge") == ["mf", "item-ridge"]
    assert in_all("all")[-1] == "item-ridge"


def test_a_record_does_not_outlive_a_change_of_the_plugin(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    text, keys = (EXAMPLES / "my_baseline.py").read_text(), []
    for ridge in ("100.0", "50.0"):
        file.write_text(text.replace("RIDGE = 100.0", f"RIDGE = {ridge}"))
        plugins._registered.clear()
        plugins._run.cache_clear()
        plugins.load_file(file)
        keys.append(Cell(("synthetic",), "item-ridge", "gcn", 0, 3).key())
    assert keys[0] != keys[1]


def test_files_of_one_name_are_two_plugins(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text((EXAMPLES / "my_baseline.py").read_text())
    plugins._registered.clear()
    plugins.load_file(tmp_path / "a" / "mine.py")
    with pytest.raises(vf.ConfigError, match="a method 'item-ridge' is already registered"):
        plugins.load_file(tmp_path / "b" / "mine.py")


@pytest.mark.usefixtures("warm")
def test_the_command_line_takes_plugin_files_into_its_processes(tmp_path: Path) -> None:
    files = [word for name in ("my_gnn.py", "my_baseline.py") for word in ("--plugin", str(EXAMPLES / name))]
    words = [
        "compare",
        "--methods",
        "item-ridge,verfedgnn",
        "--models",
        "sage",
        "--seeds",
        "1",
        "--parties",
        "3",
        "--jobs",
        "1",
    ]
    rows = [f"u{u},i{i},{1 + (u * i) % 5}" for u in range(40) for i in range(30) if (u + i) % 3]
    (tmp_path / "few.csv").write_text("\n".join(["user,item,rating", *rows]) + "\n")
    words += ["--data", str(tmp_path / "few.csv")]
    words += ["--set", "training.epochs=2", "--out", str(tmp_path), "--quiet"]
    done = subprocess.run(
        [sys.executable, "-m", "verfedgnn", *files, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in (tmp_path / "cells.jsonl").read_text().splitlines()]
    assert {(record["method"], record["gnn"]) for record in records} == {
        ("item-ridge", "gcn"),
        ("verfedgnn", "sage"),
    }
    assert "my_gnn.py" in (tmp_path / "comparison.md").read_text()


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("import nowhere_at_all", "ModuleNotFoundError"),
        (None, "is not a Python file"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_broken_plugin_file_is_one_line(tmp_path: Path, text: str | None, cause: str) -> None:
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(vf.ConfigError, match=rf"the plug-in .*mine.py .*{cause}"):
        plugins.load_file(file)


def test_installed_packages_offer_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As metadata, so that names are known without an import; a name that is asked for is imported."""
    about = tmp_path / "acme-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    gnns = "[verfedgnn.gnns]\nsage = acme_sage\nlost = acme_sage\nbroken = acme_missing\n"
    (about / "entry_points.txt").write_text(gnns + "[verfedgnn.methods]\nitem-ridge = acme_ease:Ease\n")
    (tmp_path / "acme_sage.py").write_text((EXAMPLES / "my_gnn.py").read_text())
    (tmp_path / "acme_ease.py").write_text(
        (EXAMPLES / "my_baseline.py").read_text().replace("@vf.register\n", "")
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert plugins.list_gnns() == ["gcn", "gat", "ggnn", "broken", "lost", "sage"]
    assert "acme_sage" not in sys.modules
    assert vf.Config.preset("paper", model="sage").model.gnn == "sage"
    assert method("item-ridge").title == "Item-item ridge (EASE)"
    code = vf.Config.preset("paper", model="sage").with_code().model.code
    assert code is not None
    assert code.startswith("acme 1.0 sha256:")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.1\n")
    newer = plugins.identify(plugins.load_gnn("sage"))
    assert newer is not None
    assert plugins.extract_digest(newer) != plugins.extract_digest(code), (
        "another version may import other code"
    )
    with pytest.raises(vf.ConfigError, match="acme_missing cannot be loaded"):
        vf.Config.preset("paper", model="broken")
    with pytest.raises(
        vf.ConfigError, match="acme_sage is offered as 'lost' but does not register that name"
    ):
        vf.Config.preset("paper", model="lost")


def use(file: Path, change: str = "") -> Path:
    """The example's GNN from a file of its own, with `change` at its end, as if this process had been started with it."""
    file.parent.mkdir(exist_ok=True)
    file.write_text((EXAMPLES / "my_gnn.py").read_text() + change)
    plugins._registered.clear()
    plugins._run.cache_clear()
    plugins.load_file(file)
    return file


def test_a_member_without_the_plugin_refuses_the_federation(tmp_path: Path) -> None:
    """The file names a GNN and brings none; whoever has not installed it says so before the first message."""
    vf.register(my_gnn.Sage)
    hub = tmp_path / "hub"
    made = CliRunner().invoke(app, ["federation", "init", str(hub), *INIT])
    assert made.exit_code == 0, made.output
    assert load_agreement(hub).config.model.gnn == "sage"
    plugins._registered.clear()
    needed = hashlib.sha256((EXAMPLES / "my_gnn.py").read_bytes()).hexdigest()[:16]
    text = rf"federation.toml: unknown GNN 'sage'; .* install its package.*; the required plug-in is my_gnn.py .*{needed}"
    with pytest.raises(vf.ConfigError, match=text):
        load_agreement(hub)


def test_members_with_one_source_train_together(small_parties: list[vf.PartyData], tmp_path: Path) -> None:
    """Wherever each of them keeps it, and whatever the file is called."""
    use(tmp_path / "sage.py")
    config = vf.Config.preset("paper", model="sage", epochs=1, masking=True).with_code()
    trial = Trial(tmp_path / "trial", small_parties, config, alignment="none")
    use(tmp_path / "elsewhere" / "graphsage.py")
    trial.identities = {
        name: MemberIdentity(trial.agreement, each.key_file) for name, each in trial.identities.items()
    }
    trial.run()
    assert not trial.errors
    assert {run.config.model.code for run in trial.runs.values()} == {config.model.code}


def test_a_member_with_another_source_is_refused_before_it_connects(
    command: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """Its weights have the same shapes, so that nothing later would notice."""
    use(tmp_path / "sage.py")
    config = vf.Config.preset("paper", model="sage", masking=True)
    with pytest.raises(vf.ConfigError, match="federation trial did not agree on the code of GNN 'sage'"):
        agree(tmp_path, ["film", "books"], config)
    hub, film = str(tmp_path / "hub"), str(tmp_path / "film")
    for words in (
        ("init", hub, *INIT),
        ("join-request", "film", "--out", film),
        ("approve", hub, f"{film}/film.csr", "--yes"),
    ):
        assert CliRunner().invoke(app, ["federation", *words]).exit_code == 0
    (tmp_path / "film" / "federation.toml").write_bytes((tmp_path / "hub" / "federation.toml").read_bytes())
    agreed, other = (
        load_agreement(tmp_path / "film"),
        use(tmp_path / "other.py", "# the same weights, other numbers\n"),
    )
    assert agreed.digest() != agreed.with_values(config=agreed.config.with_code()).digest()
    code, _, err = command("--plugin", other, "party", "--federation", film, "--ratings", "film.csv")
    assert code == 2
    assert err.startswith(
        "error: film has other code of GNN 'sage' than federation hub agreed on: other.py (SHA-256 "
    )
    assert "sage.py (SHA-256 " in err
    assert "get the agreed version" in err
    with pytest.raises(vf.ConfigError, match="the coordinator has other code"):
        MemberIdentity(agreed, tmp_path / "hub" / "coordinator.key")


def test_a_federation_is_not_begun_with_code_that_nobody_can_compare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(my_gnn.Sage, "__module__", "__main__of_a_notebook")
    vf.register(my_gnn.Sage)
    made = CliRunner().invoke(app, ["federation", "init", str(tmp_path / "hub"), *INIT])
    assert "GNN 'sage' is not defined in a file" in str(made.exception)
    assert not (tmp_path / "hub").exists()


@pytest.mark.usefixtures("warm")
def test_a_run_remembers_the_code_of_its_plugin(
    small_parties: list[vf.PartyData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, run, config = (
        use(tmp_path / "sage.py"),
        tmp_path / "run",
        vf.Config.preset("paper", model="sage", epochs=3),
    )
    with pytest.raises(Interrupted):
        vf.train(small_parties, config, out=run, stop=lambda: True)
    code = f"sage.py sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"
    assert vf.resume(run).config.model.code == vf.Run.load(run).config.model.code == code, "and nothing warns"
    shutil.copytree(run, tmp_path / "begun")
    (tmp_path / "begun" / "metrics.json").unlink()
    use(file, "# changed\n")
    with pytest.warns(
        PluginWarning, match=r"run was trained with other code of GNN 'sage': .* then, .* now; .*train again"
    ):
        vf.Run.load(run)
    with pytest.raises(RunError, match=r"begun was begun with other code .* install the earlier version"):
        vf.resume(tmp_path / "begun")
    vf.train(small_parties, config, out=run, overwrite=True)  # whoever replaces a run knows
    assert vf.Run.load(run).config.model.code != code
    use(file, "# changed again\n")
    words = [sys.executable, "-m", "verfedgnn", "--plugin", str(file), "evaluate", str(run), "--quiet"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr.startswith(f"warning: {run} was trained with other code")
    assert done.stderr.count("\n") == 1, "one line, once"
    plugins._registered.clear()
    monkeypatch.setenv(plugins.FILES, "")
    with pytest.raises(
        vf.ConfigError,
        match=r"unknown GNN 'sage'; .*--plugin FILE.py .*required plug-in is sage.py \(SHA-256 [0-9a-f]{16}",
    ):
        vf.Run.load(run)


def test_built_in_names_keep_their_fingerprints() -> None:
    """Records, runs and agreements without plug-ins are found by what they always were."""
    config = vf.Config.preset("paper")
    assert config.with_code() == config
    assert config.fingerprint() == "54add95e73d03e59"


def test_a_configuration_needs_no_torch() -> None:
    """Neither plug-ins nor torch are imported for built-in names."""
    code = "import sys, verfedgnn as vf; vf.Config.preset('best'); assert 'torch' not in sys.modules, 'torch'"
    subprocess.run([sys.executable, "-c", code], check=True)
