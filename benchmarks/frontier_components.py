"""Measure models that could be mixed with the federated GNN: autoencoders over an item's raters.

    VERFEDGNN_DATA=... .venv/bin/python benchmarks/frontier_components.py gnn ml-1m 0 --out FOLDER [--late] [--set exchange.mode=off]
    VERFEDGNN_DATA=... .venv/bin/python benchmarks/frontier_components.py raters ml-1m 0 --out FOLDER --device cuda --try hidden=100 --try hidden=500
    VERFEDGNN_DATA=... .venv/bin/python benchmarks/frontier_components.py stack ml-1m 0 --out FOLDER

`gnn` trains the package's model and keeps its predictions in FOLDER. `raters` trains autoencoders in plain torch, with dense
matrices on one device. Each party's gradient is protected as in preset best, and the sum of all is the federated step.
`stack` mixes what is in FOLDER as the gate does. Everything is chosen on the validation part. Each line of output is one
record in JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import verfedgnn as vf
from verfedgnn.core.pairs import Pairs
from verfedgnn.data import PartyData, read_parties
from verfedgnn.runs.prepared_data import Prepared, prepare
from verfedgnn.training.rating_stack import _shares, _solve
from verfedgnn.training.simple_models import fit_party_means, means_model

LATE = (0.85, 0.05, 0.1)
"""Training, validation and test part of the split that is compared with published results for 90/10."""


@dataclass(frozen=True)
class Settings:
    r"""Settings of one autoencoder over an item's raters.

    .. math::
        h_v = g(c + e_v + s_v \sum_{u \in N(v)} f(r_{uv}) z_u), \qquad \hat r_{uv} = \mu_p + b_u + b_v + w_u \cdot h_v
    """

    hidden: int = 100
    rounds: int = 600
    activation: str = "tanh"
    inputs: str = "item"
    """f(r): the rating less the party's mean (centred), less the item's mean (item), less the user's (residual), or r - 3 (raw)."""
    second: bool = False
    """Whether a second weight of the user reads that there is a rating."""
    power: float = 0.5
    """s_v is the number of raters to the power of minus this."""
    keep: float = 1.0
    """Share of the ratings that are read in a round. The sum is divided by it."""
    masked: bool = False
    """Whether only the ratings that are not read are predicted."""
    own: bool = False
    """Whether items have a private embedding e_v."""
    tied: bool = False
    """Whether z = w."""
    lr: float = 0.1
    lr_read: float = 1.0
    """Factor on lr for z."""
    l2_row: float = 4.0
    l2_read: float = 4.0
    l2_rated: float = 4.0
    """Of the weights that read that there is a rating."""
    l2_rating: float = 0.06
    l2_bias: float = 3.0
    protect: bool = True
    rescale: float = 0.25
    rescale_read: float = 0.25
    average: float = 0.98
    init: float = 0.1
    optimizer: str = "adagrad"
    factors: int = 0
    """Dimensions of factors e_u, e_v and messages y_v that are trained together with the autoencoder, as in preset best with GCN."""
    messages: bool = True
    """Whether e_u has the sum of the messages added to it (exact sums in every round)."""

    @property
    def name(self) -> str:
        """The settings that differ from the defaults, as text."""
        own = [
            f"{f.name}={getattr(self, f.name)}" for f in fields(self) if getattr(self, f.name) != f.default
        ]
        return ",".join(own) or "default"

    @classmethod
    def parse(cls, text: str) -> Settings:
        """Read NAME=VALUE,..."""
        kinds = {f.name: type(f.default) for f in fields(cls)}
        given = dict(word.split("=") for word in text.split(",") if word and word != "default")
        return replace(
            cls(), **{n: (v == "True") if kinds[n] is bool else kinds[n](v) for n, v in given.items()}
        )


def read(data: str, seed: int) -> list[PartyData]:
    """Return ten parties of one data set, or the parties that a data set has."""
    if data == "amazon":
        folder = "amazon-books-movies-dense"
        return read_parties([folder], seed=seed, users="any")
    return read_parties([data], parties=10, seed=seed)


def load(data: str, seed: int, late: bool, device: str) -> list[Prepared]:
    """Return the parties' data, split as `train` does."""
    config = vf.Config.preset("best", seed=seed, **({"fractions": LATE} if late else {}))
    return prepare(read(data, seed), config, torch.device(device))


