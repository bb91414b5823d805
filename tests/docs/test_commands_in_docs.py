"""Run every command of README and docs/, page by page from top to bottom; `NOT_RUN` lists exceptions with their reasons.

Each page gets a folder with the files that its reader has (`READY`). Trainings are cut to a few rounds, except on the pages in
`UNCHANGED`, so that everything takes a minute. Free ports replace those on the pages. The command line also parses the commands
that are not run, so that no command, option, setting or preset is misspelt.
"""

from __future__ import annotations

import contextlib
import csv
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import verfedgnn as vf
from doc_commands import PAGES, ROOT, Command, blocks, mentioned, wrong
from shells import free_port
from verfedgnn import plugins
from verfedgnn.data import synthetic_ratings
from verfedgnn.training import own_models
from verfedgnn.training import train as trainings

NOT_RUN = [
    # page, how the command begins, why it is not run
    ("*", "pip install", "installs software; its extras are checked"),
    ("*", "make ", "sets up an environment, then trains or tests for minutes; its targets are checked"),
    ("*", "python -m webbrowser", "opens a window"),
    ("CONTRIBUTING.md", ".venv/bin/python -m pytest", "this is pytest"),
    ("CONTRIBUTING.md", ".venv/bin/python tools/", "needs a browser, and data or minutes"),
    (
        "README.md",
        "verfedgnn federation approve",
        "asks, and the request came from another machine; the tutorial does it",
    ),
    (
        "README.md",
        "verfedgnn coordinator",
        "needs other machines; the tutorial Does joining pay? trains",
    ),
    ("README.md", "verfedgnn party", "needs other machines"),
    ("docs/privacy.md", "verfedgnn party", "needs other machines"),
    ("docs/deploy.md", "python3 -m venv", "installs software"),
    ("docs/deploy.md", "for party in", "the tutorial Does joining pay? does it, one by one"),
    ("docs/deploy.md", "verfedgnn federation approve", "the same"),
    (
        "docs/deploy.md",
        "verfedgnn coordinator",
        "minutes; the tutorial Does joining pay? is a shorter training",
    ),
    ("docs/deploy.md", "verfedgnn party", "the same"),
    ("docs/deploy.md", "verfedgnn evaluate", "the same"),
    ("docs/deploy.md", "verfedgnn recommend", "the same"),
    ("docs/deploy.md", "sudo ", "changes the machine"),
    ("docs/deploy.md", "docker ", "needs Docker"),
    ("docs/deploy.md", "FEDERATION_DIR=", "needs Docker"),
    ("docs/paper.md", "export VERFEDGNN_DATA", "needs downloads"),
    ("docs/paper.md", "verfedgnn paper", "needs downloads and hours"),
    ("docs/paper.md", "verfedgnn compare", "a hundred trainings"),
    ("docs/privacy.md", "verfedgnn audit", "minutes; tests/research/test_attack_command.py audits"),
    ("docs/serving.md", "verfedgnn serve runs/demo --host 0.0.0.0", "would serve other machines"),
    (
        "docs/serving.md",
        "verfedgnn serve runs/demo --split-test",
        "the port is taken; tests/serving/test_split_test.py serves a split test",
    ),
    ("docs/serving.md", 'curl -H "Authorization', "needs another machine"),
    *(
        (
            "docs/tutorials/walk-through.md",
            f"verfedgnn {name}",
            "tools/walk_through.py runs it; other pages do, too",
        )
        for name in ("train", "report", "recommend", "serve")
    ),
    *(
        ("docs/tutorials/flare.md", begins, "benchmarks/flare_round.py --kills runs it, with eight processes")
        for begins in (
            "export NVFLARE",
            "SITES=",
            "verfedgnn flare site",
            "nvflare ",
            "kill -9",
            "verfedgnn status",
        )
    ),
    ("docs/tutorials/flare.md", "verfedgnn recommend", "needs the run of a job"),
    ("docs/tutorials/paper.md", "export VERFEDGNN_DATA", "needs downloads"),
    ("docs/tutorials/paper.md", "verfedgnn paper table3", "needs downloads"),
    ("docs/tutorials/paper.md", "verfedgnn paper table2", "needs downloads and hours"),
    ("docs/tutorials/paper.md", "verfedgnn paper all", "needs downloads and hours"),
]
UNCHANGED = {"docs/tutorials/does-joining-pay.md", "docs/tutorials/quick-start.md"}
"""Pages whose trainings are not shortened, because the page shows their results."""
NUMBER = re.compile(r"[+-]?\d[\d,]*(?:\.\d+)?")
DURATION = re.compile(r"(\d+ h )?(\d+ min )?(\d+ s )?of training")
ROUNDS = 2
STAYS = ("serve", "coordinator", "party")
"""Commands that run until they are stopped, or until other processes end."""
ALL = [command for page in PAGES for block in blocks(page) for command in block]


