"""Every command as its users meet it: help, --quiet, --json, exit codes, signals, broken pipes, completion."""

from __future__ import annotations

import importlib
import json
import os
import pty
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import typer

import verfedgnn as vf
from verfedgnn.cli.command_app import GROUP, PACKAGES
from verfedgnn.cli.main import app, main
from verfedgnn.cli.shared_options import PRESETS

pytestmark = pytest.mark.usefixtures("short_own_models")
Command = Callable[..., tuple[int, str, str]]
SMALL = ("--data", "small.csv", "--parties", "3", "--threads", "1")


def leaves(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, found in group.commands.items():
        if hasattr(found, "commands"):
            yield from leaves(found, (*path, name))
        else:
            yield " ".join((*path, name)), found


COMMANDS = dict(leaves(typer.main.get_command(app)))


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `verfedgnn ...` in this process: exit code, standard output, standard error."""

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["verfedgnn", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return run


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, the status of a coordinator and an empty bench."""
    folder = tmp_path_factory.mktemp("terminal")
    parties = vf.split_items(vf.data.synthetic_ratings(users=120, items=60, ratings=3000, seed=2), parties=3)
    vf.train(
        parties,
        vf.Config.preset("best").with_values({"epochs": 6, "gate": False, "dim": 8}),
        out=folder / "run",
    )
    draw = random.Random(0)
    pairs = [(u, i) for u in range(40) for i in range(12) if draw.random() < 0.65]
    rows = [f"u{u},i{i},{1 + (u * i + u) % 5}" for u, i in pairs]
    (folder / "small.csv").write_text("user,item,rating\n" + "\n".join(rows) + "\n")
    (folder / "hub").mkdir()
    (folder / "hub" / "status.json").write_text(
        json.dumps({"role": "coordinator", "parties": {}, "updated": time.time()})
    )
    return folder


# -- what every command has ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_explained(name: str) -> None:
    found = COMMANDS[name]
    assert found.help
    for option in found.params:
        assert option.help, f"{name} {option.name}"
        assert option.help.endswith("."), f"{name} {option.name}: {option.help}"


def test_quiet_and_json_are_taken_anywhere(command: Command) -> None:
    expected = command("settings", "dim", "--json")
    assert expected[0] == 0
    for place in range(3):
        words = ["settings", "dim"]
        words.insert(place, "--json")
        assert command(*words) == expected, words
    code, out, err = command("federation", "--json", "show", "nowhere", "--quiet")
    assert (code, out) == (2, "")
    assert err.startswith("error: ")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_and_a_slip_of_the_pen(command: Command, name: str) -> None:
    code, out, err = command(*name.split(), "--help")
    assert code == 0
    assert "--quiet prints only the result; --json prints it as one line of JSON." in " ".join(out.split())
    assert not re.search(r"<[a-z]", out), "kinds of values are words"
    code, out, err = command(*name.split(), "--no-such-option")
    assert (code, out) == (2, "")
    assert err.startswith("error: No such option: --no-such-option")
    assert err.endswith(f"see `verfedgnn {name} --help`\n")
    assert err.count("\n") == 1


MISTAKES = {
    "train": "--resume none",
    "lift": "none",
    "confirm": "none.csv",
    "evaluate": "none",
    "settings": "nothing",
    "recommend": "none --user 1",
    "serve": "none",
    "report": "none",
    "runs": "none",
    "diff": "none none",
    "promote": "none --over none",
    "night": "none evaluate",
    "nights": "none",
    "forget": "none --user 1",
    "data check": "none.csv",
    "data synth": "--out x --items 2",
    "compare": "--methods magic",
    "paper": "table99",
    "attack": "none",
    "audit": "none",
    "bench": "nothing",
    "federation init": "hub --address nowhere",
    "federation join-request": "server",
    "federation approve": "none a.csr",
    "federation accept": "none",
    "federation show": "none",
    "federation verify": "none --federation none",
    "flare job": "--federation none --out jobs",
    "flare site": "none --federation none",
    "coordinator": "none",
    "party": "--federation none",
    "status": "none",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_mistake_is_one_line(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = command(*name.split(), *MISTAKES[name].split())
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir()), "nothing is left behind"


UNWRITABLE = {
    "train": "--out file/run --data none.csv",
    "report": "run --out file/report",
    "compare": "--out file/x --data none.csv",
    "paper": "table2 --out file/x",
    "bench": "none.csv --out file/x.json",
    "data synth": "--out file/shops",
    "federation init": "file/hub --address 127.0.0.1:7443",
    "federation join-request": "film --out file/film",
}


@pytest.mark.parametrize("name", UNWRITABLE)
def test_a_place_that_cannot_be_written_is_said_first(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Before data are read: those named here are not there."""
    monkeypatch.chdir(place)
    (place / "file").touch()
    code, out, err = command(*name.split(), *UNWRITABLE[name].split())
    assert (code, out) == (2, "")
    assert "file" in err
    assert "none.csv" not in err
    assert err.count("\n") == 1


RESULTS = {
    "train": f"--out {{}} --set epochs=5 {' '.join(SMALL)}",
    "evaluate": "run",
    "settings": "exchange",
    "recommend": "run --user u0003 --top 3",
    "report": "run --out {}",
    "runs": ".",
    "diff": "run run",
    "data check": "small.csv",
    "data synth": "--out {} --users 40",
    "compare": "--methods bias --seeds 1 --out compared --jobs 1 --data small.csv --parties 3",
    "paper": "table1 --out {}",
    "attack": "run --as coordinator --rounds 3",
    "audit": "run --rounds 7 --victims 5 --no-compare",
    "bench": "small.csv --parties 3 --seeds 1 --set epochs=3 --out {}.json",
    "status": "hub",
}


def assert_ends_with_a_command(err: str) -> None:
    """Check that the last line is a command that parses."""
    last = err.splitlines()[-1]
    assert last.startswith("next")
    words = shlex.split(last.partition(": ")[2])[1:]
    context = typer.main.get_command(app).make_context("verfedgnn", list(words))
    group: Any = context.command
    rest = [*context._protected_args, *context.args]
    while hasattr(group, "commands"):
        name, group, rest = group.resolve_command(context, rest)
    group.make_context(name, rest)


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("name", RESULTS)
def test_results_and_remarks(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(place)
    stem = name.replace(" ", "-")
    code, out, err = command(*name.split(), *RESULTS[name].format(f"{stem}-1").split(), "--quiet", "--json")
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    found = json.loads(out)
    if name == "train":
        assert found == json.loads((place / "train-1" / "metrics.json").read_text())
    code, out, err = command(*name.split(), *RESULTS[name].format(f"{stem}-2").split())
    assert code == 0, err
    assert out
    assert "\x1b" not in out + err, "colours and bars are for terminals"
    if name != "settings":
        assert_ends_with_a_command(err)


def test_membership_in_json(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    silent = ("--quiet", "--json")
    made = [
        command("federation", "init", "hub", "--address", "127.0.0.1:7443", *silent),
        command("federation", "join-request", "film", *silent),
        command("federation", "approve", "hub", "film/film.csr", "--yes", *silent),
        command("federation", "show", "hub", *silent),
        command("federation", "approve", "hub", "--renew", *silent),
        command(*silent, "federation", "approve", "hub", "--remove", "film"),
    ]
    assert all(code == 0 and err == "" and out.count("\n") == 1 for code, out, err in made), made
    found = [json.loads(out) for _, out, _ in made]
    assert found[1]["request"] == "film/film.csr"
    assert [[member["name"] for member in each["members"]] for each in (found[2], found[5])] == [
        ["server", "film"],
        ["server"],
    ]
    assert found[2] == found[3]


def test_an_address_is_no_source_and_its_password_is_not_shown(command: Command) -> None:
    for words in (("train", "--data"), ("data", "check")):
        code, out, err = command(*words, "film=postgresql://bob:hunter2@db/shop")
        assert code == 2
        assert "postgresql:/... is an address" in out + err
        assert "hunter2" not in out + err


def test_nobody_confirms(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command("federation", "init", "hub", "--address", "127.0.0.1:7443")
    command("federation", "join-request", "film")
    monkeypatch.setattr("verfedgnn.cli.federation_command._has_terminal", lambda: False)
    code, out, err = command("federation", "approve", "hub", "film/film.csr", "--json")
    assert (code, out) == (2, "")
    assert "nothing changed" in err


# -- terminals and pipes -------------------------------------------------------------------------------------------------


def shell() -> list[str]:
    """The words that start a command."""
    return [sys.executable, "-m", "verfedgnn"]


def on_a_terminal(words: list[str], folder: Path, **environment: str) -> str:
    """What a command writes where both streams are a terminal."""
    outer, inner = pty.openpty()
    surroundings = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")}
    surroundings |= {"TERM": "xterm"} | environment
    process = subprocess.Popen([*shell(), *words], cwd=folder, stdout=inner, stderr=inner, env=surroundings)
    os.close(inner)
    written = b""
    while True:
        try:
            more = os.read(outer, 4096)
        except OSError:  # Linux: the other end is closed
            break
        if not more:
            break
        written += more
    os.close(outer)
    process.wait()
    return written.decode()


@pytest.mark.usefixtures("warm")
def test_colours_on_a_terminal_unless_they_are_not_wanted(tmp_path: Path) -> None:
    assert "\x1b[1;31merror:" in on_a_terminal(["evaluate", "--nothing"], tmp_path)
    assert "\x1b[1merror:" in on_a_terminal(["evaluate", "--nothing"], tmp_path, NO_COLOR="1")


@pytest.mark.usefixtures("warm")
def test_a_bar_on_a_terminal(place: Path) -> None:
    words = ["train", *SMALL, "--set", "epochs=5"]
    written = on_a_terminal(words, place)
    assert "━" in written
    assert "\x1b[?25h" in written, "the cursor is shown again"


@pytest.mark.usefixtures("warm")
def test_a_reader_that_leaves_does_not_end_a_training(place: Path) -> None:
    words = [*shell(), "train", "--out", "unread", *SMALL, "--set", "epochs=5"]
    process = subprocess.Popen(words, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stderr.close()
    assert process.wait(180) == 0
    assert (place / "unread" / "metrics.json").is_file()


# -- signals -------------------------------------------------------------------------------------------------------------


def signalled(monkeypatch: pytest.MonkeyPatch, where: str, number: signal.Signals) -> None:
    """Let this process receive a signal whenever the function `where` has done its work."""
    module, _, name = where.rpartition(".")
    function = getattr(importlib.import_module(module), name)

    def stop(*values: Any) -> Any:
        result = function(*values)
        os.kill(os.getpid(), number)
        return result

    monkeypatch.setattr(where, stop)


def continuation(err: str) -> list[str]:
    """The command that the last line says to continue with."""
    words = shlex.split(err.rpartition("continue with `")[2].rstrip().rstrip("`"))
    assert words[0] == "verfedgnn"
    return words[1:]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_training_says_how_it_goes_on(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.chdir(place)
    folder = f"stopped-{number}"
    short = ["--set", "epochs=12", "--set", "evaluate_every=5"]
    with monkeypatch.context() as patched:
        signalled(patched, "verfedgnn.training.loop.write_history", number)
        code, _, err = command("train", *SMALL, "--out", folder, *short, "--json", "--quiet")
    assert code == 4, err
    assert err.count("\n") == 1
    again = continuation(err)
    assert again == ["train", "--resume", folder, "--quiet", "--json"]
    assert any((place / folder / "checkpoint").iterdir())
    if number is signal.SIGINT:
        code, _, err = command(*again, "--model", "gat")
        assert (code, "leave out all options" in err) == (2, True)
        code, out, err = command(*again)
        assert (code, err) == (0, "")
        assert json.loads(out)["rounds"] == 12


@pytest.mark.usefixtures("warm")
def test_a_stopped_comparison_goes_on_by_the_same_command(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    of = ["--methods", "bias,mf", "--seeds", "1", "--jobs", "1", "--set", "epochs=10"]
    words = ["compare", *SMALL[:4], *of, "--out", "halves", "--json"]
    records = place / "halves" / "cells.jsonl"
    with monkeypatch.context() as patched:
        signalled(patched, "verfedgnn_research.experiments.training_queue._describe", signal.SIGINT)
        code, _, err = command(*words)
    assert code == 4, err
    assert "stopped with 1 of 2 trainings done" in err
    assert continuation(err) == words
    kept = records.read_text()
    code, out, _ = command(*words, "--quiet")
    assert code == 0
    assert [each["method"] for each in json.loads(out)["trainings"]] == ["bias", "mf"]
    assert records.read_text().startswith(kept)


def test_an_interruption_elsewhere_is_not_an_error_of_the_program(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.chdir(place)
    monkeypatch.setattr("verfedgnn_research.attacks.coordinator_attack.attack_gradients", stop)
    code, out, err = command("attack", "run", "--as", "coordinator", "--quiet")
    assert (code, out) == (4, "")
    assert err == "error: interrupted; continue with `verfedgnn attack run --as coordinator --quiet`\n"


# -- completion and speed ------------------------------------------------------------------------------------------------


def test_no_command_is_slow_to_explain_itself() -> None:
    check = "import sys; import verfedgnn.cli.main; print(*{'torch', 'pydantic', 'pyarrow', 'numpy'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", check], text=True) == "\n"


LIGHT = (
    "federation init hub --address localhost:7443",
    "federation join-request film",
    "federation join-request books",
    "federation approve hub film/film.csr books/books.csr --yes",
    "federation show hub",
    "federation approve hub --renew",
    "federation approve hub --remove books",
    "status run",
    "runs .",
)
"""What organisations do before they train, and while: keys, certificates, roster, agreement, a look at the state."""


def test_a_roster_is_kept_without_torch(tmp_path: Path) -> None:
    """Each of them starts in the time of --help and runs on a machine that could not train."""
    later = {"federation verify", "federation accept"}  # need transcripts, and a running coordinator
    begun = {words for words in COMMANDS if words.startswith("federation ")} - later
    assert all(any(line.startswith(words) for line in LIGHT) for words in begun), (
        "a new command is to be added to LIGHT"
    )
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "status.json").write_text(json.dumps({"state": "finished", "parties": {}}))
    for name in ("config.toml", "history.jsonl"):
        (tmp_path / "run" / name).touch()
    script = (
        "import sys; from verfedgnn.cli.main import app\n"
        "for line in sys.argv[1:]:\n"
        "    app(line.split(), standalone_mode=False)\n"
        "    assert not {'torch', 'numpy', 'pyarrow'} & set(sys.modules), line\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *LIGHT],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "books is no longer a member" in done.stdout, "the commands did their work"


def test_commands_of_packages_are_offered_and_light() -> None:
    """The names for which the product says what to install are those of the packages, and help loads no torch."""
    offered = {entry.name: entry.dist.name for entry in entry_points(group=GROUP) if entry.dist}
    assert offered.items() >= PACKAGES.items()
    check = (
        "import sys, typer.main; from verfedgnn.cli.main import app\n"
        "assert 'verfedgnn_research' not in sys.modules\n"
        "names = set(typer.main.get_command(app).commands)\n"
        "assert 'audit' in names and 'verfedgnn_research' in sys.modules\n"
        "print(*{'torch', 'pydantic', 'pyarrow', 'numpy', 'nvflare'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", check], text=True) == "\n"


def test_a_command_of_a_missing_package_says_what_to_install(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verfedgnn.cli.command_app.entry_points", lambda group: ())
    monkeypatch.setattr(typer.main, "get_command", typer.main.get_command.__wrapped__)
    code, out, err = command("audit", "run")
    assert (code, out) == (2, "")
    assert err == (
        "error: verfedgnn audit is in the package verfedgnn-research, which is not installed; "
        "run in a checkout: pip install packages/verfedgnn-research\n"
    )
    code, out, _ = command("--help")
    assert code == 0
    assert "audit" not in out


def test_names_in_help_are_those_there_are() -> None:
    from verfedgnn.config import presets
    from verfedgnn_research import names
    from verfedgnn_research.baselines import METHODS
    from verfedgnn_research.paper import EXPERIMENTS

    assert tuple(presets()) == PRESETS
    assert tuple(METHODS) == names.METHODS
    assert tuple(EXPERIMENTS) == names.EXPERIMENTS


COMPLETED = {
    "verfedgnn eval": ["evaluate"],
    "verfedgnn federation app": ["approve"],
    "verfedgnn train --qui": ["--quiet"],
}


@pytest.mark.parametrize("line", COMPLETED)
def test_tab(
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["verfedgnn"])
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    for key, value in (words | {"_VERFEDGNN_COMPLETE": "complete_bash"}).items():
        monkeypatch.setenv(key, value)
    with pytest.raises(SystemExit):
        main()
    found = capsys.readouterr().out.splitlines()
    assert set(found) >= set(COMPLETED[line])
    assert all(text.startswith(line.split()[-1]) for text in found)


def test_every_setting_is_explained(command: Command) -> None:
    from verfedgnn.config import presets
    from verfedgnn.config.tree import settings

    code, out, err = command("settings")
    assert (code, err) == (0, "")
    for path in settings():
        assert f"\n{path}: " in f"\n{out}"
    assert "\n    paper 5   best off   means off   private off\n" in out, "its value in each preset"
    code, out, _ = command("settings", "--json")
    entries = {entry["name"]: entry for entry in json.loads(out)}
    assert list(entries) == list(settings())
    for entry in entries.values():
        assert entry["explanation"].endswith(".")
        assert entry["range"]
        assert entry["belongs_to"] or list(entry["presets"]) == sorted(
            presets(), key=lambda name: (name != "paper", name)
        )
    assert entries["gradients.r"]["presets"] == {"paper": 3.0}
    assert entries["gradients.r"]["belongs_to"] == "gradients.mechanism = ternary"


def test_settings_by_name(command: Command) -> None:
    _, out, _ = command("settings", "lr")
    assert out.splitlines()[0] == "training.lr: number, above 0; default 0.05"
    assert "training.l2" not in out
    _, out, _ = command("settings", "bias")
    assert [
        line.split(":")[0]
        for line in out.splitlines()
        if line.startswith(("model.", "training.")) and ":" in line
    ] == ["model.biases", "training.l2_bias"]
    code, _, err = command("settings", "gradients.resclae")
    assert code == 2
    assert "did you mean gradients.rescale" in err


def test_the_help_groups_commands_and_names_their_packages(command: Command) -> None:
    _, out, _ = command("--help")
    panel = out[out.index("Package verfedgnn-") :]
    assert "Package verfedgnn-research" in panel
    assert "Package verfedgnn-flare" in panel
    assert all(f" {name} " in panel for name in PACKAGES)
    assert all(f" {name} " in out[: -len(panel)] for name in ("train", "settings", "recommend", "party"))
