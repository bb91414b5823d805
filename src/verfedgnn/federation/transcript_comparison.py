"""Comparison of the members' transcripts: did every party receive the same?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from verfedgnn.federation.agreement import Agreement
from verfedgnn.federation.certificates import COORDINATOR
from verfedgnn.federation.transcript import ALIGNMENT
from verfedgnn.federation.transcript_check import CheckedTranscript

_WORDS = {
    "instruction": {
        "active": "the active parties",
        "evaluate": "whether to validate",
        "best_round": "the round of the best validation",
    },
    "update": {"parties": "the parties in the sum of gradients", "sum": "the sum of gradients"},
    "survivors": {"survivors": "the list of parties whose masked replies are added up"},
    "neighbourhoods": {
        "parties": "the parties in the sum of neighbourhoods",
        "sum": "the sum of neighbourhoods",
    },
    "parameters": {
        "parameters": "the public parameters",
        "accumulator": "the optimiser's state",
        "average": "the average of the public parameters",
    },
    "digest": {"digest": "the hash of the public parameters"},
    "training": {
        "name": "the name of the training",
        "configuration": "the configuration",
        "items": "the numbers of items",
        "ratings": "the number of ratings",
    },
    "result": {
        "round": "the last round",
        "best_round": "the best round",
        "parameters": "the parameters of the result",
    },
    "alignment": {"keys": "the keys of the alignment"},
    "rows": {"users": "the number of users"},
    "name": {"name": "the name of the alignment"},
}
"""What the fields of statements are about, by the first word of their subject."""
_BY_ROUND = ("instruction", "survivors", "update", "neighbourhoods", "parameters", "digest")
"""First words of subjects that name a round."""
_PARTIES = ("active", "parties", "survivors")
"""Fields that hold places in the roster."""


@dataclass(frozen=True)
class Difference:
    """Something that two transcripts do not agree on."""

    stage: str
    """The training, or "alignment"."""
    round: int | None
    between: tuple[str, str]
    field: str
    text: str
    """The difference in one sentence."""


@dataclass
class _View:
    """What one party received, and which rounds it replied to."""

    name: str
    told: dict[tuple[str, str, str], list[dict[str, Any]]] = field(default_factory=dict)
    """Distinct values by stage, training and subject."""
    trainings: dict[str, str] = field(default_factory=dict)
    """Name of the last training by stage."""
    replied: set[tuple[str, str, int]] = field(default_factory=set)
    """Stage, training and round of its replies with a gradient."""
    alignment: str | None = None


def compare_transcripts(transcripts: Sequence[CheckedTranscript], agreement: Agreement) -> list[Difference]:
    """Return all differences between the transcripts of one federation, in the order of rounds."""
    views = [_view(one) for one in transcripts if one.name != COORDINATOR]
    names = [party.name for party in agreement.parties]
    found = [
        *_compare_alignments(views),
        *_compare_trainings(views),
        *_compare_statements(views, names),
        *_compare_replies(views, names),
        *_compare_messages(transcripts),
    ]
    stages = [ALIGNMENT, *(stage for view in views for stage in view.trainings)]
    return sorted(
        found, key=lambda one: (stages.index(one.stage) if one.stage in stages else 0, one.round or 0)
    )


def summarise_comparison(
    transcripts: Sequence[CheckedTranscript], differences: Sequence[Difference]
) -> dict[str, Any]:
    """Return the result of a check as JSON values, with a verdict in words."""
    changed = [f"{one.name}: {one.problem} ({one.file})" for one in transcripts if one.problem]
    parties = [one for one in transcripts if one.name != COORDINATOR]
    problems = [*changed, *(one.text for one in differences)]
    if problems:
        more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
        verdict = f"first problem{more}: {problems[0]}"
    elif len(parties) > 1:
        verdict = f"{len(parties)} parties received the same in every round that their transcripts share"
    else:
        verdict = "unchanged; pass transcripts of two or more parties to compare what they received"
    return {
        "agree": not problems,
        "verdict": verdict,
        "problems": problems,
        "remarks": [remark for one in transcripts for remark in _remarks(one)],
        "transcripts": [
            {
                "member": one.name,
                "file": str(one.file),
                "entries": len(one.entries),
                "signed": one.signed,
                "rounds": one.rounds,
                "restarts": one.restarts,
                "finished": one.is_finished,
                "problem": one.problem,
            }
            for one in transcripts
        ],
        "differences": [asdict(one) for one in differences],
    }


def _remarks(transcript: CheckedTranscript) -> Iterator[str]:
    unsigned = len(transcript.entries) - transcript.signed
    if transcript.problem is not None:
        return
    if not transcript.is_finished:
        yield f"{transcript.name} has not finished: its transcript ends in round {transcript.rounds}"
    if unsigned:
        yield f"{transcript.name} has not signed the last {unsigned} entries: whoever holds the file could change these"


def _view(transcript: CheckedTranscript) -> _View:
    view = _View(transcript.name)
    for entry in transcript.entries:
        stage = entry.stage or ALIGNMENT
        if entry.kind == ALIGNMENT and entry.values is not None:
            view.alignment = str(entry.values.get("name"))
        for subject, value in (entry.common or {}).items():
            if subject == "training":
                view.trainings[stage] = str(value.get("name"))
        training = view.trainings.get(stage, "")
        for subject, value in (entry.common or {}).items():
            values = view.told.setdefault((stage, training, subject), [])
            if value not in values:
                values.append(value)
        if entry.way == "out" and entry.kind == "RoundReply" and entry.trip == 0 and entry.round is not None:
            view.replied.add((stage, training, entry.round))
    return view


def _compare_alignments(views: Sequence[_View]) -> Iterator[Difference]:
    known = [view for view in views if view.alignment is not None]
    for other in known[1:]:
        if other.alignment != known[0].alignment:
            values = [{"name": known[0].alignment}, {"name": other.alignment}]
            yield _differ(ALIGNMENT, "name", "name", (known[0].name, other.name), values, [])


def _compare_trainings(views: Sequence[_View]) -> Iterator[Difference]:
    for stage in dict.fromkeys(stage for view in views for stage in view.trainings):
        joined = [view for view in views if stage in view.trainings]
        for other in joined[1:]:
            if other.trainings[stage] != joined[0].trainings[stage]:
                values = [{"name": view.trainings[stage]} for view in (joined[0], other)]
                yield _differ(stage, "training", "name", (joined[0].name, other.name), values, [])


def _compare_statements(views: Sequence[_View], names: Sequence[str]) -> Iterator[Difference]:
    """Compare what parties received on each subject.

    A coordinator that was killed repeats its open round, perhaps with fewer parties. A party may then have two values of one
    subject. The party with most values is the reference, and every other one must share a value with it.
    """
    for key in dict.fromkeys(key for view in views for key in view.told):
        told = [view for view in views if key in view.told]
        reference = max(told, key=lambda view: len(view.told[key]))
        for view in told:
            if any(value in reference.told[key] for value in view.told[key]):
                continue
            values = [reference.told[key][-1], view.told[key][-1]]
            fields = [name for name in values[0] if values[0][name] != values[1].get(name)]
            yield _differ(
                key[0], key[2], (fields or [*values[1]])[0], (reference.name, view.name), values, names
            )


def _compare_replies(views: Sequence[_View], names: Sequence[str]) -> Iterator[Difference]:
    """Find sums that name a party as a contributor whose transcript has no reply in that round."""
    by_name = {view.name: view for view in views}
    for teller in views:
        for (stage, training, subject), values in teller.told.items():
            round = _round_of(subject)
            if round is None or not subject.startswith("update "):
                continue
            for index, name in enumerate(names):
                party = by_name.get(name) if index in values[-1].get("parties", []) else None
                if party is not None and (stage, training, round) not in party.replied:
                    text = (
                        f"{stage}, round {round}: the sum of gradients that {teller.name} received includes {party.name}, "
                        f"but the transcript of {party.name} has no reply in that round"
                    )
                    yield Difference(stage, round, (teller.name, party.name), "reply", text)


def _compare_messages(transcripts: Sequence[CheckedTranscript]) -> Iterator[Difference]:
    """Find messages that a party received and the coordinator's transcript does not have, and the reverse."""
    hub = next((one for one in transcripts if one.name == COORDINATOR), None)
    if hub is None:
        return
    for party in transcripts:
        if party is hub:
            continue
        of_party = [entry for entry in hub.entries if entry.peer == party.name]
        for receiver, entries, sent in (
            (party, party.entries, {entry.sha256 for entry in of_party if entry.way == "out"}),
            (hub, of_party, {entry.sha256 for entry in party.entries if entry.way == "out"}),
        ):
            sender = hub if receiver is party else party
            for entry in entries:
                if entry.way == "in" and entry.sha256 not in sent:
                    where = f"{entry.stage}, round {entry.round}" if entry.round else f"{entry.stage}"
                    text = (
                        f"{where}: {receiver.name} received a {entry.kind} (line {entry.number}) that the transcript of "
                        f"{sender.name} does not have"
                    )
                    between = (receiver.name, sender.name)
                    yield Difference(entry.stage or ALIGNMENT, entry.round, between, entry.kind, text)
                    break


