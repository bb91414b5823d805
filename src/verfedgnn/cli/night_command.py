"""`verfedgnn night` and `nights`: one command a member and night, and the history of the nights."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from threading import TIMEOUT_MAX, Timer, current_thread, main_thread
from typing import Annotated

import typer

from verfedgnn.cli.output import STANDARD, Output
from verfedgnn.cli.shared_options import Count
from verfedgnn.cli.tables import make_table
from verfedgnn.core.errors import ConfigError, Interrupted, NotPromoted, RunError
from verfedgnn.core.files import check_file_name, make_folder, replacing, switch_link, writing
from verfedgnn.federation.event_log import configure_log, event_text
from verfedgnn.runs.nights import DONE, EXITS, HISTORY, Night, Word, read_best, read_nights

CURRENT = "current"
"""Link in a folder of nights to the run that is served."""
Training = Callable[[Path, Path, float], tuple[int, str]]
"""Trains into a folder after the served run, for some seconds at most; returns the exit code and what was said last."""


@dataclass(frozen=True)
class NightRules:
    """What a night is called, how it is judged, when it is given up, and what stays of those before."""

    name: str | None = None
    keep: int = 14
    tolerance: float = 0.5
    give_up: float = 20
    textfile: Path | None = None
    quiet: bool = True


def night(
    folder: Path,
    command: list[str],
    name: str | None = None,
    keep: Count = 14,
    tolerance: Annotated[float, typer.Option(min=0)] = 0.5,
    give_up: Annotated[float, typer.Option(min=0)] = 20,
    textfile: Path | None = None,
    output: Output = STANDARD,
) -> None:
    """Train tonight's run, judge it, promote it unless it is worse, remove old nights, and record the result.

    Start it again after a stop or a failure: it goes on where it was, and a night that is over is not repeated. Exit codes: 0 promoted (or
    trained, for a coordinator), 5 kept, 6 nothing new, 4 stopped, 1 failed, 7 given up, 75 another night is running. `nights` shows the
    history.

    Args:
        folder: Folder of the nights; each night is a run folder in it.
        command: After --: the training, such as `train --data film=film.csv ...`, `party --federation film --ratings FILE`
            or `coordinator hub`, without --out and --after.
        name: Name of the night; today's date by default.
        keep: Number of nights to keep; the served run and the best one stay, too.
        tolerance: Loss in per cent that `promote` accepts.
        give_up: Hours after its start at which a night that is not over is given up; the same at all members.
        textfile: Also write the last night as metrics for Prometheus (node_exporter).
    """
    if not command or command[0] not in ("train", "party", "coordinator"):
        raise ConfigError("after --, name the training: train, party or coordinator, with its options")
    for option in ("--out", "--after", "--resume", "--overwrite"):
        if option in command:
            raise ConfigError(f"leave {option} out of the training: `night` sets it")
    if "--log=json" in command or ("--log", "json") in pairwise(command):
        configure_log(as_json=True, level="info")
        output = replace(output, as_json=True)
    train = partial(_train, command, quiet=output.quiet)
    rules = NightRules(name, keep, tolerance, give_up, textfile, output.quiet)
    result = hold_night(folder, command[0], train, _hash_files(command), rules)
    reason = f": {result.reason}" if result.reason else ""
    output.result(asdict(result), f"{result.night} {result.result}{reason}")
    raise typer.Exit(EXITS[result.result])


def hold_night(folder: Path, role: str, train: Training, data: str, rules: NightRules) -> Night:
    """Train, judge and promote tonight's run, or the one that was begun before; record the result and return it."""
    with writing(folder):
        make_folder(folder)
    with _alone(folder):
        if (current := folder / CURRENT).is_symlink() and not current.exists():
            raise RunError(
                f"{current} leads to a run that is gone, and with it the record of forgotten users; put it back, or remove the link to "
                "begin anew"
            )
        try:
            tonight = check_file_name(rules.name or time.strftime("%Y-%m-%d"))
        except ValueError:
            raise ConfigError(
                "--name is that of a folder in it; use letters, digits, '.', '-' and '_'"
            ) from None
        before = read_nights(folder)
        now = datetime.now(UTC)
        begun = Night(tonight, "begun", "", now.isoformat(timespec="seconds"), 0.0, data)
        if before and before[-1].result not in DONE:
            if now < before[-1].due(rules.give_up):
                begun = replace(before[-1], result="begun", reason="")
            else:
                before[-1] = replace(before[-1], result="given up")
                _record(folder, before[-1], rules.textfile)
        result = next((each for each in before if each.night == begun.night and each.result in DONE), None)
        if result is None:
            place = folder / begun.night
            if place.is_symlink():
                raise RunError(f"{place} is a link, and a night would be written elsewhere; remove it")
            if any(place.glob("*")) and all(each.night != begun.night for each in before):
                raise RunError(
                    f"{place} holds files and is no night in the history; move them, or choose another --name"
                )
            _record(folder, begun, rules.textfile)
            result = _run_night(folder, begun, role, train, before, rules)
            _record(folder, result, rules.textfile)
            _prune(folder, rules.keep)
    return result