def reason(command: Command) -> str | None:
    """Return why a command is not run, or None if it is."""
    for page, begins, why in NOT_RUN:
        if page in ("*", command.page) and command.text.startswith(begins):
            return why
    missing = [tool for tool in ("curl", "jq") if tool in command.words and shutil.which(tool) is None]
    return f"needs {missing[0]}, which is not here" if missing else None


@pytest.mark.parametrize("command", ALL, ids=str)
def test_no_command_is_misspelt(command: Command) -> None:
    assert wrong(command) is None


@pytest.mark.parametrize("page", PAGES)
def test_no_command_in_a_sentence_is_misspelt(page: str) -> None:
    assert {command.text: found for command in mentioned(page) if (found := wrong(command))} == {}


@pytest.mark.parametrize(
    "text",
    [
        "verfedgnn train --lfit",
        "verfedgnn trian",
        "verfedgnn federation aprove hub",
        "verfedgnn train --set epoch=3",
        "verfedgnn train --preset bset",
        "for p in a b; do verfedgnn party --federaton $p; done",
        "sudo -u someone /opt/verfedgnn/bin/verfedgnn party --rating film.csv",
        "cat a | verfedgnn serve runs/demo --prot 3 > b",
        "pip install 'verfedgnn[sevre]'",
        "make dmeo",
    ],
)
def test_a_misspelt_command_is_noticed(text: str) -> None:
    assert wrong(Command("docs/made-up.md", text))


def test_the_table_has_nothing_too_much() -> None:
    assert len(ALL) > 60
    for page, begins, _ in NOT_RUN:
        assert any(page in ("*", c.page) and c.text.startswith(begins) for c in ALL), (
            f"no page has it: {page}, {begins}"
        )
    assert {command.page for command in ALL if reason(command) is None} >= set(map(str, READY))


# Files that readers of a page have before they begin.


def write_csv(path: Path, header: list[str], rows: list[tuple[object, ...]], encoding: str = "utf-8") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding=encoding) as file:
        csv.writer(file).writerows([header, *rows])


def rows_of(seed: int, prefix: str = "") -> list[tuple[object, ...]]:
    """Return ratings of users 0 to 59 on 60 items."""
    table = synthetic_ratings(users=60, items=60, ratings=1500, seed=seed)
    return [
        (int(u), f"{prefix}{v}", int(r)) for u, v, r in zip(table.user, table.item, table.rating, strict=True)
    ]


def three_files(folder: Path) -> None:
    for seed, name in enumerate(("film", "books", "music")):
        write_csv(folder / f"{name}.csv", ["user", "item", "rating"], rows_of(seed, name[0]))


def movielens(folder: Path) -> None:
    """Write a small table in the layout of ML-1M."""
    (folder / "path" / "to" / "ml-1m").mkdir(parents=True)
    lines = [f"{user}::{item}::{rating}::978300760\n" for user, item, rating in rows_of(0)]
    (folder / "path" / "to" / "ml-1m" / "ratings.dat").write_text("".join(lines))


