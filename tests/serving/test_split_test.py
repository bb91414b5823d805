"""Split tests: stable buckets that answers and tables name, and what clicks say about them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import verfedgnn as vf
from verfedgnn.cli.main import main
from verfedgnn.core.errors import ConfigError, DataError, RunError
from verfedgnn.serving.catalogue import Catalogue
from verfedgnn.serving.split_test import (
    ALONE,
    FEDERATED,
    SplitTest,
    compare,
    confirm,
    open_split_test,
)

httpx = pytest.importorskip("httpx", reason="httpx is not installed: no client")
pytest.importorskip("fastapi", reason="the extra serve is not installed")

from served import as_alone, serving, without_alone  # noqa: E402
from verfedgnn.serving.app import make_app  # noqa: E402

SPLIT = SplitTest(b"a secret of this test", 50)
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def verfedgnn(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    def call(*words: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["verfedgnn", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        return int(stop.value.code or 0), *capsys.readouterr()

    return call


def write_rows(path: Path, rows: Sequence[str], head: str = "user,bucket,clicked") -> Path:
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


def people(count: int, clicking: int, bucket: str, first: int = 0) -> list[str]:
    """Return one row per customer, of whom `clicking` have clicked."""
    return [f"{first + n},{bucket},{int(n < clicking)}" for n in range(count)]


# -- buckets ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [os.mkfifo, lambda file: file.symlink_to("/etc/hostname")])
def test_the_secret_of_somebody_elses_run_is_no_pipe_and_no_link(
    tmp_path: Path, verfedgnn: Command, make: Callable[[Path], None]
) -> None:
    """`serve` and `recommend` waited for the pipe for ever, or took any file of this machine as the secret."""
    (tmp_path / "config.toml").touch()
    make(tmp_path / "split-test.key")
    code, _, error = verfedgnn("serve", tmp_path, "--split-test", "50")
    assert code == 2
    assert "split-test.key is a" in " ".join(error.split())


def test_buckets_are_stable_and_have_the_percentage() -> None:
    users = [str(n) for n in range(20_000)]
    few, many = SplitTest(b"one", 10), SplitTest(b"one", 60)
    first = {user for user in users if few.bucket(user) == FEDERATED}
    assert 0.09 < len(first) / len(users) < 0.11
    assert all(many.bucket(user) == FEDERATED for user in first), "a larger test keeps who is in it"
    other = {user for user in users if SplitTest(b"two", 10).bucket(user) == FEDERATED}
    assert len(first & other) < 0.2 * len(first), "another secret draws other users"


def test_a_secret_is_drawn_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "split-test.key"
    drawn = open_split_test(50, file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert open_split_test(50, file) == drawn
    assert open_split_test(50, tmp_path / "other.key") != drawn
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        open_split_test(50, file)
    file.chmod(0o600)
    file.write_text("short")
    with pytest.raises(ConfigError, match="too short"):
        open_split_test(50, file)
    with pytest.raises(ConfigError, match="--split-key"):
        open_split_test(50, tmp_path)


def test_every_answer_is_the_list_of_the_users_bucket_and_names_it(run: vf.Run) -> None:
    users = [str(user) for user in run.parties[0].ratings.user_ids[:12]]
    lists = {FEDERATED: run, ALONE: as_alone(run)}
    party = run.parties[0].name

    def items(answer: Any) -> list[str]:
        return [item["item"] for item in answer["recommendations"]]

    with (
        serving(make_app(Catalogue(run, "run", split=SPLIT))) as address,
        httpx.Client(base_url=address, timeout=180) as client,
    ):

        def ask(**given: Any) -> Any:
            return client.get("/v1/recommendations", params={"k": 5, "party": party, **given}).json()

        for user in users:
            bucket = SPLIT.bucket(user)
            wanted = [item.item for item in lists[bucket].recommend(user, 5, party=party)]
            explained = ask(user=user, why=1)
            body = {"ratings": [], "user": user, "k": 5, "party": party}
            newer = client.post("/v1/recommendations", json=body).json()
            for answer in (ask(user=user), explained, newer):
                assert answer["bucket"] == bucket
                assert items(answer) == wanted
            for model in (FEDERATED, ALONE):
                assert "bucket" not in ask(user=user, model=model), "the request chose the model"
        assert {SPLIT.bucket(user) for user in users} == {FEDERATED, ALONE}
        someone = client.post("/v1/recommendations", json={"ratings": []}).json()
        assert "bucket" not in someone, "nobody knows who this is"
        answer = client.get("/openapi.json").json()["components"]["schemas"]["RecommendationsResponse"]
        assert "split test" in answer["properties"]["bucket"]["description"]


def test_without_a_split_test_answers_name_no_bucket(client: Any, known: str) -> None:
    assert client.get("/v1/recommendations", params={"user": known}).json().keys() == {"recommendations"}


def test_a_run_without_lists_alone_cannot_be_split(run: vf.Run) -> None:
    with pytest.raises(RunError, match="train with a gate"):
        Catalogue(without_alone(run), "x", split=SPLIT)


def test_lists_are_exported_by_bucket(run: vf.Run, tmp_path: Path, verfedgnn: Command) -> None:
    folder, out = tmp_path / "run", tmp_path / "all.parquet"
    run.save(folder)
    words = ["recommend", folder, "--all", "--out", out, "--top", "3", "--split-test", "30"]
    code, _, error = verfedgnn(*words)
    assert code == 0, error
    split = open_split_test(30, folder / "split-test.key")
    lists = {FEDERATED: run, ALONE: as_alone(run)}
    rows = pq.read_table(out).to_pylist()
    assert all(row["bucket"] == split.bucket(row["user"]) for row in rows)
    for user in [str(user) for user in run.parties[0].ratings.user_ids[::20]]:
        found = [row["item"] for row in rows if row["user"] == user]
        assert found == [item.item for item in lists[split.bucket(user)].recommend(user, 3)]


def test_buckets_outlive_a_run_that_is_replaced(run: vf.Run, tmp_path: Path, verfedgnn: Command) -> None:
    folder, link = tmp_path / "run", tmp_path / "current"
    run.save(folder)
    link.symlink_to(folder)
    for given in (link, tmp_path):
        code, _, error = verfedgnn("serve", given, "--split-test", "50")
        assert code == 2
        assert "other buckets" in error
        assert "--split-key FILE" in error
    assert "belongs to --split-test" in verfedgnn("serve", folder, "--split-key", tmp_path / "key")[2]
    one_user = ["recommend", folder, "--user", "1", "--split-test", "50"]
    assert "add --all" in verfedgnn(*one_user)[2]


# -- clicks ----------------------------------------------------------------------------------------------------------------


def test_the_sentence_says_which_lists_are_better(tmp_path: Path, verfedgnn: Command) -> None:
    file = tmp_path / "clicks.csv"
    write_rows(file, people(20_000, 1420, FEDERATED) + people(20_000, 1280, ALONE, 20_000))
    _, printed, _ = verfedgnn("confirm", file)
    assert (
        "Of 100 customers shown the federated lists, 7.1 clicked, of 100 shown your own, 6.4: +0.7 (0.2 to 1.2). "
        "The federated lists are better."
    ) in printed
    _, printed, _ = verfedgnn("confirm", file, "--json")
    found = json.loads(printed)
    assert found["counts"] == {FEDERATED: 20_000, ALONE: 20_000}
    assert found["federated"] == pytest.approx(7.1)
    write_rows(file, people(20_000, 1280, FEDERATED) + people(20_000, 1420, ALONE, 20_000))
    assert confirm(file).sentence.endswith("-0.7 (-1.2 to -0.2). Your own lists are better.")
    write_rows(file, people(200, 14, FEDERATED) + people(200, 13, ALONE, 200))
    assert "no clear difference: the interval includes 0" in confirm(file).sentence


def test_the_words_agree_with_the_figures_that_are_shown(tmp_path: Path) -> None:
    # 0.04 would round to 0.0, which looks like an interval that includes 0
    write_rows(tmp_path / "c.csv", people(20_000, 1395, FEDERATED) + people(20_000, 1280, ALONE, 20_000))
    found = confirm(tmp_path / "c.csv")
    assert 0 < found.low < 0.1
    assert "(0.0 " not in found.sentence
    assert "better" in found.sentence


def test_rows_of_one_customer_count_once(tmp_path: Path) -> None:
    once = people(500, 40, FEDERATED) + people(500, 30, ALONE, 500)
    one = confirm(write_rows(tmp_path / "one.csv", once))
    many = confirm(write_rows(tmp_path / "many.csv", once * 9))
    assert one == many, "nine rows of a customer say no more than one"
    assert many.counts == {FEDERATED: 500, ALONE: 500}


def test_shops_log_in_their_own_way(tmp_path: Path) -> None:
    rows = people(60, 20, FEDERATED) + people(60, 10, ALONE, 60)
    plain = confirm(write_rows(tmp_path / "plain.csv", rows))
    words = {"0": "false", "1": "True"}
    lines = [row.split(",") for row in rows]
    other = [f"{words[clicked]};{bucket.upper()};{user}" for user, bucket, clicked in lines]
    excel = tmp_path / "excel.csv"
    excel.write_text("\ufeff" + "\r\n".join(["Clicked;Bucket;User", *other, "false;;900"]))
    found = confirm(excel)
    assert found.sentence == plain.sentence
    assert (found.unmarked, plain.unmarked) == (1, 0)


@pytest.mark.parametrize(
    ("rows", "head", "message"),
    [
        (
            ["1,1"],
            "user,clicked",
            "has no column 'bucket', but user, clicked; it needs user, bucket, clicked",
        ),
        (["alone,1"], "bucket,clicked", "has no column 'user'"),
        (["1,alone"], "user,bucket", "has no column 'clicked'"),
        ([], "", "has no column 'user', but no column"),
        (["1,treatment,0"], None, "line 2: the bucket is 'treatment'; use federated or alone"),
        (["1,alone,often"], None, "line 2: clicked is 'often'"),
        (["1,alone,-1"], None, "line 2: clicked is '-1'"),
        (["1,alone,nan"], None, "line 2: clicked is 'nan'"),
        ([",alone,1"], None, "line 2 has no user"),
        (["1,alone"], None, "line 2: clicked is ''"),
        (people(50, 5, ALONE), None, "has no customer of bucket 'federated'"),
        (people(50, 5, ALONE) + people(9, 5, FEDERATED, 50), None, "9 customers of bucket 'federated'"),
        (["1,alone,0", "2,alone,1", "1,federated,0"], None, "line 4: customer '1' is in both buckets"),
    ],
)
def test_mistakes_in_the_file_are_named(
    tmp_path: Path, rows: Sequence[str], head: str | None, message: str
) -> None:
    file = write_rows(tmp_path / "clicks.csv", rows, "user,bucket,clicked" if head is None else head)
    with pytest.raises(DataError) as error:
        confirm(file)
    assert message in str(error.value)
    with pytest.raises(DataError, match="cannot be read"):
        confirm(tmp_path)


@pytest.mark.parametrize(
    ("customers", "rate", "spread"),
    [(40, 0.3, 1.0), (200, 0.05, 2.0), (2000, 0.02, 0.5), (500, 0.5, 1.0), (1000, 0.07, 5.0)],
)
def test_intervals_cover_at_their_rate(customers: int, rate: float, spread: float) -> None:
    """The interval covers the true difference in 95 % of tests, also where some customers come and click often."""
    rng = np.random.default_rng([customers, int(1000 * rate)])
    draws, truths = 1500, {FEDERATED: rate, ALONE: 1.2 * rate}

    def draw(mean: float, size: int) -> int:
        visits = 1 + rng.poisson(rng.gamma(1.0, 3.0, size))
        chance = rng.beta(mean / spread, (1 - mean) / spread, size)
        return int((rng.binomial(visits, chance) > 0).sum())

    larger = {name: draw(truth, 1_000_000) / 10_000 for name, truth in truths.items()}
    counts = dict.fromkeys(truths, customers)
    found = [
        compare({name: draw(truth, customers) for name, truth in truths.items()}, counts)
        for _ in range(draws)
    ]
    covered = sum(each.low <= larger[FEDERATED] - larger[ALONE] <= each.high for each in found)
    assert 0.93 < covered / draws < 0.985, covered / draws
