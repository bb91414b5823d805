"""federation.toml and the commands that create it: round trips, fingerprints, file modes, one-line errors."""

from __future__ import annotations

import json
import shutil
import ssl
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from test_certificates import context, handshake
from typer.testing import CliRunner

from verfedgnn import Config
from verfedgnn.cli import federation_command as federation
from verfedgnn.core.errors import ConfigError, VerFedGNNError
from verfedgnn.federation import certificates as c
from verfedgnn.federation.agreement import (
    Agreement,
    Member,
    Timeouts,
    build_agreement,
    load_agreement,
    save_agreement,
)
from verfedgnn.federation.roster import admit_parties, create_federation, remove_party, request_membership

CA = c.new_authority("trial")
SERVER = c.issue(*CA, c.make_request(c.new_key(), "server"), server=True)
PARTIES = {
    name: c.issue(*CA, c.make_request(c.new_key(), name)) for name in ("film", "book", "music", "Film")
}


def member(name: str, certificate: str | None = None) -> dict[str, str]:
    return {"name": name, "certificate": certificate or PARTIES[name]}


def values(**changes: Any) -> dict[str, Any]:
    parties = [member(name) for name in ("film", "book", "music")]
    common = {
        "name": "trial",
        "address": "train.example.org:7443",
        "authority": CA[1],
        "config": Config(masking=True).model_dump(),
    }
    return common | {"coordinator": member("server", SERVER), "parties": parties} | changes


def test_round_trip(tmp_path: Path) -> None:
    config = Config.preset("paper", model="gat", mechanism="none", threshold=3.5)
    agreement = build_agreement(values(config=config, timeouts={"reply": 7}, alignment="ecdh"))
    save_agreement(tmp_path / "federation.toml", agreement)
    text = (tmp_path / "federation.toml").read_text()
    assert text.startswith("# The agreement of this federation")
    assert "contains no secret" in text
    assert "PRIVATE" not in text
    assert text.count('"""\n-----BEGIN CERTIFICATE-----\n') == 5
    assert 'error_clip = "unset"' in text
    again = load_agreement(tmp_path / "federation.toml")
    assert again == agreement == load_agreement(tmp_path)
    assert again.digest() == agreement.digest()
    assert again.timeouts == Timeouts(reply=7)
    assert [path.name for path in tmp_path.iterdir()] == ["federation.toml"]


def test_every_field_has_a_description() -> None:
    for section in (Agreement, Timeouts, Member):
        for name, field in section.model_fields.items():
            assert (field.description or "").endswith("."), name


def test_the_fingerprint_covers_who_and_how_but_not_where() -> None:
    agreement = build_agreement(values())
    new = c.issue(*CA, c.make_request(c.new_key(), "film"))
    changed = [
        agreement.with_values(name="other"),
        agreement.with_values(alignment="none"),
        agreement.with_values(min_parties=3),
        agreement.with_values(config=agreement.config.with_values({"dim": 7})),
        agreement.with_values(parties=agreement.parties[:2]),
        agreement.with_values(parties=agreement.parties[::-1]),
        agreement.with_values(parties=[member("film", new), *agreement.parties[1:]]),
        agreement.with_values(
            coordinator=member("server", c.issue(*CA, c.make_request(c.new_key(), "server"), server=True))
        ),
    ]
    assert len({agreement.digest(), *(other.digest() for other in changed)}) == len(changed) + 1
    for same in (
        {"address": "other.example.org:1"},
        {"timeouts": Timeouts(idle=1)},
        {"min_parties": 2},
    ):
        assert agreement.with_values(**same).digest() == agreement.digest()


@pytest.mark.parametrize(
    ("count", "asked", "quorum"),
    [(0, 0, 0), (1, 0, 1), (2, 0, 2), (3, 0, 2), (3, 1, 1), (3, 3, 3), (3, 9, 3)],
)
def test_quorum(count: int, asked: int, quorum: int) -> None:
    agreement = build_agreement(values(min_parties=asked))
    assert agreement.with_values(parties=agreement.parties[:count]).quorum == quorum


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("localhost:1", "localhost", 1),
        ("10.0.0.7:65535", "10.0.0.7", 65535),
        ("[2001:db8::1]:7443", "2001:db8::1", 7443),
    ],
)
def test_addresses(address: str, host: str, port: int) -> None:
    agreement = build_agreement(values(address=address))
    assert agreement.endpoint == (host, port)