def nights(folder: Path, output: Output = STANDARD) -> None:
    """Show the history of the nights: promoted, kept, nothing new, stopped, failed or given up, with the reason.

    Args:
        folder: Folder of the nights.
    """
    if not folder.is_dir():
        raise RunError(f"{folder} is no folder; name the one in which `verfedgnn night` keeps its runs")
    history = read_nights(folder)
    rows, about = [], []
    for past in history:
        size = sum(file.stat().st_size for file in (folder / past.night).rglob("*") if file.is_file())
        megabytes = f"{size / 1e6:.1f}" if size else "–"
        rows.append([past.night, past.result, f"{past.seconds:.0f} s", megabytes, past.reason])
        about.append(asdict(past) | {"bytes": size})
    table = make_table(["night", "result", "took", "MB", "reason"], rows, box=None)
    output.result(about, table if history else f"no nights in {folder}")


def _run_night(
    folder: Path,
    begun: Night,
    role: str,
    train: Training,
    before: list[Night],
    rules: NightRules,
) -> Night:
    """Train, judge and promote; return what happened."""
    place, current = folder / begun.night, folder / CURRENT
    began, due = time.monotonic(), begun.due(rules.give_up)

    def end(result: Word, reason: str = "") -> Night:
        return replace(begun, result=result, reason=reason, seconds=round(time.monotonic() - began, 1))

    last = next((each for each in reversed(before) if each.result in ("promoted", "kept")), None)
    if role == "train" and last is not None and last.data == begun.data and not place.exists():
        return end("nothing new", f"the files are those of {last.night}")
    if role == "coordinator" or not (place / "metrics.json").is_file():
        left = (due - datetime.now(UTC)).total_seconds()
        code, error = train(place, current, left)
        if code:
            stop, late = code == Interrupted.exit_code, datetime.now(UTC) >= due
            word: Word = "given up" if late else "stopped" if stop else "failed"
            return end(word, _explain(place, "not over in time" if late and stop else error))
    if role == "coordinator":
        return end("trained", json.loads((place / "metrics.json").read_text("utf-8")).get("ended", ""))
    if not current.exists():
        switch_link(current, place)
        return end("promoted", "the first night")
    if current.resolve() == place.resolve():
        return end("promoted")
    options = ["--over", str(current), "--link", str(current), "--tolerance", str(rules.tolerance)]
    code, error = _call(["promote", str(place), *options], quiet=rules.quiet)
    results: dict[int, Word] = {
        0: "promoted",
        NotPromoted.exit_code: "kept",
        Interrupted.exit_code: "stopped",
    }
    return end(results.get(code, "failed"), error if code else "")


def _explain(place: Path, error: str) -> str:
    """Return why a training ended: for whom it waited, as its status says, and what it said last."""
    try:
        status = json.loads((place / "status.json").read_text("utf-8"))
        since = time.strftime("%H:%M", time.localtime(float(status["waits_since"])))
        names = ["the coordinator" if name == "server" else name for name in status["waits_for"]]
    except (OSError, ValueError, KeyError, TypeError):
        return error
    return f"{', '.join(names)} absent from {since}: {error}"


def _train(
    command: Sequence[str], place: Path, current: Path, seconds: float, *, quiet: bool
) -> tuple[int, str]:
    """Train tonight, or resume a training that was begun; return the exit code and what was said last. Stop it after `seconds`.

    A training on one machine that was killed too early to be resumed begins again.
    """
    after = ["--after", str(current)] if current.exists() and command[0] != "coordinator" else []
    whole = [*command, "--out", str(place), *after]
    if command[0] == "train" and place.exists():
        if (place / "config.toml").is_file():
            code, error = _call(["train", "--resume", str(place)], quiet=quiet, seconds=seconds)
            if code in (0, Interrupted.exit_code):
                return code, error
            whole.append("--overwrite")
        else:
            shutil.rmtree(place)
    return _call(whole, quiet=quiet, seconds=seconds)