def run_folder(folder: Path, name: str) -> None:
    """Write a run of three parties whose user and item ids are numbers, as in the pages' examples."""
    made = synthetic_ratings(users=60, items=190, ratings=4000, seed=0)
    tables = {
        party: (made.user[mine].astype(str), made.item[mine].astype(str), made.rating[mine])
        for n, party in enumerate(("film", "books", "music"))
        if len(mine := np.flatnonzero(made.item % 3 == n))
    }
    vf.VerFedRecommender(preset="best", epochs=ROUNDS).fit(tables).run_.save(folder / "runs" / name)


def sources(folder: Path) -> None:
    """Write the files and events that docs/data.md reads."""
    three_files(folder)
    films = pa.table(
        dict(zip(("user", "item", "stars"), map(list, zip(*rows_of(1, "f"), strict=True)), strict=True))
    )
    books = pa.table(
        dict(zip(("user", "item", "rating"), map(list, zip(*rows_of(2, "b"), strict=True)), strict=True))
    )
    for name, table in (("film", films), ("books", books)):
        pq.write_table(table, folder / f"{name}.parquet")
    write_csv(folder / "books.csv", ["uid", "isbn", "points"], [*rows_of(2, "b"), (3, "José", 4)], "latin-1")
    kinds = ("view", "cart", "purchase")
    write_csv(
        folder / "shop.csv", ["user", "item", "event"], [(u, v, kinds[r % 3]) for u, v, r in rows_of(3, "s")]
    )
    pq.write_table(films.select(["user", "item"]), folder / "plays.parquet")


def clicks(folder: Path) -> None:
    """Write the clicks of a split test."""
    rows: list[tuple[object, ...]] = [
        (n, ("federated", "alone")[n % 2], 1, int(n % 7 == 0)) for n in range(200)
    ]
    write_csv(folder / "clicks.csv", ["user", "bucket", "shown", "clicked"], rows)


READY: dict[str, list[Callable[[Path], None]]] = {
    "README.md": [three_files, movielens, lambda folder: run_folder(folder, "demo")],
    "docs/data.md": [sources],
    "docs/privacy.md": [movielens, lambda folder: run_folder(folder, "mine")],
    "docs/serving.md": [lambda folder: run_folder(folder, "demo"), clicks],
    "docs/terminal.md": [three_files],
    "docs/tutorials/does-joining-pay.md": [
        lambda folder: shutil.copytree(ROOT / "examples", folder / "examples")  # type: ignore[list-item]
    ],
    "docs/tutorials/every-night.md": [three_files],
    "docs/tutorials/own-gnn.md": [lambda folder: shutil.copy(ROOT / "examples" / "my_gnn.py", folder)],  # type: ignore[list-item]
}


