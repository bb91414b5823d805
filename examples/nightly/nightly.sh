#!/bin/sh
# Train tonight's run, and let it replace the served one unless it is worse.
#
#     nightly.sh SETTINGS        SETTINGS: a file such as nightly.env
#
# exit codes: 0 promoted; 5 kept, tonight's run is worse; 4 stopped, start it again to resume; 75 the last job is still running;
# anything else failed. The served run stays in all cases but the first.
set -eu
settings=${1:?usage: nightly.sh SETTINGS}
# shellcheck source=nightly.env
. "$settings"
umask 077
mkdir -p "$RUNS"
cd "$RUNS"

# One job at a time. The lock ends with the process, also after a kill or a power cut.
exec 9>.nightly.lock
flock -n 9 || { echo "the last job is still running" >&2; exit 75; }

# A run that was begun and not finished comes first; otherwise tonight's.
tonight=$(date -u +%Y-%m-%d)
for run in [0-9]*; do
    if [ -f "$run/config.toml" ] && [ ! -f "$run/metrics.json" ]; then tonight=$run; fi
done

# $TRAIN and $PROMOTE are options, so they are split into words on purpose. Every night is a full training. --after leaves out users
# who were forgotten in the served run, and warns of a wrong file.
train() {
    if [ -e current ]; then set -- --after current "$@"; fi
    # shellcheck disable=SC2086
    "$VERFEDGNN" train $TRAIN --out "$tonight" "$@" --json > /dev/null
}

if [ -f "$tonight/metrics.json" ]; then
    echo "$tonight is trained" >&2
elif [ -f "$tonight/config.toml" ]; then
    code=0
    "$VERFEDGNN" train --resume "$tonight" --json > /dev/null || code=$?
    if [ "$code" -eq 4 ]; then exit 4; fi
    # It was killed too early to be resumed, or its folder is damaged.
    if [ "$code" -ne 0 ]; then train --overwrite; fi
else
    if [ -d "$tonight" ]; then rm -r -- "$tonight"; fi
    train
fi

if [ ! -e current ]; then
    ln -s "$tonight" current
    echo "first run: $tonight" >&2
elif [ "$(readlink current)" != "$tonight" ]; then
    # shellcheck disable=SC2086
    "$VERFEDGNN" promote "$tonight" --over current --link current $PROMOTE --json > "$tonight.json"
fi
