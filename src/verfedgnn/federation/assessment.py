"""One page on a federation for a security or data-protection officer, written from its agreement alone."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from verfedgnn.federation.agreement import Agreement, describe_two_parties, list_stages
from verfedgnn.federation.certificates import COORDINATOR, short_fingerprint
from verfedgnn.privacy.protections import protection_of
from verfedgnn.privacy.visibility import who_sees_what

_ALIGNED = {
    "keyed": "by pseudonyms under a key that the parties share and the coordinator does not have. The coordinator and any one party "
    "together could look users up",
    "ecdh": "by pseudonyms under keys of the first two parties. The coordinator and these two together could look users up",
    "none": "not at all: all files list the same users, who are therefore known to all",
}
_TEMPLATE = Path(__file__).with_name("assessment.md")


def assess(agreement: Agreement) -> str:
    """Return the page in Markdown."""
    config, count = agreement.sized_config, len(agreement.parties)
    promised = "it depends on the number of rounds, which follows from the number of ratings; see metrics.json after a training"
    if not config.training.batch:
        protection = protection_of(config, count)
        promised = protection.guarantee(config.training.epochs, config.training.epochs)["guarantee"]
    members = [
        f"| {member.name} | {'coordinator: runs the rounds, has no ratings' if member.name == COORDINATOR else 'party'} "
        f"| {short_fingerprint(member.parsed.fingerprint)} | {member.parsed.end.date()} |"
        for member in agreement.members
    ]
    verdicts = "A party may choose to share one word about its last run (`--share-verdict`) with all members."
    two = describe_two_parties(agreement)
    values = dict(agreement) | {
        "today": datetime.now(UTC).date(),
        "fingerprint": short_fingerprint(agreement.digest()),
        "members": "\n".join(members),
        "aligned": _ALIGNED[agreement.alignment],
        "users": config.users,
        "trainings": ", then ".join(stage.name for stage in list_stages(agreement)),
        "preset": config.base,
        "seen": "\n".join(f"| {' | '.join(row)} |" for row in who_sees_what(config, count)),
        "two_parties": "" if two is None else f"\n{two}\n",
        "verdicts": "Verdicts cannot be shared." if config.gradients.protects_ratings else verdicts,
        "promised": promised,
        "quorum": agreement.quorum,
        "count": count,
        "overlap": 100 * agreement.min_overlap,
    }
    return _TEMPLATE.read_text("utf-8").format_map(values)