ADDRESSES = (
    "host",
    "host:",
    ":1",
    "host:0",
    "host:65536",
    "host:1\n",
    "host:٣",
    "::1:7443",
    "[host]:1",
    "[::1]",
    "a b:1",
    "a..b:1",
)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    **{f"address {a!a}": ({"address": a}, r"is not host:port; for example") for a in ADDRESSES},
    "no certificate": (
        {"parties": [member("film", "-----BEGIN CERTIFICATE-----\nx")]},
        "the certificate of film cannot be read",
    ),
    "no authority": ({"authority": "none"}, "the certificate of the authority cannot be read"),
    "another's certificate": (
        {"parties": [member("film", PARTIES["book"])]},
        "the certificate of film is for 'book'",
    ),
    "same name": ({"parties": [member("film"), member("film")]}, "'film' is already a party"),
    "same name in capitals": ({"parties": [member("film"), member("Film")]}, "'film' is already a party"),
    "server": ({"parties": [member("server", SERVER)]}, "reserved for the coordinator"),
    "not server": ({"coordinator": member("film")}, "must be named 'server'"),
    "bad name": ({"parties": [{"name": "a b", "certificate": SERVER}]}, "'a b' cannot be a name"),
    "bad federation name": ({"name": "a\nb"}, r"'a\\nb' cannot be a name"),
    "time": ({"timeouts": {"reply": 0}}, r"timeouts\.reply must be greater than 0"),
    "alignment": ({"alignment": "guess"}, "'keyed', 'ecdh' or 'none'"),
    "quorum": ({"min_parties": -1}, "min_parties must be greater than or equal to"),
    "config": ({"config": {"model": {"dim": 0}}}, r"config\.model\.dim"),
    "contradiction": (
        {"config": {"masking": True, "gradients": {"mechanism": "laplace"}}},
        "masking needs integers",
    ),
    "unknown": ({"secret": "x"}, "secret is not known"),
    "another authority": (
        {"authority": c.new_authority("trial")[1]},
        "the certificate of server is not signed by",
    ),
    "stranger": (
        {
            "parties": [
                member("film"),
                member("book", c.issue(*c.new_authority("trial"), c.make_request(c.new_key(), "book"))),
            ]
        },
        "the certificate of book is not signed by",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_file_is_one_line(tmp_path: Path, case: str) -> None:
    changes, message = REFUSED[case]
    path = tmp_path / "federation.toml"
    spelled = values() | {"config": {"masking": True}} | changes
    path.write_text(tomli_w.dumps(spelled))
    with pytest.raises(ConfigError, match=message) as caught:
        load_agreement(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=message):
        build_agreement(spelled)


def test_one_key_for_two_parties() -> None:
    key = c.new_key()
    twins = [member(name, c.issue(*CA, c.make_request(key, name))) for name in ("film", "book")]
    with pytest.raises(ConfigError, match="film and book have the same key"):
        build_agreement(values(parties=twins))


def test_text_around_a_certificate_is_dropped() -> None:
    agreement = build_agreement(values(parties=[member("film", f"mine:\n{PARTIES['film']}\npassword: x\n")]))
    assert agreement.member("film").certificate == PARTIES["film"]
    assert agreement.member("server") is agreement.coordinator
    with pytest.raises(ConfigError, match="no party 'book' in federation trial; its parties are: film"):
        agreement.member("book")


def test_unreadable_files(tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    with pytest.raises(ConfigError, match="No such file or directory; pass the federation"):
        load_agreement(path)
    with pytest.raises(ConfigError, match="No such file or directory; pass the federation"):
        load_agreement(tmp_path)
    for data in (b"name = ", b"\xff", b"name = " + b"[" * 100_000, b"min_users = " + b"9" * 5000):
        path.write_bytes(data)
        with pytest.raises(ConfigError, match="not valid TOML"):
            load_agreement(path)
    with pytest.raises(ConfigError, match="cannot write"):
        save_agreement(tmp_path / "none" / "federation.toml", build_agreement(values()))


def test_expired_certificates_say_whose_and_until_when(tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    expired = {
        name: c.issue(*CA, c.make_request(c.new_key(), name), days=0, server=name == "server")
        for name in ("server", "book")
    }
    save_agreement(path, build_agreement(values(parties=[member("film"), member("book", expired["book"])])))
    with pytest.raises(ConfigError, match=r"certificate of book expired on 20\d\d-\d\d-\d\d; .*--replace"):
        load_agreement(path)
    assert load_agreement(path, dates=False).member("book").parsed.end
    save_agreement(path, build_agreement(values(coordinator=member("server", expired["server"]))))
    with pytest.raises(
        ConfigError, match=r"certificate of server expired on .*federation approve .* --renew"
    ):
        load_agreement(path)


Command = Callable[..., list[str]]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run `verfedgnn federation ...` in an empty folder; return the printed lines or raise the error."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, answer: str | None = None) -> list[str]:
        monkeypatch.setattr(federation, "_has_terminal", lambda: answer is not None)
        result = CliRunner().invoke(federation.app, arguments, input=answer)
        if isinstance(result.exception, VerFedGNNError):
            assert "\n" not in str(result.exception)
            raise result.exception
        assert result.exit_code == 0, (result.output, result.exception)
        return result.output.splitlines()

    return run


@pytest.fixture
def founded(command: Command) -> Command:
    """Return `command` after creating the folder `fed` and the requests of film and book."""
    command("init", "fed", "--address", "localhost:7443", "--preset", "paper")
    command("join-request", "film")
    command("join-request", "book")
    return command


def mode(path: str) -> int:
    return stat.S_IMODE(Path(path).stat().st_mode)


def test_from_init_to_a_roster(command: Command) -> None:
    lines = command(
        "init", "fed", "--address", "localhost:7443", "--seed", "3", "--set", "dim=8", "--name", "trial"
    )
    assert lines[0] == "federation trial at localhost:7443; masking is on"
    assert lines[-1].startswith("next, at each party: ")
    assert sorted(path.name for path in Path("fed").iterdir()) == [
        "authority.key",
        "coordinator.key",
        "federation.toml",
    ]
    assert [mode(f"fed{name}") for name in ("", "/authority.key", "/coordinator.key")] == [
        0o700,
        0o600,
        0o600,
    ]
    Path("film").mkdir(mode=0o755)  # empty, so it may be used, but closed first
    asked = {name: command("join-request", name) for name in ("film", "book")}
    assert [mode("film"), mode("film/key.pem")] == [0o700, 0o600]
    assert sorted(path.name for path in Path("film").iterdir()) == ["film.csr", "key.pem"]
    lines = command("approve", "fed", "film/film.csr", "book/book.csr", "--yes")
    for line, name in zip(lines, asked, strict=False):
        assert line.startswith(f"{name}: ")
        assert line.split(": ")[-1] == asked[name][-3].split(": ")[-1], "both sides read the same fingerprint"
    assert lines[-2].startswith("diagnosis: Send fed/federation.toml")
    assert lines[-1].startswith("next: ")
    assert lines[-1].endswith(" coordinator fed")
    agreement = load_agreement(Path("fed"))
    assert [party.name for party in agreement.parties] == ["film", "book"]
    assert (
        c.key_fingerprint(c.read_key(Path("film/key.pem")))
        == c.Certificate(agreement.member("film").certificate).key_fingerprint
    )
    assert (
        c.key_fingerprint(c.read_key(Path("fed/coordinator.key")))
        == c.Certificate(agreement.coordinator.certificate).key_fingerprint
    )
    assert (
        c.key_fingerprint(c.read_key(Path("fed/authority.key")))
        == c.Certificate(agreement.authority).key_fingerprint
    )
    assert (agreement.config.seed, agreement.config.model.dim, agreement.config.masking) == (3, 8, True)


def test_show(founded: Command) -> None:
    founded("approve", "fed", "film/film.csr", "book/book.csr", "--yes")
    agreement = load_agreement(Path("fed"))
    shown = "\n".join(founded("show", "fed"))
    for words in (
        "localhost:7443",
        "keyed",
        "2 of 2",
        agreement.config.fingerprint(),
        c.short_fingerprint(agreement.digest()),
        "masking = true",
    ):
        assert words in shown
    for party in (agreement.coordinator, *agreement.parties):
        assert c.short_fingerprint(party.parsed.fingerprint) in shown
    assert shown.splitlines()[-1].startswith("next: ")
    told = json.loads(founded("show", "fed/federation.toml", "--json")[0])
    assert told["fingerprint"] == agreement.digest()[:16]
    assert told["settings"] == {"masking": True}
    assert [m["name"] for m in told["members"]] == ["server", "film", "book"]
    assert told["members"][1]["certificate"] == agreement.member("film").parsed.fingerprint
    assert told["members"][1]["key"] == c.key_fingerprint(c.read_key(Path("film/key.pem")))
    expired = c.issue(
        *(c.read_key(Path("fed/authority.key")), agreement.authority),
        Path("film/film.csr").read_text(),
        days=0,
    )
    save_agreement(Path("fed/federation.toml"), agreement.with_values(parties=[member("film", expired)]))
    assert "(expired)" in "\n".join(founded("show", "fed"))


def test_the_files_are_enough_for_mutual_tls(founded: Command) -> None:
    founded("approve", "fed", "film/film.csr", "--yes")
    agreement = load_agreement(Path("fed"))
    own, film = agreement.coordinator, agreement.member("film")
    server = context(
        ssl.PROTOCOL_TLS_SERVER, agreement.authority, Path("fed/coordinator.key"), own.certificate
    )
    party = context(ssl.PROTOCOL_TLS_CLIENT, agreement.authority, Path("film/key.pem"), film.certificate)
    assert handshake(server, party) == (film.parsed.fingerprint, own.parsed.fingerprint)


def test_masking_is_on_by_default(command: Command) -> None:
    start = ("--address", "localhost:1")
    paper = (*start, "--preset", "paper")
    Path("mine.toml").write_text("masking = false\n[model]\ndim = 5\n")
    command("init", "a", *paper, "--set", "masking=false")
    command("init", "b", *paper, "--config", "mine.toml", "--model", "ggnn")
    lines = command("init", "c", *paper, "--set", "mechanism=laplace")
    assert "masking is off, for laplace gradients" in lines[0]
    assert not any(load_agreement(Path(name)).config.masking for name in "abc")
    assert load_agreement(Path("b")).config.model.gnn == "ggnn"
    command("init", "d", *start, "--alignment", "none", "--min-parties", "3")
    agreement = load_agreement(Path("d"))
    assert (agreement.config.masking, agreement.alignment, agreement.min_parties) == (True, "none", 3)


def test_approval_is_asked_for(founded: Command) -> None:
    before = Path("fed/federation.toml").read_bytes()
    with pytest.raises(ConfigError, match="--yes"):
        founded("approve", "fed", "film/film.csr")
    with pytest.raises(ConfigError, match="nothing changed"):
        founded("approve", "fed", "film/film.csr", answer="n\n")
    assert Path("fed/federation.toml").read_bytes() == before
    founded("approve", "fed", "film/film.csr", answer="y\n")
    assert [party.name for party in load_agreement(Path("fed")).parties] == ["film"]


def test_rotation_and_revocation(founded: Command) -> None:
    founded("approve", "fed", "film/film.csr", "book/book.csr", "--yes")
    before = load_agreement(Path("fed"))
    founded("join-request", "film", "--out", "new")
    with pytest.raises(ConfigError, match=r"film is already a member; .* --replace"):
        founded("approve", "fed", "new/film.csr", "--yes")
    founded("approve", "fed", "new/film.csr", "--replace", "--yes")
    after = load_agreement(Path("fed"))
    assert [party.name for party in after.parties] == ["film", "book"], "the order fixes the sums"
    assert (
        c.key_fingerprint(c.read_key(Path("new/key.pem")))
        == c.Certificate(after.member("film").certificate).key_fingerprint
    )
    assert after.member("book") == before.member("book")
    founded("join-request", "music")
    with pytest.raises(ConfigError, match="omit --replace"):
        founded("approve", "fed", "music/music.csr", "--replace", "--yes")
    with pytest.raises(ConfigError, match="another request for film"):
        founded("approve", "fed", "film/film.csr", "new/film.csr", "--replace", "--yes")

    Path("fed/.coordinator.key.part").write_text("left by an interruption")
    lines = founded("approve", "fed", "--renew")
    assert lines[-1].startswith("next: ")
    renewed = load_agreement(Path("fed"))
    assert renewed.coordinator != after.coordinator
    assert renewed.parties == after.parties
    assert mode("fed/coordinator.key") == 0o600
    assert (
        c.key_fingerprint(c.read_key(Path("fed/coordinator.key")))
        == c.Certificate(renewed.coordinator.certificate).key_fingerprint
    )

    assert founded("approve", "fed", "--remove", "film")[-1].startswith("next: ")
    assert [party.name for party in load_agreement(Path("fed")).parties] == ["book"]
    with pytest.raises(ConfigError, match="no party 'film'"):
        founded("approve", "fed", "--remove", "film")
    with pytest.raises(ConfigError, match="federation approve fed --renew"):
        founded("approve", "fed", "--remove", "server")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["init", "fed", "--address", "localhost:1"], "already exists and is not empty"),
        (["init", "film/key.pem", "--address", "localhost:1", "--name", "x"], "cannot create"),
        (["init", "x", "--address", "localhost"], "is not host:port"),
        (["init", "x", "--address", "localhost:1", "--name", "a b"], "--name"),
        (["init", "x", "--address", "localhost:1", "--set", "dimm=3"], "did you mean"),
        (["init", "x", "--address", "localhost:1", "--model", "mlp"], "gcn, gat, ggnn"),
        (["init", "x", "--address", "localhost:1", "--preset", "worst"], "best, means, paper, private"),
        (["init", "x", "--address", "localhost:1", "--config", "none.toml"], "cannot read the configuration"),
        (["init", "x", "--address", "localhost:1", "--min-parties", "-1"], "min_parties"),
        (["join-request", "film"], "already exists and is not empty"),
        (["join-request", "../x"], "cannot be a name"),
        (["join-request", "Server"], "reserved for the coordinator"),
        (["approve", "film", "film/film.csr"], "cannot read the agreement"),
        (["approve", "fed", "none.csr"], "cannot read the request none.csr"),
        (["approve", "fed", "film/key.pem"], "film/key.pem: this is a private key"),
        (["approve", "fed", "fed/federation.toml"], "not a certificate request"),
        (["show", "film"], "cannot read the agreement film/federation.toml"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(
    founded: Command, arguments: list[str], message: str
) -> None:
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=message):
        founded(*arguments)
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before
    assert not Path("x").exists()


def test_an_open_authority_key_signs_nothing(founded: Command) -> None:
    Path("fed/authority.key").chmod(0o644)
    for arguments in (["approve", "fed", "film/film.csr", "--yes"], ["approve", "fed", "--renew"]):
        with pytest.raises(ConfigError, match=r"chmod 600 fed/authority\.key"):
            founded(*arguments)
    shutil.copy("film/key.pem", "fed/other")
    Path("fed/other").replace("fed/authority.key")
    with pytest.raises(ConfigError, match="does not belong to its certificate"):
        founded("approve", "fed", "--renew")


def test_an_agreement_that_does_not_fit_its_parties() -> None:
    """Rounded sums need all parties; with one more party, the old number is too low."""
    config = Config.preset("best")
    assert build_agreement(values(config=config, min_parties=3)).problem is None
    low = build_agreement(values(config=config, min_parties=2))
    assert low.problem is not None
    assert "set min_parties = 3" in low.problem
    assert build_agreement(values(min_parties=2)).problem is None


def test_a_fourth_party_keeps_all_required(tmp_path: Path) -> None:
    """`approve` raises the number of required parties if every sum must include all, and `revoke` lowers it."""
    hub = tmp_path / "hub"
    create_federation(
        hub,
        preset="best",
        model=None,
        config_file=None,
        overrides={},
        name="shops",
        address="127.0.0.1:7443",
        min_parties=3,
    )

    def admit(*names: str) -> Agreement:
        requests = [request_membership(name, tmp_path / name)[1] for name in names]
        return admit_parties(hub, requests, replace=False, confirm=lambda fingerprints: None)

    assert admit("film", "book", "music").quorum == 3
    four = admit("games")
    assert (four.quorum, four.problem) == (4, None)
    three = remove_party(hub, "film")
    assert (three.quorum, three.problem) == (3, None)


def test_a_chosen_number_of_parties_survives_approvals(tmp_path: Path) -> None:
    """Parties that are approved one by one do not raise a quorum that the federation was created with."""
    hub = tmp_path / "hub"
    about: dict[str, Any] = {"preset": "paper", "model": None, "config_file": None, "overrides": {}}
    create_federation(hub, **about, name="shops", address="127.0.0.1:7443", min_parties=2)
    for name in ("film", "book", "music"):
        request = request_membership(name, tmp_path / name)[1]
        agreed = admit_parties(hub, [request], replace=False, confirm=lambda fingerprints: None)
    assert (agreed.min_parties, agreed.quorum, agreed.problem) == (2, 2, None)


def test_rounded_sums_need_all_parties_by_default() -> None:
    config = Config.preset("best")
    assert build_agreement(values(config=config, min_parties=0)).quorum == 3
    assert build_agreement(values(config=config, min_parties=0)).problem is None


def test_only_the_coordinator_changes_the_agreement(tmp_path: Path, command: Command) -> None:
    hub = tmp_path / "hub"
    hub.mkdir()
    save_agreement(hub / "federation.toml", build_agreement(values(config=Config.preset("best", seed=3))))
    before = load_agreement(hub)
    with pytest.raises(ConfigError, match="hub is not the coordinator's folder; only the coordinator"):
        command("approve", "hub", "--remove", "film")
    assert load_agreement(hub) == before
