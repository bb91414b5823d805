"""Sketches of users for the doctor: what they estimate, and what they tell those with and without the key."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import verfedgnn as vf
from hub import SERVER, agree
from verfedgnn.core.errors import ConfigError, DataError
from verfedgnn.data.ids import StrArray
from verfedgnn.federation import overlap_sketch
from verfedgnn.federation.agreement import save_agreement
from verfedgnn.federation.doctor import _estimate_overlap
from verfedgnn.federation.overlap_sketch import MOST_SAMPLED, estimate_overlap, make_sketch
from verfedgnn.federation.roster import MemberIdentity
from verfedgnn.privacy.id_matching import make_pseudonyms

Identities = dict[str, MemberIdentity]
FILM = np.array([f"person{number}@example.org" for number in range(12_000)])


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> Identities:
    folder = tmp_path_factory.mktemp("sketches")
    return agree(folder, ["film", "book", "music"], vf.Config.preset("paper"), min_overlap=0.02)[1]


@pytest.fixture(scope="module")
def sketch(identities: Identities, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sketch that film makes for book."""
    path = tmp_path_factory.mktemp("sketch") / "film-for-book.json"
    path.write_bytes(make_sketch(identities["film"], "book", FILM))
    return path


@pytest.fixture
def same_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the same sample in every run, whichever keys the parties have: an interval of 95 % fails for one in twenty."""
    monkeypatch.setattr(overlap_sketch, "make_pseudonyms", lambda ids, _: make_pseudonyms(ids, bytes(32)))


@pytest.mark.usefixtures("same_sample")
@pytest.mark.parametrize("common", [0, 300, 6_000, 12_000])
def test_the_interval_holds_the_true_share(identities: Identities, tmp_path: Path, common: int) -> None:
    """Also where ids are spelled differently."""
    sketch = tmp_path / "sketch.json"
    sketch.write_bytes(make_sketch(identities["film"], "book", FILM))
    book = np.array([*np.strings.upper(FILM[:common]), *(f"reader{number}" for number in range(2_000))])
    found = estimate_overlap(identities["book"], sketch, book)
    assert (found.users, found.own_users, found.sampled) == (12_000, common + 2_000, MOST_SAMPLED)
    assert found.low <= common / 12_000 <= found.high
    assert found.high - found.low < 0.063
    assert found.own_share(common / 12_000) == pytest.approx(common / (common + 2_000))


@pytest.mark.usefixtures("same_sample")
def test_intervals_hold_as_often_as_they_say(identities: Identities, tmp_path: Path) -> None:
    """95 % or more of 60 random sets of users, of which 100 are sampled."""
    random = np.random.default_rng(0)
    held = 0
    for trial in range(60):
        users = np.array([f"{trial}-{number}" for number in range(1_000)])
        (tmp_path / "sketch.json").write_bytes(make_sketch(identities["film"], "book", users))
        found = estimate_overlap(
            identities["book"], tmp_path / "sketch.json", random.permutation(users)[:300]
        )
        held += found.low <= 0.3 <= found.high
    assert held >= 57


def test_who_has_the_key_finds_the_sampled_users_by_guessing_and_no_others(
    identities: Identities, sketch: Path
) -> None:
    """Attack: the receiver guesses every id. It finds the sample, which is less than a tenth of the users."""
    found = estimate_overlap(identities["book"], sketch, FILM)
    assert found.found == found.sampled == MOST_SAMPLED
    few = make_sketch(identities["film"], "book", FILM[:205])
    assert len(json.loads(few)["pseudonyms"]) == 20, "one in ten"
    with pytest.raises(DataError, match="needs 10 users or more"):
        make_sketch(identities["film"], "book", FILM[:9])


@pytest.mark.parametrize("thief", ["music", SERVER])
def test_who_lacks_the_key_finds_nobody_by_guessing(
    identities: Identities, sketch: Path, monkeypatch: pytest.MonkeyPatch, thief: str
) -> None:
    """Attack: a third party and the coordinator know every id and both certificates, and use every key they can make."""
    content = json.loads(sketch.read_bytes())
    hidden = set(content["pseudonyms"])
    for peer in ("film", "book"):
        key, _ = overlap_sketch._derive_keys(identities[thief], peer)
        assert hidden.isdisjoint(overlap_sketch._pseudonyms(FILM, key))
        monkeypatch.setattr(
            overlap_sketch, "_read_sketch", lambda *_: overlap_sketch.OverlapSketch(**content)
        )
        with pytest.raises(ConfigError, match="was changed, or film did not make it"):
            estimate_overlap(identities[thief], sketch, FILM)


def test_a_changed_agreement_samples_the_same_users(identities: Identities, sketch: Path) -> None:
    """Attack: a receiver that gets a sketch under every changed agreement would in time see most users."""
    film = identities["film"]
    for users in (50, 51):
        changed = MemberIdentity(film.agreement.with_values(min_users=users), film.key_file)
        again = json.loads(make_sketch(changed, "book", FILM))
        assert again["agreement"] != film.agreement.digest()
        assert again["pseudonyms"] == json.loads(sketch.read_bytes())["pseudonyms"]


def test_two_receivers_cannot_tell_that_they_got_the_same_users(identities: Identities, sketch: Path) -> None:
    other = json.loads(make_sketch(identities["film"], "music", FILM))
    assert set(other["pseudonyms"]).isdisjoint(json.loads(sketch.read_bytes())["pseudonyms"])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"users": 13_000}, "was changed, or film did not make it"),
        ({"pseudonyms": ["0" * 32]}, "was changed, or film did not make it"),
        ({"sender": "music"}, "was changed, or music did not make it"),
        ({"sender": "nobody"}, "'nobody' is no other party"),
        ({"sender": "book"}, "'book' is no other party"),
        ({"receiver": "music"}, "is not for book"),
        ({"agreement": "0" * 64}, "another agreement"),
        ({"users": 0}, "is not a sketch"),
        ({"pseudonyms": ["0" * 32] * (MOST_SAMPLED + 1)}, "is not a sketch"),
        ({"more": 1}, "is not a sketch"),
    ],
)
def test_a_changed_sketch_is_refused(
    identities: Identities, sketch: Path, tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(json.loads(sketch.read_bytes()) | change))
    with pytest.raises(ConfigError, match=reason):
        estimate_overlap(identities["book"], path, FILM)


def test_few_common_users_are_a_warning_before_the_day(identities: Identities, sketch: Path) -> None:
    table = vf.data.synthetic_ratings(users=50, items=5, ratings=150, seed=0)

    def finding(users: StrArray) -> tuple[str, str]:
        found = _estimate_overlap(identities["book"], sketch, replace(table, user_ids=users))
        return found.outcome, found.text

    outcome, text = finding(np.array([f"reader{number}" for number in range(5_000)]))
    assert outcome == "warning"
    assert "less than min_overlap = 2.0%; compare how both spell the ids" in text
    outcome, text = finding(FILM[:6_000])
    assert outcome == "ok"
    assert "of film's 12,000 users, by 1,024 of them" in text


def test_the_doctor_writes_and_reads_sketches(
    command: Callable[..., tuple[int, str, str]],
    identities: Identities,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"user{u},{i},{1 + (u + i) % 5}" for u in range(60) for i in range(4)]
    (tmp_path / "own.csv").write_text("\n".join(["user,item,rating", *rows]) + "\n")
    save_agreement(tmp_path / "federation.toml", identities["film"].agreement)

    def doctor(name: str, *words: str) -> tuple[int, str, str]:
        key = identities[name].key_file
        return command("federation", "doctor", "--federation", "federation.toml", "--key", key, *words)

    code, _, err = doctor("film", "--sketch-for", "book")
    assert code == 2
    assert "give --ratings" in err
    _, _, err = doctor("film", "--ratings", "own.csv", "--sketch-for", "book")
    assert "film-for-book.json is for book" in err
    code, out, _ = doctor("book", "--ratings", "own.csv", "--sketch", "film-for-book.json", "--json")
    assert code == 1, "there is no coordinator to reach"
    (overlap,) = [check for check in json.loads(out)["checks"] if check["check"] == "overlap"]
    assert overlap["outcome"] == "ok"
    assert overlap["text"].startswith("you have 100.0% (54.1% to 100.0%) of film's 60 users, by 6 of them")