def _round_of(subject: str) -> int | None:
    """Return the round that a subject such as `update 4` or `instruction 5.0.0` names; None if it names none."""
    kind, _, place = subject.partition(" ")
    number = place.split(".")[0]
    return int(number) if kind in _BY_ROUND and re.fullmatch("[0-9]{1,10}", number) else None


def _differ(
    stage: str,
    subject: str,
    field: str,
    between: tuple[str, str],
    values: Sequence[dict[str, Any]],
    names: Sequence[str],
) -> Difference:
    kind = subject.split(" ")[0]
    round = _round_of(subject)
    where = stage if round is None else f"{stage}, round {round}"
    what = _WORDS.get(kind, {}).get(field, f"{kind} {field}")
    shown = [_show(one.get(field), field, names) for one in values]
    text = (
        f"{where}: {what} differs between {between[0]} and {between[1]}: "
        f"{between[0]} has {shown[0]}, {between[1]} has {shown[1]}"
    )
    return Difference(stage, round, between, f"{kind} {field}", text)


def _show(value: Any, field: str, names: Sequence[str]) -> str:
    if field in _PARTIES and isinstance(value, list):
        return ", ".join(
            names[i] if isinstance(i, int) and 0 <= i < len(names) else str(i)[:20] for i in value
        )
    text = str(value)
    return f"{text[:16]}..." if len(text) > 64 else text
