"""One page on a federation for a security or data-protection officer, written from its agreement alone."""

from __future__ import annotations

from datetime import UTC, datetime

from verfedgnn.federation.agreement import Agreement, describe_two_parties, list_stages
from verfedgnn.federation.certificates import COORDINATOR, format_day, short_fingerprint
from verfedgnn.privacy.protections import protection_of
from verfedgnn.privacy.visibility import who_sees_what

_ALIGNED = {
    "keyed": "by pseudonyms under a key that the parties share and the coordinator does not have. The coordinator and any one party "
    "together could look users up",
    "ecdh": "by pseudonyms under keys of the first two parties. The coordinator and these two together could look users up",
    "none": "not at all: all files list the same users, who are therefore known to all",
}
_LEFT = """\
**Forgetting a customer.** `verfedgnn forget RUN --user ID` removes a customer's rows from a party's own runs, and later trainings
leave the customer out. Nothing is sent. Until the next training, the public parameters at all members still have the row that was
fitted with this customer's ratings; it carries no id, and its number leads to the id only at parties that have the customer, too.

**Leaving.** A party that leaves keeps its ratings, its run folders and its model, and deletes them as it likes. The others keep what
they have received: public parameters, to which its ratings have contributed, sums that included it, its number of items, and
transcripts with sizes and hashes of messages. These cannot be taken back. The next training under an agreement without the party
does not use its data.
"""


def assess(agreement: Agreement) -> str:
    """Return the page in Markdown."""
    config = agreement.config
    count = len(agreement.parties)
    stages = list_stages(agreement)
    rounds = config.training.epochs if not config.training.batch else None
    protection = protection_of(config.for_parties(count).for_data(1, 100), count)
    promised = "it depends on the number of rounds, which follows from the number of ratings; see metrics.json after a training"
    if rounds is not None:
        promised = protection.guarantee(rounds, rounds)["guarantee"]
    members = [
        f"| {member.name} | {'coordinator: runs the rounds, has no ratings' if member.name == COORDINATOR else 'party'} "
        f"| {short_fingerprint(member.fingerprint)} | {format_day(member.expires)} |"
        for member in agreement.members
    ]
    seen = [f"| {' | '.join(row)} |" for row in who_sees_what(config, count)]
    limits = [
        f"A round needs {agreement.quorum} of {count} parties.",
        f"A federation of fewer than {agreement.min_users:,} users is refused.",
        f"A party may align at most {agreement.max_users:,} users, and a training may have {agreement.max_rounds:,} rounds.",
        f"Every party must share {100 * agreement.min_overlap:g} % of its users with another one.",
    ]
    two = describe_two_parties(agreement)
    return "\n".join(
        [
            f"# Assessment of federation {agreement.name}",
            f"Written on {format_day(datetime.now(UTC))} by `verfedgnn federation show --assessment`, from the agreement with the "
            f"fingerprint **{short_fingerprint(agreement.digest())}**. Compare it with the other organisations by phone.",
            "",
            "## Who takes part",
            "| member | role | fingerprint of the certificate | expires |",
            "|---|---|---|---|",
            *members,
            "",
            f"The coordinator listens at {agreement.address}; parties connect to it and never to each other. All connections are "
            "mutual TLS 1.3 between these certificates.",
            "",
            "## Which data",
            "Each party trains on its own ratings or purchases: user, item, and optionally rating and time. They stay on its machine, "
            "as do item ids, titles, and its model of its items.",
            f"Users are matched {_ALIGNED[agreement.alignment]}.",
            f"Users who take part: {config.users}. Trainings: {', then '.join(stage.name for stage in stages)} (preset {config.base}).",
            "",
            "## What leaves a party, and who sees it",
            "| what a party has | the coordinator sees | another party sees |",
            "|---|---|---|",
            *seen,
            *([""] if two is None else ["", two]),
            "",
            "A party may choose to share one word about its last run (`--share-verdict`) with all members."
            if not config.gradients.protects_ratings
            else "Verdicts cannot be shared.",
            "",
            "## Guarantee",
            f"Of what a party releases: {promised}.",
            "All other parties together can compute what the remaining one contributed to a sum. Nobody is assumed to send false values: "
            "these spoil the model.",
            *limits,
            "",
            "## What is kept, and how long",
            "- A party: aligned ratings, checkpoints, its model, a secret and a transcript, in run folders that only their owner can read. "
            "`verfedgnn night` keeps the last 14 nights (`--keep`), the served one and the best one.",
            "- The coordinator: public parameters, figures, bytes and a transcript of each training; no ratings and no ids.",
            "- Logs: names of members, rounds, errors and bytes; no ids, ratings or addresses.",
            "",
            _LEFT,
        ]
    )