def _call(words: Sequence[str], *, quiet: bool, seconds: float = TIMEOUT_MAX) -> tuple[int, str]:
    """Run a command of this program; return its exit code and what it said last.

    It gets the signals of this process, and is told to stop after `seconds`.
    """
    words = [sys.executable, "-m", "verfedgnn", *words]
    last, stopped = "", False
    # The group is its own, so that Ctrl-C reaches it once. It inherits the lock: it is a night at work, too, if this process is killed.
    with Popen(words, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE, close_fds=False, process_group=0) as called:
        assert called.stderr is not None

        def forward(number: int, _: object) -> None:
            nonlocal stopped
            stopped = True
            called.send_signal(number)

        numbers = (signal.SIGINT, signal.SIGTERM) if current_thread() is main_thread() else ()
        before = {number: signal.signal(number, forward) for number in numbers}
        timer = Timer(seconds, called.terminate)
        timer.start()
        try:
            for line in called.stderr:
                last = _read_reason(line.decode(errors="replace")) or last
                if not quiet:
                    with suppress(OSError):
                        os.write(2, line)  # as it is: standard error may turn lines into JSON
            code = called.wait()
        finally:
            timer.cancel()
            for number, handler in before.items():
                signal.signal(number, handler)
    return (Interrupted.exit_code, "by a signal") if stopped and code else (code, last)


def _read_reason(line: str) -> str:
    """Return what a line of a log says, in JSON or not; "" for the command that it proposes."""
    if line.startswith("{"):
        with suppress(ValueError, KeyError, AttributeError):  # a line of something else
            about = json.loads(line)
            fields = {key: value for key, value in about.items() if key not in ("time", "level", "event")}
            line = event_text(about["event"].strip().rpartition("\n")[2], fields)
    return "" if line.startswith("next: ") else line.strip().removeprefix("error: ")


def _hash_files(command: Sequence[str]) -> str:
    """Return the hash of the files that a training reads; "" if it names none."""
    found: list[Path] = []
    for before, word in pairwise(command):
        place = Path(word.rpartition("=")[2])
        if place.is_dir() and (word if word.startswith("--") else before).startswith(("--data", "--ratings")):
            found += sorted(file for file in place.rglob("*") if file.is_file())
        elif place.is_file():
            found.append(place)
    digest = hashlib.sha256()
    for file in found:
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest() if found else ""


def _record(folder: Path, result: Night, textfile: Path | None) -> None:
    """Append a line to the history, and write the metrics of the last night."""
    with writing(folder):
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        with open(os.open(folder / HISTORY, flags, 0o600), "a+b") as file:
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)  # without a torn line
            file.write(json.dumps(asdict(result)).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    if textfile is not None:
        _write_metrics(textfile, folder)


def _prune(folder: Path, keep: int) -> None:
    """Remove the oldest nights that are over, but not the served run and the best ones, and what only resuming the others needs."""
    current = folder / CURRENT
    kept = {current.resolve()} if current.exists() else set()
    if (current / "metrics.json").is_file():
        kept |= set(read_best(current.resolve()).values())
    over = [folder / each.night for each in read_nights(folder) if each.result in DONE]
    with writing(folder):
        for place in (each for each in over if each.is_dir() and not each.is_symlink()):
            gone = place in over[:-keep] and place.resolve() not in kept
            for part in [place] if gone else list(place.rglob("checkpoint")):
                shutil.rmtree(part)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one night run at a time in a folder; the lock ends with the process and the training that it has started."""
    handle = os.open(folder / ".nights.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    os.set_inheritable(handle, True)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print(f"another night is running in {folder}", file=sys.stderr)
            raise typer.Exit(75) from None
        yield
    finally:
        os.close(handle)


def _write_metrics(path: Path, folder: Path) -> None:
    """Write the last night of a folder, and how often in a row none was promoted, as metrics for Prometheus."""
    history = read_nights(folder)
    last, idle = history[-1], 0
    for each in reversed(history):
        if each.result in ("promoted", "trained"):
            break
        idle += each.result != "begun"
    where = f"folder={json.dumps(str(folder.resolve()))}"
    values: dict[str, float] = {
        f'night_result{{{where},result="{word}"}}': int(last.result == word) for word in EXITS
    }
    values |= {
        f"night_time_seconds{{{where}}}": int(last.due(0).timestamp()),
        f"night_duration_seconds{{{where}}}": last.seconds,
        f"nights_without_promotion{{{where}}}": idle,
    }
    with writing(path):
        make_folder(path.parent)
        with replacing(path) as part:
            part.write("".join(f"verfedgnn_{name} {value}\n" for name, value in values.items()).encode())
            os.fchmod(part.fileno(), 0o644)  # node_exporter is another user