class Reader:
    """A reader who types a page's commands one after the other."""

    def __init__(self, folder: Path, page: str, command: Callable[..., tuple[int, str, str]]) -> None:
        self.folder = folder
        self.page = page
        self.command = command
        self.ports = {port: str(free_port()) for port in ("8000", "7443", "9100")}
        self.staying: list[tuple[str, subprocess.Popen[str], Path]] = []
        self.printed = ""
        (folder / "bin").mkdir()
        for name, call in (
            ("verfedgnn", f'{sys.executable} -m verfedgnn "$@"'),
            ("python", f'{sys.executable} "$@"'),
        ):
            file = folder / "bin" / name
            file.write_text(f"#!/bin/sh\nexec {call}\n")
            file.chmod(file.stat().st_mode | stat.S_IXUSR)
        (folder / "work").mkdir()
        self.environment = {
            **os.environ,
            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
        }

    @property
    def work(self) -> Path:
        return self.folder / "work"

    def type(self, block: list[Command]) -> None:
        """Run a block command by command, or in one shell if a command uses a variable that an earlier one sets."""
        if any("$" in command.text or re.match(r"[A-Z_]+=", command.text) for command in block):
            self.shell(block)
            return
        for command in block:
            if command.plain:
                self.one(self.shortened(command.words[1:]), command)
            else:
                self.shell([command])

    def shell(self, commands: list[Command]) -> None:
        """Run commands in a shell, as typed."""
        self.wait()
        script = "\n".join(self.spelt(command.text) for command in commands)
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", script],
            cwd=self.work,
            env=self.environment,
            text=True,
            capture_output=True,
        )
        self.printed += done.stdout
        assert done.returncode == 0, f"{commands[0]}\n{script}\n{done.stdout}{done.stderr}"

    def one(self, words: list[str], command: Command) -> None:
        """Run a command in this process, where everything is loaded already, or start it if it keeps running."""
        if words[0] in STAYS:
            self.start(words)
            return
        self.wait()
        with few_rounds() if "--partners" in words else contextlib.nullcontext():
            code, out, err = self.command(*words)
        self.printed += out
        assert code == 0, f"{command}\n{out}{err}"

    def start(self, words: list[str]) -> None:
        """Start a command in the background, and wait for a server until it serves."""
        log = self.folder / f"log-{len(self.staying)}.txt"
        more = ["--port", self.ports["8000"]] if words[0] == "serve" else []
        with log.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-u", "-m", "verfedgnn", *words, *more],
                cwd=self.work, env=self.environment, text=True, stdout=file, stderr=file,
            )  # fmt: skip
        self.staying.append((words[0], process, log))
        deadline = time.monotonic() + 180
        while words[0] == "serve" and "serving" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, "it does not serve"
            time.sleep(0.05)
        if words[0] == "serve":
            self.printed += log.read_text().replace(self.ports["8000"], "8000")

    def wait(self) -> None:
        """Wait until a training of several processes has ended."""
        for kind, process, log in self.staying:
            if kind != "serve":
                assert process.wait(timeout=300) == 0, log.read_text()

    def spelt(self, text: str) -> str:
        """Return a command with free ports, fewer rounds, and a curl that reports errors."""
        for port, ours in self.ports.items():
            text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{ours}")
        text = re.sub(r"^curl ", "curl -sS --fail-with-body ", text)
        if self.page in UNCHANGED:
            return text
        if "epochs=" not in text:
            text = re.sub(r"\bverfedgnn train\b", f"verfedgnn train --set epochs={ROUNDS}", text)
        return re.sub(r"\bepochs=\d+", f"epochs={ROUNDS}", text)

    def shortened(self, words: list[str]) -> list[str]:
        """Return the words of a command with free ports and few rounds, also where the preset sets the number of rounds."""
        words = [self.spelt(word) for word in words]
        trains = {"train", "compare"} & set(words) and self.page not in UNCHANGED
        unseen = words[:2] == ["federation", "init"]  # no page shows what such a training prints
        cut = unseen or (trains and not any("epochs=" in word for word in words))
        apart = (
            "compare" in words and "--jobs" not in words
        )  # one process is enough, and starts sooner than two
        return [
            *words,
            *(["--set", f"epochs={ROUNDS}"] if cut else []),
            *(["--jobs", "1"] if apart else []),
        ]

    def leave(self) -> None:
        for _, process, _ in self.staying:
            process.kill()
            process.wait()


@contextlib.contextmanager
def few_rounds() -> Iterator[None]:
    """Train for a few rounds where a command takes the settings of a run, and no page shows what it prints."""
    train = trainings.train
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_models, "ROUNDS", ROUNDS)
        patch.setattr(
            trainings,
            "train",
            lambda parties, config, **more: train(parties, config.with_values({"epochs": ROUNDS}), **more),
        )
        yield


@pytest.fixture
def reader(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    command: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
    warm: None,
) -> Iterator[Reader]:
    reader = Reader(tmp_path, request.param, command)
    monkeypatch.chdir(reader.work)
    monkeypatch.delenv("VERFEDGNN_DATA", raising=False)
    monkeypatch.setattr(plugins, "_registered", {})  # forget what a page registers
    monkeypatch.setenv(plugins.FILES, "")
    plugins._run.cache_clear()
    if reader.page not in UNCHANGED:
        monkeypatch.setattr("verfedgnn.training.own_models.ROUNDS", ROUNDS)
    for make in READY.get(reader.page, []):
        make(reader.work)
    yield reader
    reader.leave()
    plugins._run.cache_clear()


