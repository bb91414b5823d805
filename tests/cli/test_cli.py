"""The command line: what it prints, its exit codes, and that a mistake costs one line and leaves nothing behind."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from verfedgnn.evaluation.verdict import answers, headline, list_points

Command = Callable[..., tuple[int, str, str]]
pytestmark = pytest.mark.usefixtures("short_own_models")
QUICK = ("--set", "epochs=2")


@pytest.fixture
def ratings(tmp_path: Path) -> Path:
    """A small table with columns user, item, rating, time; user 3 has rated every item."""
    draw = random.Random(0)
    rows = [
        f"u{u},i{i},{1 + (u * i + u) % 5},{86_400 * draw.randrange(100)}"
        for u in range(40)
        for i in range(12)
        if u == 3 or draw.random() < 0.6
    ]
    path = tmp_path / "ratings.csv"
    path.write_text("user,item,rating,time\n" + "\n".join(rows) + "\n")
    return path


def test_train_evaluate_recommend(command: Command, ratings: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    code, out, err = command("train", "--data", ratings, "--parties", 3, "--details", "--out", run, *QUICK)
    assert code == 0, err
    assert "3 parties, 40 users, 12 items, 287 ratings" in err
    for words in (
        "test RMSE",
        "NDCG@20",
        "popularity",
        "per party and round",
        "sums over all parties, rounded to 8 bits",
    ):
        assert words in " ".join(re.sub("│", " ", out).split())
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["users"] == 40
    code, out, err = command("evaluate", run, "--json")
    assert code == 0, err
    assert json.loads(out)["test"]["rmse"] == pytest.approx(metrics["test"]["rmse"])
    code, out, _ = command("evaluate", run, "--top", 5)
    assert "ndcg@5" in out
    code, out, _ = command("recommend", run, "--user", "u3", "--top", 2, "--json")
    # u3 rated all twelve items
    assert code == 0
    assert json.loads(out) == []


SHORT = ("--set", "epochs=3", "--set", "dim=6")


@pytest.fixture
def shops(tmp_path: Path) -> list[str]:
    """Options for three files whose users overlap; a third of the items of each user are unrated."""
    words = []
    draw = random.Random(0)
    for n, name in enumerate(("film", "book", "album")):
        rows = [
            f"u{u},{name}{i},{1 + (u * i + u + n) % 5}"
            for u in range(8 * n, 50 + 4 * n)
            for i in range(20)
            if draw.random() < 0.65
        ]
        path = tmp_path / f"{name}.csv"
        path.write_text("user,item,rating\n" + "\n".join(rows) + "\n")
        words += ["--data", f"{name}={path}"]
    return words


def test_the_verdict_comes_first_on_one_screen_and_all_tables_with_details(
    command: Command, shops: list[str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train = ("train", *shops, "--preset", "best", "--out", run, *SHORT)
    code, out, err = command(*train)
    assert code == 0, err
    metrics = json.loads((run / "metrics.json").read_text())
    lift = metrics["lift"]
    words = " ".join(out.split())
    assert words.startswith(headline(lift))
    assert "\n- " not in out
    assert len(out.splitlines()) < 20
    for answer in answers(lift):
        assert re.search(rf"^{answer['name']} +{answer['pays']}  ", out, re.MULTILINE)
    for name in ("cost ", "others ", "served "):
        assert f"\n{name}" in out
    assert "Federation" not in out
    assert metrics["final"]["rounds"] > 0
    assert "models trained on all" in words
    code, again, err = command("lift", run)
    assert (code, again[: len(out)]) == (0, out), err
    for point in list_points(lift):
        assert f"- {point}" in " ".join(again.split())
    code, out, err = command(*train, "--overwrite", "--details", "--judge")
    assert code == 0, err
    places = [
        out.index(title) for title in ("joining pays", "Federation", "test RMSE", "What each party serves")
    ]
    assert places == sorted(places)
    assert "the judged models, which have not seen the test part" in " ".join(out.split())
    assert "final" not in json.loads((run / "metrics.json").read_text())


def test_a_verdict_of_lists_alone(command: Command, shops: list[str]) -> None:
    ranking = ("--set", "model.biases=false", "--set", "model.raters=0", "--judge")
    code, out, err = command("train", *shops, "--preset", "best", *ranking, *SHORT)
    assert code == 0, err
    assert "of 100 customers" in out
    assert "stars" not in out
    assert "RMSE" not in out


def test_two_parties_learn_what_they_cannot_hide(command: Command, shops: list[str]) -> None:
    words = ("train", *shops[:4], "--set", "gate=false", *SHORT)
    code, out, err = command(*words)
    assert code == 0, err
    assert "with noise" in out
    assert (
        "Either of two parties can subtract its own part from a sum and see the other's rounded gradients, with noise; "
        "masks hide these only from the coordinator. Ratings, item ids and item embeddings are never sent."
        in err
    )
    code, _, err = command(*words, "--preset", "paper")
    assert (
        "Either of two parties can subtract its own part from a sum and see the other's ternary gradients and "
        "projected neighbourhoods. " in err
    )
    assert "masks" not in err
    assert "two parties" not in command("train", *shops, *SHORT)[2]


def test_lists_that_lose_to_popularity_are_no_secret(command: Command) -> None:
    code, _, err = command("train", "--data", "synthetic", "--by", "category", "--preset", "paper", *QUICK)
    assert code == 0, err
    assert "Lists are worse than the most popular items at " in err
    assert "train with --preset best to order them by a model of lists" in err


def command_after(err: str) -> list[str]:
    """Return the command that the last line suggests, as words."""
    last = err.splitlines()[-1]
    assert last.startswith("next")
    return shlex.split(last.partition(": ")[2])[1:]


def test_the_next_commands_work(command: Command, shops: list[str], tmp_path: Path) -> None:
    """Follow the suggestions from data check to the server; each runs as printed."""
    code, _, err = command("data", "check", *shops[1::2])
    assert code == 0, err
    suggested = command_after(err)
    assert suggested[: len(shops) + 1] == ["train", *shops]
    run = tmp_path / "run"
    code, _, err = command("train", *shops, "--preset", "best", "--judge", "--out", run, *SHORT)
    assert code == 0, err
    report = command_after(err)
    assert report == ["report", str(run)]
    code, _, err = command(*report)
    assert code == 0, err
    assert command_after(err) == ["serve", str(run)]
    code, _, err = command("recommend", run, "--user", "u10")
    assert code == 0, err
    assert command_after(err) == ["serve", str(run)]


def test_a_run_that_is_not_saved_says_so(command: Command, shops: list[str]) -> None:
    code, _, err = command("train", *shops, "--set", "gate=false", *SHORT)
    assert code == 0, err
    assert "not saved; pass --out RUN to keep the run" in err


def test_json_is_the_last_line_and_is_metrics_json(
    command: Command, shops: list[str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    code, out, _ = command("train", *shops, "--preset", "paper", "--out", run, "--json", *SHORT)
    assert code == 0
    assert json.loads(out.splitlines()[-1]) == json.loads((run / "metrics.json").read_text())
    code, out, _ = command("recommend", run, "--user", "u20", "--top", 3, "--party", "book")
    assert code == 0
    assert len(re.findall(r"\bbook\b", out)) == 3


def check_recommendations_to_new_customers(command: Command, run: Path) -> None:
    """Recommend to u35, whom only music knows, and to somebody whom nobody knows."""
    code, out, err = command("recommend", run, "--user", "u35", "--party", "shop", "--json")
    assert code == 0, err
    assert [item["party"] for item in json.loads(out)] == ["shop"] * 9
    assert "u35 is new to shop: this list follows from what training learnt at other parties" in err
    assert err.rstrip().endswith(f"serve {run} --party shop")
    code, out, err = command("recommend", run, "--user", "u35", "--top", 3)
    assert "reason" in out
    assert "This is one list over all parties (" in err
    code, _, err = command("recommend", run, "--user", "u00035")
    assert code != 0
    assert "Spell the id as --read ids=number does" in err
    code, _, err = command("recommend", run, "--user", "u3x5", "--party", "shop")
    assert code != 0
    assert "this run knows 40 users, and ids look like 'u" in err
    words = shlex.split(err.partition("for example: ")[2])
    assert "--rated" in words
    code, out, err = command(*words[words.index("recommend") :], "--json")
    assert code == 0, err
    assert len(json.loads(out)) == 8
    for given, message in {
        "book1": "is not ITEM=RATING; write for example --rated book1=5",
        "book1=7": "the rating of item 'book1' is 7; shop rates from 1 to 5",
        "shop:music1=3": "item 'music1' is not in the catalogue of 'shop'; known items look like",
    }.items():
        code, _, err = command("recommend", run, "--rated", given)
        assert code != 0
        assert message in err
    assert command("recommend", run, "--rated", "book1=5", "--user", "u1")[0] == 2


def test_judge_now_and_train_on_all_ratings_later(command: Command, shops: list[str], tmp_path: Path) -> None:
    """`--judge` and then `--final` end in the same bits as one training."""
    both, judged = tmp_path / "both", tmp_path / "judged"
    assert command("train", *shops, "--out", both, *SHORT)[0] == 0
    assert command("train", *shops, "--out", judged, "--judge", *SHORT)[0] == 0
    assert not (judged / "final").exists()
    code, out, err = command("train", "--final", judged, "--json")
    assert code == 0, err
    assert json.loads(out)["final"]["rounds"] > 0
    models = [
        path.relative_to(both) for path in both.rglob("*.safetensors") if path.parent.name != "checkpoint"
    ]
    assert any(path.parts[0] == "final" for path in models)
    for path in models:
        assert (judged / path).read_bytes() == (both / path).read_bytes(), path
    for name in ("config.toml", "final/config.toml"):
        assert (judged / name).read_bytes() == (both / name).read_bytes()
    code, _, err = command("train", "--final", judged)
    assert (code, "has its model of all ratings already" in err) == (2, True)
    code, _, err = command("train", "--final", judged, *shops)
    assert (code, "--final takes data and settings from the run" in err) == (2, True)


def test_a_run_that_has_changed_gets_no_model_of_all_ratings(
    command: Command, shops: list[str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert command("train", *shops, "--out", run, "--judge", *SHORT)[0] == 0
    assert command("forget", run, "--user", "u20")[0] == 0
    code, _, err = command("train", "--final", run)
    assert (code, "has changed since its training" in err) == (2, True)


def test_one_file_per_party(command: Command, tmp_path: Path) -> None:
    for name, users in (("book", range(30)), ("music", range(5, 40))):
        rows = [f"u{u},{name}{i},{1 + (u + i) % 5}" for u in users for i in range(9)]
        (tmp_path / f"{name}.csv").write_text("user,item,rating\n" + "\n".join(rows) + "\n")
    words = [
        "train",
        "--data",
        f"shop={tmp_path / 'book.csv'}",
        "--data",
        tmp_path / "music.csv",
        *QUICK,
        "--json",
    ]
    code, out, err = command(*words, "--out", tmp_path / "run")
    assert code == 0, err
    check_recommendations_to_new_customers(command, tmp_path / "run")
    assert [p["name"] for p in json.loads(out)["parties"]] == ["shop", "music"]
    assert json.loads(out)["users"] == 40
    code, out, err = command(*words, "--users", "all")
    assert code == 0, err
    assert json.loads(out)["users"] == 25
    assert "shop: kept 25 of 30 users; 45 ratings of users who are not at every party were dropped" in err
    code, _, err = command(*words, "--users", "3")
    assert code == 2
    assert "there are only 2 parties" in err
    code, _, err = command(*words, "--users", "some")
    assert code == 2
    assert "users must be any, all or integer, at least 2" in err


def test_by_time_and_by_column(command: Command, ratings: Path) -> None:
    dated = ("--set", "split.kind=date", "--set", 'split.dates=["1970-03-01", "1970-03-20"]')
    code, out, err = command("train", "--data", ratings, "--parties", 2, *dated, "--judge", *QUICK, "--json")
    assert code == 0, err
    paper = ("--preset", "paper", *QUICK)
    code, out, err = command("train", "--data", "synthetic", "--by", "category", *paper, "--json")
    assert code == 0, err
    assert {p["name"] for p in json.loads(out)["parties"]} == {"film", "book", "album"}


def bad_table(text: str | bytes) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        path = folder / "bad.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return ["--data", str(path)]

    return write


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


BAD = {
    "missing columns": (bad_table("user,the_products,rating\na,b,3\n"), "--columns"),
    "nan": (bad_table("user,item,rating\na,b,nan\n"), "--read missing=drop"),
    "infinite": (bad_table("user,item,rating\na,b,inf\n"), "infinite (more than"),
    "duplicates": (bad_table("user,item,rating\na,b,3\na,b,4\n"), "--read duplicates=first"),
    "encoding": (bad_table(b"user,item,rating\n\xff\xfe,b,3\n"), "--read encoding=latin-1"),
    "no file": (lambda folder: ["--data", str(folder / "none.csv")], "none.csv"),
    "empty": (bad_table(""), "empty"),
    "too many parties": (
        lambda folder: [*bad_table("user,item,rating\na,b,3\nc,d,4\n")(folder), "--parties", "10"],
        "use --parties from 1 to 2",
    ),
    "unknown setting": (lambda _: ["--set", "dimm=3"], "did you mean"),
    "unprotected": (lambda _: ["--preset", "paper", "--set", "exchange=1"], "unprotected"),
    "unknown model": (lambda _: ["--model", "mlp"], "gcn, gat, ggnn"),
    "model without effect": (
        lambda _: ["--model", "gat"],
        "so --model gat would change nothing; leave it out or choose --preset paper",
    ),
    "unknown preset": (lambda _: ["--preset", "worst"], "best, means, paper, private"),
    "unknown device": (lambda _: ["--device", "abacus"], "--device cpu"),
    "odd device": (lambda _: ["--device", "meta"], "--device cpu"),
    "odd file": (lambda folder: ["--config", write(folder / "c.toml", 'model = "gat"')], "model"),
    "no such condition": (lambda _: ["--set", "unprotected=everything"], "unprotected"),
    "parties twice": (
        lambda _: ["--data", "a.csv", "--data", "b.csv", "--parties", "3"],
        "one file per party",
    ),
    "empty file name": (lambda _: ["--data", "film="], "has a name but no file"),
    "bad columns": (lambda _: ["--columns", "user"], "--columns takes"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_one_line_and_exit_code_2(command: Command, tmp_path: Path, case: str) -> None:
    arguments, remedy = BAD[case]
    out_folder = tmp_path / "run"
    code, out, err = command("train", *arguments(tmp_path), "--out", out_folder)
    assert code == 2
    assert out == ""
    lines = [line for line in err.splitlines() if not line.startswith(("10 parties", "3 parties"))]
    error, *rest = lines
    assert error.startswith("error: ")
    assert remedy in error
    assert len(rest) == (case == "missing columns")  # the command that mends it
    assert all(line.startswith("next: ") and line.endswith("--columns item=the_products") for line in rest)
    assert not out_folder.exists(), "nothing half-written"


def test_unreadable_file(command: Command, ratings: Path, tmp_path: Path) -> None:
    ratings.chmod(0)
    if os.access(ratings, os.R_OK):
        pytest.skip("this user may read every file")
    code, _, err = command("train", "--data", ratings)
    assert code == 2
    assert "ratings.csv" in err


def test_a_run_folder_that_exists_is_left_alone(command: Command, ratings: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train = ("train", "--data", ratings, "--parties", 3, "--preset", "paper", *QUICK, "--out")
    assert command(*train, run, "--quiet")[0] == 0
    before = (run / "metrics.json").read_bytes()
    code, _, err = command(*train, run)
    assert code == 2
    assert "--overwrite" in err
    assert (run / "metrics.json").read_bytes() == before
    assert command(*train, run, "--overwrite", "--quiet")[0] == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    code, _, err = command(*train, tmp_path / "mine", "--overwrite")
    assert code == 2
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_titles_are_shown_as_they_are(command: Command, tmp_path: Path) -> None:
    rows = [
        f"u{u},i{i},{1 + (u + i) % 5},Film [/{i}] [red]" for u in range(30) for i in range(20) if (u + i) % 4
    ]
    path = tmp_path / "t.csv"
    path.write_text("user,item,rating,title\n" + "\n".join(rows) + "\n")
    run = tmp_path / "run"
    assert command("train", "--data", f"[x]={path}", "--out", run, "--preset", "paper", *QUICK)[0] == 0
    code, out, _ = command("recommend", run, "--user", "u1", "--top", 2)
    assert code == 0
    assert "[red]" in out
    assert "[x]" in out


def test_help_is_readable(command: Command) -> None:
    code, out, _ = command("train", "--help")
    assert code == 0
    for words in ("--data", "--preset", "--judge", "verfedgnn settings"):
        assert words in out
    assert len(out.splitlines()) < 100, "two screens"
    assert 18 <= sum(line.startswith("│ --") for line in out.splitlines()) <= 30, (
        "the options that people use"
    )
    assert command("--version")[0] == 0


def test_data_synth_writes_what_train_reads(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "shops"
    synth = ("data", "synth", "--overlap", 0.5, "--users", 60, "--items", 30, "--out", folder)
    code, out, err = command(*synth)
    assert code == 0, err
    assert "30 of the 60 users of each are at all of them" in out
    code, _, err = command("train", "--data", folder, *QUICK)
    assert code == 0, err
    assert "3 parties, 120 users, 90 items" in err
    code, _, err = command(*synth)
    assert code == 2
    assert "--overwrite" in err
    assert command(*synth, "--overwrite", "--ratings", 4000)[0] == 0
    for wrong in (("--items", 2), ("--out", folder / "film.parquet" / "shops")):
        code, _, err = command(*synth, "--overwrite", *wrong)
        assert code == 2
        assert ": " in err
    assert [path.name for path in tmp_path.iterdir()] == ["shops"]


def test_lift_is_accepted_where_a_verdict_is_the_default(command: Command, shops: list[str]) -> None:
    words = (*shops, "--preset", "means", "--json")
    code, plain, _ = command("train", *words)
    assert code == 0
    code, lifted, _ = command("train", *words, "--lift")
    assert code == 0
    assert json.loads(lifted)["lift"]["parties"] == json.loads(plain)["lift"]["parties"]