def parts(prepared: Sequence[Prepared], name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return users, rows of all parties' items, and ratings of one part."""
    first = 0
    columns = []
    for party in prepared:
        pairs: Pairs = getattr(party, name)
        columns.append((pairs.user.long(), pairs.item.long() + first, pairs.rating.float()))
        first += party.party.ratings.n_items
    return tuple(torch.cat(column) for column in zip(*columns, strict=True))  # type: ignore[return-value]


def gate_sizes(prepared: Sequence[Prepared], name: str) -> list[int]:
    """Return the number of ratings of each party in one part."""
    return [len(getattr(party, name)) for party in prepared]


def means_of(prepared: Sequence[Prepared]) -> dict[str, Tensor]:
    """Return the predictions of every party's own means, and the offsets that they consist of."""
    device = prepared[0].train.user.device
    out: dict[str, list[Tensor]] = {"valid": [], "test": [], "item": [], "user": [], "mean": []}
    for party in prepared:
        means = fit_party_means(party.input)
        model = means_model(means, means.user_offset, device)
        out["valid"].append(model.predict(party.valid))
        out["test"].append(model.predict(party.test))
        out["item"].append(torch.from_numpy(means.mean + means.item_offset).to(device))
        out["user"].append(torch.from_numpy(means.user_offset).to(device))
        out["mean"].append(torch.full((party.party.ratings.n_items,), means.mean, device=device))
    joined = {name: torch.cat(values) for name, values in out.items() if name != "user"}
    return joined | {"user": torch.stack(out["user"])}


class Raters:
    """The autoencoders of all parties, as one dense model whose gradients are kept apart by party."""

    def __init__(
        self, prepared: Sequence[Prepared], means: dict[str, Tensor], settings: Settings, seed: int
    ) -> None:
        self.settings = settings
        device = prepared[0].train.user.device
        self.device = device
        user, item, rating = parts(prepared, "train")
        self.users = prepared[0].party.ratings.n_users
        self.sizes = [party.party.ratings.n_items for party in prepared]
        self.slices = [
            slice(end - size, end) for size, end in zip(self.sizes, np.cumsum(self.sizes), strict=True)
        ]
        low, high = prepared[0].party.ratings.scale
        self.unit = (high - low) / 4
        party = torch.repeat_interleave(torch.arange(len(prepared)), torch.tensor(self.sizes)).to(device)
        self.mean = means["mean"].float()
        value = {
            "raw": rating - (low + high) / 2,
            "centred": rating - self.mean[item],
            "item": rating - means["item"][item].float(),
            "residual": rating - (means["item"][item] + means["user"][party[item], user]).float(),
        }[settings.inputs] / self.unit
        shape = (self.users, len(self.mean))
        self.rated = torch.zeros(shape, device=device)
        self.rated[user, item] = 1.0
        self.read = torch.zeros(shape, device=device)
        self.read[user, item] = value
        self.wanted = torch.zeros(shape, device=device)
        self.wanted[user, item] = (rating - self.mean[item]) / self.unit
        count = self.rated.sum(0)
        self.divide = count.clamp(min=1) ** -settings.power
        self.per_party = torch.stack([self.rated[:, part].sum(1) for part in self.slices])
        ratings = len(rating)
        each = math.sqrt(ratings / len(prepared) / self.users)
        self.factor = {"w": settings.rescale / each, "z": settings.rescale_read / each}
        self.factor |= {"y": self.factor["z"], "b": self.factor["w"]}
        self.factor["c"] = 0.12 / math.sqrt(ratings / len(prepared))
        draw = torch.Generator(device="cpu").manual_seed(seed)
        hidden = settings.hidden

        def table(rows: int) -> Tensor:
            return (settings.init * torch.randn((rows, hidden), generator=draw)).to(device)

        self.public = {"w": table(self.users), "b": torch.zeros(self.users, device=device)}
        self.public["c"] = torch.zeros(hidden, device=device)
        if not settings.tied:
            self.public["z"] = table(self.users)
        if settings.second:
            self.public["y"] = torch.zeros((self.users, hidden), device=device)
        self.private = {"v": torch.zeros(len(self.mean), device=device)}
        if settings.own:
            self.private["e"] = torch.zeros((len(self.mean), hidden), device=device)
        if settings.factors:
            shape = (self.users, settings.factors)
            self.public["p"] = 0.1 * torch.randn(shape, generator=draw).to(device)
            shape = (len(self.mean), settings.factors)
            self.private["q"] = 0.1 * torch.randn(shape, generator=draw).to(device)
            if settings.messages:
                self.private["m"] = torch.zeros(shape, device=device)
            self.factor["p"] = 0.25 / each
            self.count = count.unsqueeze(1)
            self.root = self.rated.sum(1, keepdim=True).clamp(min=1).rsqrt()
        self.values = self.public | self.private
        self.sums = {name: torch.zeros_like(value) for name, value in self.values.items()}
        self.first = {name: torch.zeros_like(value) for name, value in self.values.items()}
        self.averages = {name: value.clone() for name, value in self.values.items()}

    def items(self, values: dict[str, Tensor], read: Tensor, rated: Tensor) -> tuple[Tensor, Tensor]:
        """Return h_v (M, H) and the slope of the activation there."""
        scale = self.divide.unsqueeze(1)
        total = scale * (read.T @ values.get("z", values["w"])) + values["c"]
        if "y" in values:
            total = total + scale * (rated.T @ values["y"])
        if "e" in values:
            total = total + values["e"]
        kind = self.settings.activation
        if kind == "tanh":
            h = torch.tanh(total)
            return h, 1 - h * h
        if kind == "sigmoid":
            h = torch.sigmoid(total)
            return h, h * (1 - h)
        if kind == "relu":
            return total.relu(), (total > 0).float()
        if kind == "softsign":
            return total / (1 + total.abs()), (1 + total.abs()) ** -2
        return total, torch.ones_like(total)

    def user_factors(self, values: dict[str, Tensor]) -> Tensor:
        """Return e_u, with the sum of the messages of the user's items."""
        return values["p"] + self.root * (self.rated @ values["m"]) if "m" in values else values["p"]

    def round(self, number: int) -> None:
        """Compute every party's gradient, protect it, add up, and step."""
        s = self.settings
        now = self.values
        read, rated, asked = self.read, self.rated, self.rated
        if s.keep < 1:
            kept = (torch.rand_like(rated) < s.keep).float()
            read = read * kept / s.keep
            rated = rated * kept / s.keep
            if s.masked:
                asked = asked * (1 - kept) / (1 - s.keep)
        h, slope = self.items(now, read, rated)
        error = now["w"] @ h.T
        if s.factors:
            users = self.user_factors(now)
            error += users @ now["q"].T
        error += now["b"].unsqueeze(1)
        error += now["v"]
        error -= self.wanted
        error *= 2 * asked
        change = (error.T @ now["w"]) * slope
        scaled = change * self.divide.unsqueeze(1)
        gradient = {name: torch.zeros_like(value) for name, value in self.public.items()}
        for index, part in enumerate(self.slices):
            own = {
                "w": error[:, part] @ h[part]
                + 2 * s.l2_rating * self.per_party[index].unsqueeze(1) * now["w"],
                "b": error[:, part].sum(1),
                "c": change[part].sum(0),
            }
            reading = read[:, part] @ scaled[part]
            if s.tied:
                own["w"] += reading
            else:
                own["z"] = reading
            if s.second:
                own["y"] = rated[:, part] @ scaled[part]
            if s.factors:
                own["p"] = (
                    error[:, part] @ now["q"][part] + 0.12 * self.per_party[index].unsqueeze(1) * now["p"]
                )
            for name, value in own.items():
                gradient[name] += self.protect(name, value)
        if s.factors:
            if "m" in now:
                pulled = self.rated.T @ (self.root * gradient["p"])
                gradient["m"] = pulled + (1.0 * self.count + 8.0) * now["m"]
            gradient["p"] += 8.0 * now["p"]
            gradient["q"] = error.T @ users + (0.12 * self.count + 8.0) * now["q"]
        gradient["w"] += 2 * s.l2_row * now["w"]
        gradient["b"] += 2 * s.l2_bias * now["b"]
        for name, strength in (("z", s.l2_read), ("y", s.l2_rated)):
            if name in gradient:
                gradient[name] += 2 * strength * now[name]
        gradient["v"] = error.sum(0) + 20.0 * now["v"]
        if s.own:
            gradient["e"] = change + 2 * s.l2_row * now["e"]
        share = 1 - min(s.average, number / (number + 10))
        for name, value in now.items():
            rate = s.lr * (s.lr_read if name in ("z", "y") else 0.3 if name in ("c", "v", "e") else 1.0)
            rate = {"p": 0.1, "q": 0.05, "m": 0.03}.get(name, rate)
            g = gradient[name]
            if s.optimizer == "adam":
                self.first[name].lerp_(g, 0.1)
                self.sums[name].lerp_(g * g, 0.01)
                top = self.first[name] / (1 - 0.9**number)
                value -= rate * top / ((self.sums[name] / (1 - 0.99**number)).sqrt() + 1e-8)
            else:
                self.sums[name] += g * g
                value -= rate * g / (self.sums[name].sqrt() + 1e-10)
            self.averages[name] += share * (value - self.averages[name])

    def protect(self, name: str, gradient: Tensor) -> Tensor:
        """Rescale, clip at 0.5, and draw ternary signs with r = 3."""
        if not self.settings.protect:
            return gradient
        factor = self.factor[name]
        scaled = (gradient * factor).clamp_(-0.5, 0.5)
        drawn = torch.rand_like(scaled) < scaled.abs() / 3.0
        return scaled.sign() * drawn * (3.0 / factor)

    def predict(self, user: Tensor, item: Tensor) -> Tensor:
        """Predict ratings from the averages."""
        now = self.averages
        h, _ = self.items(now, self.read, self.rated)
        out = torch.cat(
            [
                (now["w"][u] * h[v]).sum(1)
                for u, v in zip(user.split(100_000), item.split(100_000), strict=True)
            ]
        )
        if self.settings.factors:
            users = self.user_factors(now)
            out = out + (users[user] * now["q"][item]).sum(1)
        return self.mean[item] + self.unit * (out + now["b"][user] + now["v"][item])


def rmse(predicted: Tensor, rating: Tensor, scale: tuple[float, float]) -> float:
    """Return the root mean squared error of predictions that are clipped to the scale."""
    return float((predicted.double().clamp(*scale) - rating.double()).square().mean().sqrt())


def train_raters(
    prepared: Sequence[Prepared],
    means: dict[str, Tensor],
    settings: Settings,
    seed: int,
    every: int = 20,
    patience: int = 10,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Train one autoencoder; return its record and its predictions at the best validation."""
    torch.manual_seed(seed)
    started = time.perf_counter()
    model = Raters(prepared, means, settings, seed)
    scale = prepared[0].party.ratings.scale
    pairs = {name: parts(prepared, name) for name in ("valid", "test")}
    best = math.inf
    kept: dict[str, Tensor] = {}
    round_kept = 0
    curve = []
    for number in range(1, settings.rounds + 1):
        model.round(number)
        if number % every == 0:
            user, item, rating = pairs["valid"]
            found = rmse(model.predict(user, item), rating, scale)
            curve.append(round(found, 4))
            if found < best:
                best = found
                round_kept = number
                kept = {name: model.predict(u, v).cpu() for name, (u, v, _) in pairs.items()}
            if number - round_kept >= every * patience or not math.isfinite(found):
                break
    record = {
        "settings": settings.name,
        "seed": seed,
        "valid": round(best, 5),
        "test": round(rmse(kept["test"], pairs["test"][2].cpu(), scale), 5),
        "round": round_kept,
        "rounds": number,
        "curve": curve[:: max(1, len(curve) // 12)],
        "seconds": round(time.perf_counter() - started, 1),
    }
    return record, kept


COORDINATES: dict[str, tuple[Any, ...]] = {
    "l2_row": (1 / 3, 3.0),
    "l2_read": (1 / 3, 3.0),
    "l2_rated": (1 / 3, 3.0),
    "l2_rating": (1 / 3, 3.0),
    "lr": (0.5, 2.0),
    "keep": ("0.5", "0.7", "0.85"),
    "inputs": ("item", "raw", "centred"),
    "power": ("0.25", "0.5", "0.75"),
    "rescale": (0.5, 2.0),
    "rescale_read": (0.5, 2.0),
    "lr_read": (1 / 3, 3.0),
    "activation": ("tanh", "sigmoid", "relu", "identity"),
    "average": ("0.98", "0.99"),
    "l2_bias": (1 / 3, 3.0),
    "init": (1 / 3, 3.0),
    "second": ("True", "False"),
    "own": ("False", "True"),
    "protect": ("True", "False"),
}
"""What `search` changes, one at a time: factors of the present value, or values."""


def search(
    prepared: Sequence[Prepared], settings: Settings, seed: int, folder: Path, prefix: str, until: float
) -> None:
    """Change one setting at a time and keep what lowers the validation error, until the time is over.

    Protection is only tried, not chosen.
    """
    means = means_of(prepared)
    tried = {settings}
    record, _ = train_raters(prepared, means, settings, seed)
    print(json.dumps({"search": "start"} | record), flush=True)
    best = record["valid"]
    (folder / f"best-{prefix}{settings.hidden}.txt").write_text(settings.name)
    while True:
        before = settings
        for name, values in COORDINATES.items():
            for value in values:
                text = f"{getattr(settings, name) * value:.4g}" if isinstance(value, float) else value
                chosen = Settings.parse(f"{settings.name},{name}={text}")
                if chosen in tried:
                    continue
                if time.time() > until:
                    return
                tried.add(chosen)
                record, kept = train_raters(prepared, means, chosen, seed)
                save(folder, f"{prefix}raters-{record['settings']}", kept)
                better = record["valid"] < best - 0.0001 and name != "protect"
                print(json.dumps({"search": name, "better": better} | record), flush=True)
                if better:
                    best = record["valid"]
                    settings = chosen
                    (folder / f"best-{prefix}{settings.hidden}.txt").write_text(settings.name)
        if settings == before:
            return


def train_gnn(
    data: str, seed: int, late: bool, device: str, gnn: str, settings: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Train the package's model without its gate; return its record and its predictions."""
    started = time.perf_counter()
    chosen = dict(text.split("=") for text in settings)
    late_parts = {"fractions": list(LATE)} if late else {}
    config = vf.Config.preset("best", model=gnn).with_values(
        {"seed": seed, "gate": False, "model.raters": 0, "epochs": 800, **late_parts, **chosen}
    )
    parties = read(data, seed)
    run = vf.train(parties, config, device=device)
    prepared = prepare(parties, run.config, torch.device(device))
    kept = {
        name: torch.cat(
            [m.predict(getattr(p, name)).cpu() for m, p in zip(run.models, prepared, strict=True)]
        )
        for name in ("valid", "test")
    }
    scale = prepared[0].party.ratings.scale
    record = {
        "settings": f"{gnn} {' '.join(settings)}".strip(),
        "seed": seed,
        **{name: round(rmse(kept[name], parts(prepared, name)[2].cpu(), scale), 5) for name in kept},
        "round": run.metrics.get("best_round"),
        "seconds": round(time.perf_counter() - started, 1),
    }
    return record, kept


def mix(
    prepared: Sequence[Prepared], components: Sequence[dict[str, Tensor]]
) -> tuple[dict[str, float], list[float], dict[str, Tensor]]:
    """Mix predictions as the gate does, the first being the means; return errors, mean weights, and predictions."""
    scale = prepared[0].party.ratings.scale
    starts = {name: np.cumsum([0, *gate_sizes(prepared, name)]) for name in ("valid", "test")}
    rating = parts(prepared, "valid")[2].cpu().double().numpy()
    mixed: dict[str, list[np.ndarray]] = {"valid": [], "test": []}
    weights = []
    columns = {
        name: np.stack([each[name].cpu().double().numpy() for each in components], 1) for name in mixed
    }
    for index in range(len(prepared)):
        rows = {name: slice(starts[name][index], starts[name][index + 1]) for name in mixed}
        equal = np.full(len(components) - 1, 1 / len(components))
        found = _shares(_solve(columns["valid"][rows["valid"]], rating[rows["valid"]], equal))
        weights.append(found)
        for name in mixed:
            mixed[name].append(columns[name][rows[name]] @ np.array(found))
    kept = {name: torch.from_numpy(np.concatenate(values)) for name, values in mixed.items()}
    errors = {name: round(rmse(kept[name], parts(prepared, name)[2].cpu(), scale), 5) for name in kept}
    return errors, [round(float(w), 2) for w in np.mean(weights, 0)], kept


def stack(prepared: Sequence[Prepared], folder: Path, prefix: str) -> list[dict[str, Any]]:
    """Mix the means, each GNN, and each autoencoder; then add the best ones one after the other."""
    means = {name: value.cpu() for name, value in means_of(prepared).items() if name in ("valid", "test")}
    files = {path.stem: path for path in sorted(folder.glob(f"{prefix}*.npz"))}
    found = {}
    for name, path in files.items():
        with np.load(path) as arrays:
            found[name] = {
                part: torch.from_numpy(arrays[part].astype(np.float32)) for part in ("valid", "test")
            }
    gnns = [name for name in found if "-gnn-" in name]
    others = [name for name in found if "-gnn-" not in name]
    records = []
    for gnn in [None, *gnns]:
        base = [means] if gnn is None else [means, found[gnn]]
        errors, weights, _ = mix(prepared, base)
        records.append({"stack": [gnn], **errors, "weights": weights})
        singles = []
        for name in others:
            errors, weights, _ = mix(prepared, [*base, found[name]])
            singles.append({"stack": [gnn, name], **errors, "weights": weights})
        records += sorted(singles, key=lambda each: each["valid"])
        chosen: list[str] = []
        last = math.inf
        while len(chosen) < min(5, len(others)):
            tried = [
                (mix(prepared, [*base, *(found[n] for n in [*chosen, name])])[:2], name)
                for name in others
                if name not in chosen
            ]
            (errors, weights), name = min(tried, key=lambda each: each[0][0]["valid"])
            if errors["valid"] > last - 0.0001:
                break
            last = errors["valid"]
            chosen.append(name)
            if len(chosen) > 1:
                records.append({"greedy": [gnn, *chosen], **errors, "weights": weights})
    if len(gnns) > 1:
        errors, weights, _ = mix(prepared, [means, *(found[name] for name in gnns)])
        records.append({"stack": gnns, **errors, "weights": weights})
    return records


def save(folder: Path, name: str, kept: dict[str, Tensor]) -> None:
    """Keep predictions in half precision, whose rounding is far below the error."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(
        folder / f"{name}.npz", **{part: value.numpy().astype(np.float16) for part, value in kept.items()}
    )


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("gnn", "raters", "search", "stack"))
    parser.add_argument("data")
    parser.add_argument("seed", type=int)
    parser.add_argument("--out", type=Path, required=True, help="folder of predictions")
    parser.add_argument("--late", action="store_true", help="split 85/5/10 instead of 60/20/20")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="ggnn")
    parser.add_argument("--set", action="append", default=[], help="a setting of the package's model")
    parser.add_argument(
        "--try", action="append", default=[], dest="tried", help="NAME=VALUE,... of an autoencoder"
    )
    parser.add_argument("--until", type=float, default=math.inf, help="begin no training after this time")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    prefix = f"{options.data}-{'late' if options.late else 'usual'}-{options.seed}-"
    about = {"data": options.data, "late": options.late}
    if options.what == "gnn":
        words = [options.data, options.seed, options.late, options.device, options.model, options.set]
        record, kept = train_gnn(*words)
        save(options.out, f"{prefix}gnn-{record['settings'].replace(' ', '-')}", kept)
        print(json.dumps(about | record), flush=True)
        return
    prepared = load(options.data, options.seed, options.late, options.device)
    if options.what == "stack":
        for record in stack(prepared, options.out, prefix):
            print(json.dumps(about | {"seed": options.seed} | record), flush=True)
        return
    if options.what == "search":
        start = Settings.parse(options.tried[0])
        options.out.mkdir(parents=True, exist_ok=True)
        search(prepared, start, options.seed, options.out, prefix, options.until)
        return
    means = means_of(prepared)
    for text in options.tried:
        if time.time() > options.until:
            break
        record, kept = train_raters(prepared, means, Settings.parse(text), options.seed)
        save(options.out, f"{prefix}raters-{record['settings']}", kept)
        print(json.dumps(about | record), flush=True)


if __name__ == "__main__":
    main()