@pytest.mark.parametrize(
    "reader",
    sorted({command.page for command in ALL if reason(command) is None}),
    indirect=True,
    ids=lambda page: page,
)
def test_commands_run(reader: Reader) -> None:
    for block in blocks(reader.page):
        chosen = [command for command in block if reason(command) is None]
        if chosen:
            reader.type(chosen)
    if reader.page in UNCHANGED:
        shown = shown_pieces((ROOT / reader.page).read_text("utf-8"))
        assert [found for piece in shown if (found := missing_from(reader.printed, piece))] == []
        assert sum(len(NUMBER.findall(piece)) for piece in shown) > 20


def test_the_readme_shows_what_the_quick_start_prints() -> None:
    """`make demo` is the training of the quick start, whose output is compared."""
    (demo,) = re.findall(
        r"^```text\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert demo in (ROOT / "docs" / "tutorials" / "quick-start.md").read_text("utf-8")
    (train,) = blocks("docs/tutorials/quick-start.md")[1]
    assert " ".join(train.words[:-2]) in (ROOT / "Makefile").read_text("utf-8").replace("$(BIN)/", "")


def shown_pieces(page: str) -> list[str]:
    """Return what a page shows of its commands' output: rows of tables, and other blocks as far as they are not cut."""
    blocks = re.findall(r"^```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    pieces = [
        piece for block in blocks for piece in re.split(r"^\.\.\.\n|(?=^[│┃┏┡├└])", block, flags=re.MULTILINE)
    ]
    return [text for piece in pieces if (text := unboxed(piece))]


def unboxed(text: str) -> str:
    """Return text on one line without the lines of tables and without the duration of a training."""
    return DURATION.sub("", " ".join(re.sub(r"[─-╿]", " ", text).split()))


def missing_from(printed: str, piece: str) -> str | None:
    """Return a piece whose words were not printed, or with other figures.

    Processors differ in the last bits of their arithmetic, so figures differ a little between machines. Seconds and the best round are
    not compared. Errors, with three or four decimals, may differ by 0.002, other fractions by 1.5 or 3 %, customers of 100 by 4, and
    larger whole numbers not at all.
    """
    words = NUMBER.split(piece)
    pattern = f"({NUMBER.pattern})".join(map(re.escape, words))
    for match in re.finditer(pattern, unboxed(printed)):
        figures = zip(NUMBER.findall(piece), match.groups(), words[:-1], words[1:], strict=True)
        if all(
            after.startswith(" s;") or before.endswith("best round: ") or alike(shown, found)
            for shown, found, before, after in figures
        ):
            return None
    return piece


def alike(shown: str, found: str) -> bool:
    one, other = (float(number.replace(",", "")) for number in (shown, found))
    decimals = len(shown.partition(".")[2])
    margin = {0: 4.0 if abs(one) <= 100 else 0.0, 3: 0.002, 4: 0.002}.get(decimals, max(1.5, 0.03 * abs(one)))
    return abs(one - other) <= margin + 1e-9


def test_a_figure_that_is_not_printed_is_noticed() -> None:
    printed = "│ test RMSE │ 0.7391   MAE 0.5913 │\n│ rounds │ 40 in 3.1 s; best round: 40 │\n│ bytes │ 112.5 MB up │"
    for same in ("test RMSE 0.7391", "RMSE 0.7396", "40 in 9.9 s; best round: 30", "110.4 MB"):
        assert missing_from(printed, same) is None
    for other in ("test RMSE 0.7412", "45 in 3.1 s; best round: 40", "123.6 MB", "no such words"):
        assert missing_from(printed, other) == other
