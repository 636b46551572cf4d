"""Error in training compute C, parameters N and training puzzles U, where every puzzle recurs: averaged over forms.

    e = E + (1 - E) s(z),  z = k + b log C + a log N,  E / (1 - E) = (U / u)^-g

s falls from 1 to 0 in one of three shapes: logistic, s = 1 / (1 + exp z), and cloglog, s = 1 - exp(-exp(-z)), which
leaves 1 more sharply, end as power laws of C; gompertz, s = exp(-exp z), ends as a stretched exponential. Of each
there are three: with the floor E, with log U in z instead of a floor (`data`), and with neither. No form is chosen:
they are averaged with Akaike weights (Burnham & Anderson 2002), in predictions, floors and intervals alike.

Fitted in logits by the solver of the other laws, with a parametric bootstrap of every form. A run's logit has the
binomial variance 1 / (n e (1 - e)) of its n test puzzles and one noise for all, which is the misfit of the best form:
a grid of this kind has few equal runs. A share below half a test puzzle is not seen, so no form is blamed for where it
lies.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import expit, logit

from trm.analysis.fits.bootstrap import student_factor
from trm.analysis.fits.compare import MIN_DELTA, delta_for
from trm.analysis.fits.forms import SCALE, Array, Bounds, Form, normalise
from trm.analysis.fits.solve import Solution, solve
from trm.analysis.specs import FitSpec, Place
from trm.analysis.tables import Table
from trm.analysis.words import compact, count

COLUMNS = ("train_flops", "parameters", "data.train_puzzles")
"""The variables C, N and U."""
SHAPES = ("logistic", "cloglog", "gompertz")
DATA = ("", "floor", "data")
SLOPE: Bounds = (-8.0, 8.0)
DECAY: Bounds = (0.0, 8.0)
START = 0.3
"""Noise of a logit before the first fit."""
LIMIT = 30.0
"""Largest |z|: beyond it the error is 0 or 1 in double precision."""


def _shape(kind: str, z: Array) -> tuple[Array, Array, Array, Array]:
    """log s, log(1 - s) and their derivatives by z."""
    if kind == "logistic":
        return -np.logaddexp(0, z), -np.logaddexp(0, -z), -expit(z), expit(-z)
    sign = 1.0 if kind == "gompertz" else -1.0
    rate = np.exp(sign * z)
    rest = np.log(-np.expm1(-rate))  # log(1 - exp(-rate))
    slope = sign * rate
    other = slope * np.exp(-rate - rest)
    return (-rate, rest, -slope, other) if kind == "gompertz" else (rest, -rate, other, -slope)


@dataclass(frozen=True)
class _Value:
    """logit e of one form, as `Form.value`: phi = k, b, a and then log of the floor's odds with its decay, or log U's
    slope."""

    shape: str
    data: str

    def __call__(self, phi: Array, u: Array) -> tuple[Array, Array]:
        log_u = np.log(np.broadcast_to(u, (len(phi), *u.shape[-2:])))
        parts = [np.ones_like(log_u[:, 0]), log_u[:, 0], log_u[:, 1]]
        if self.data == "data":
            parts.append(log_u[:, 2])
        slopes = np.stack(parts, axis=-1)
        raw = np.einsum("mnk,mk->mn", slopes, phi[:, : len(parts)])
        z = np.clip(raw, -LIMIT, LIMIT if self.shape == "logistic" else 6.0)
        log_s, log_rest, by_s, by_rest = _shape(self.shape, z)
        if self.data != "floor":
            return log_s - log_rest, slopes * (by_s - by_rest)[..., None]
        odds = phi[:, 3:4] - phi[:, 4:5] * log_u[:, 2]
        share = expit(log_s - odds)
        jacobian = [slopes * (share * by_s - by_rest)[..., None], (1 - share)[..., None]]
        jacobian.append((-(1 - share) * log_u[:, 2])[..., None])
        return np.logaddexp(odds, log_s) - log_rest, np.concatenate(jacobian, axis=-1)

    def starts(self, u: Array, y: Array) -> Array:
        """Least squares of z for floors of several heights."""
        log_u = np.log(u)
        columns = [np.ones_like(y), log_u[0], log_u[1], *([log_u[2]] if self.data == "data" else [])]
        floors = [(c, g) for c in (-6.0, -3.0, -1.0) for g in (0.2, 0.7, 1.5)]
        found = []
        for c, g in floors if self.data == "floor" else [(-40.0, 0.0)]:
            floor = expit(c - g * log_u[2])
            s = np.clip((y - floor) / (1 - floor), 0.02, 0.98)
            z = {"logistic": -logit(s), "cloglog": -np.log(-np.log1p(-s)), "gompertz": np.log(-np.log(s))}
            best = np.linalg.lstsq(np.stack(columns, axis=1), z[self.shape], rcond=None)[0]
            found.append([*best, *((c, g) if self.data == "floor" else ())])
        return np.array(found)

    def public(self, phi: Array, g: Array) -> Array:
        """Parameters for variables in the data's own units."""
        logs, own = np.log(g), phi.copy()
        own[:, 0] -= phi[:, 1] * logs[0] + phi[:, 2] * logs[1]
        if self.data == "data":
            own[:, 0] -= phi[:, 3] * logs[2]
        if self.data == "floor":
            own[:, 3] += phi[:, 4] * logs[2]
        return own


@dataclass(frozen=True)
class _Seen:
    """A form's logit as a test set shows it: no share below half a puzzle."""

    value: Callable[[Array, Array], tuple[Array, Array]]
    limit: float

    def __call__(self, phi: Array, u: Array) -> tuple[Array, Array]:
        value, jacobian = self.value(phi, u)
        return np.clip(value, -self.limit, self.limit), jacobian * (np.abs(value) < self.limit)[..., None]


def _form(shape: str, data: str) -> Form:
    value = _Value(shape, data)
    names: dict[str, tuple[str, ...]] = {"": (), "floor": ("f", "g"), "data": ("d",)}
    bounds: dict[str, tuple[Bounds, ...]] = {"": (), "floor": (SCALE, DECAY), "data": (SLOPE,)}
    return Form(
        ("k", "b", "a", *names[data]),
        (SCALE, SLOPE, SLOPE, *bounds[data]),
        value,
        value.starts,
        value.public,
        variables=3,
    )


REGIME: dict[str, Form] = {f"{shape} {data}".strip(): _form(shape, data) for shape in SHAPES for data in DATA}
"""Name -> form, its value in logits."""


@dataclass(frozen=True)
class Runs:
    """Finished runs: variables [3, N], logit of the error, test puzzles behind it, grid point."""

    x: Array
    y: Array
    tested: Array
    group: np.ndarray


def runs_of(rows: pd.DataFrame) -> Runs:
    """The rows' runs; of an error of 0 or 1 half a test puzzle is taken away."""
    x = rows[list(COLUMNS)].to_numpy(float).T
    tested = rows["puzzles"].to_numpy(float)
    error = np.clip(rows["error"].to_numpy(float), 0.5 / tested, 1 - 0.5 / tested)
    _, group = np.unique(x, axis=1, return_inverse=True)
    return Runs(x, logit(error), tested, group.reshape(-1))


def regime(table: Table, spec: FitSpec) -> dict[str, Any]:
    """Forms with their weights; floors, predictions of `spec.places` and of the runs beyond `spec.until`."""
    rows = table.select(spec.where, COLUMNS, plain=True)
    rows = rows[rows["finished"].astype(bool) & rows["error"].notna()]
    cost = rows[COLUMNS[0]].to_numpy(float)
    fitted = cost <= (spec.until or np.inf)
    data = runs_of(rows[fitted])
    group: dict[str, Any] = {"hue": None, "runs": len(data.y), "points": len(np.unique(data.group))}
    group |= {"exclusions": [], "notes": []}
    usable = {name: form for name, form in REGIME.items() if group["points"] > len(form.parameters) + 1}
    if not usable:
        points = count(group["points"], "point")
        return {**group, "error": f"{points}: too few for the forms of compute, size and data"}
    fits, noise = _fit(data, usable, spec)
    if not fits:
        return {**group, "error": "no form converges"}
    puzzles = np.unique(data.x[2])
    floors = [{"puzzles": float(u), **_floor(fits, float(u), spec.level)} for u in puzzles]
    places: list[tuple[Place, int | None]] = [(place, None) for place in spec.places]
    places += [_observed(part) for _, part in rows[~fitted].groupby(list(COLUMNS))]
    return group | {
        "chosen": "average",
        "why": "all forms, by their Akaike weights",
        "interval": spec.level,
        "noise": noise,
        "range": [[float(row.min()), float(row.max())] for row in data.x],
        "forms": {name: fit.numbers for name, fit in fits.items()},
        "floors": floors,
        "places": [
            _place(fits, place, (seeds, int(data.tested.min())), noise, spec) for place, seeds in places
        ],
    }


@dataclass(frozen=True)
class _Fit:
    form: Form
    phi: Array
    """In the data's own units [k]."""
    refits: Array
    """[B, k]."""
    weight: float
    numbers: dict[str, Any]


def _fit(data: Runs, forms: Mapping[str, Form], spec: FitSpec) -> tuple[dict[str, _Fit], float]:
    """Every form that converges, with its refits and its Akaike weight; and the noise of a run (standard deviation)."""
    n, limit = len(data.y), float(np.log(2 * data.tested.min() - 1))
    error = expit(data.y)
    binomial = 1 / (data.tested * error * (1 - error))
    noise, found = START, {}
    for _ in range(3):  # the noise weighs the runs, and their misfit is the noise
        weight = noise**2 / (noise**2 + binomial)
        found = {name: _solved(form, data, weight, noise, limit) for name, form in forms.items()}
        found = {name: item for name, item in found.items() if item.best.converged[0]}
        if not found:
            return {}, noise
        lowest = min(found.values(), key=lambda item: item.aicc)
        free = n - len(lowest.form.parameters)
        noise = max(MIN_DELTA, float(np.sqrt((weight * lowest.residual**2).sum() / free)))
    rng = np.random.default_rng(spec.seed)
    wide = student_factor(free, 0, spec.level) * np.sqrt(noise**2 + binomial)
    draws = wide * rng.normal(size=(spec.bootstrap, n))
    refitted = {}
    for name, item in found.items():
        samples = np.clip(data.y - item.residual + draws, -limit, limit)
        starts = np.concatenate([item.best.phi, item.starts])
        weights = np.broadcast_to(weight, samples.shape)
        again = solve(item.form, item.u, samples, delta_for(noise), starts, refine=2, weights=weights)
        if again.converged.any():
            refitted[name] = forms[name].public(again.phi[again.converged], item.scale)
    total = sum(np.exp(-(found[name].aicc - lowest.aicc) / 2) for name in refitted)
    fits = {}
    for name, refits in refitted.items():
        item = found[name]
        phi = forms[name].public(item.best.phi, item.scale)[0]
        share = float(np.exp(-(item.aicc - lowest.aicc) / 2) / total)
        values = dict(zip(item.form.parameters, phi.tolist()))
        numbers = {"parameters": values, "aicc": item.aicc, "weight": share, "enough_points": True}
        fits[name] = _Fit(forms[name], phi, refits, share, numbers)
    return fits, noise


class _Solved(NamedTuple):
    """One form fitted to the runs."""

    form: Form
    best: Solution
    residual: Array
    aicc: float
    starts: Array
    u: Array
    scale: Array


def _solved(form: Form, data: Runs, weight: Array, noise: float, limit: float) -> _Solved:
    u, scale = normalise(form, data.x)
    form = replace(form, value=_Seen(form.value, limit))
    starts = form.starts(u, expit(data.y))
    best = solve(form, u, data.y[None], delta_for(noise), starts, refine=len(starts), weights=weight[None])
    k, n = len(form.parameters) + 1, len(data.y)
    loss = n * np.log(max(2 * float(best.cost[0]) / n, 1e-12))
    aicc = float(loss + 2 * k + 2 * k * (k + 1) / max(n - k - 1, 1))
    return _Solved(form, best, data.y - form.log_value(best.phi, u)[0], aicc, starts, u, scale)


def _observed(rows: pd.DataFrame) -> tuple[Place, int]:
    first = rows.iloc[0]
    place = Place(
        label=f"held out, {compact(first[COLUMNS[2]])} puzzles, {compact(first[COLUMNS[1]])} parameters",
        puzzles=int(first[COLUMNS[2]]),
        parameters=int(first[COLUMNS[1]]),
        flops=float(first[COLUMNS[0]]),
        error=float(rows["error"].mean()),
    )
    return place, len(rows)


def _mixed(parts: Sequence[Array], weights: Sequence[float], level: float) -> list[float]:
    """Weighted percentiles of the draws [B] of several forms."""
    values = np.concatenate(parts)
    share = np.concatenate([np.full(len(part), w / len(part)) for part, w in zip(parts, weights)])
    order = np.argsort(values)
    passed = np.cumsum(share[order]) / share.sum()
    ends = np.searchsorted(passed, [(1 - level) / 2, (1 + level) / 2])
    return [float(values[order][min(end, len(values) - 1)]) for end in ends]


def _place(
    fits: Mapping[str, _Fit], place: Place, measured: tuple[int | None, int], noise: float, spec: FitSpec
) -> dict[str, Any]:
    """The prediction for a measurement with this many seeds (None: one) and test puzzles."""
    seeds, runs, tested = measured[0], measured[0] or 1, measured[1] * (measured[0] or 1)
    x = np.array([[place.flops], [place.parameters], [place.puzzles]], float)
    rng = np.random.default_rng(spec.seed)
    draws, own = [], {}
    for name, fit in fits.items():
        at = fit.form.log_value(fit.refits, x)[:, 0]
        error = expit(at + rng.normal(0, noise / runs**0.5, len(at)))
        draws.append(rng.binomial(tested, error) / tested)
        own[name] = float(expit(fit.form.log_value(fit.phi[None], x))[0, 0])
    weights = [fit.weight for fit in fits.values()]
    middle = float(expit(np.dot([logit(value) for value in own.values()], weights)))
    interval = _mixed(draws, weights, spec.level)
    numbers = place.model_dump() | {"predicted": middle, "interval": interval}
    return {**numbers, "seeds": seeds, "forms": own}


def _floor(fits: Mapping[str, _Fit], puzzles: float, level: float) -> dict[str, Any]:
    """The error that no compute removes, at U puzzles."""
    draws, values = [], []
    for name, fit in fits.items():
        several = np.vstack([fit.phi, fit.refits])
        known = name.endswith(" floor")
        floor = expit(several[:, 3] - several[:, 4] * np.log(puzzles)) if known else np.zeros(len(several))
        values.append(floor[0])
        draws.append(floor[1:])
    weights = [fit.weight for fit in fits.values()]
    return {"value": float(np.dot(values, weights)), "interval": _mixed(draws, weights, level)}


def averaged(group: Mapping[str, Any], flops: Array, parameters: float, puzzles: float) -> Array:
    """The error at each of `flops` by all forms together, from the content of fit.json."""
    x = np.stack([flops, np.full_like(flops, parameters), np.full_like(flops, puzzles)])
    total = np.zeros_like(flops)
    for name, item in group["forms"].items():
        form = REGIME[name]
        phi = np.array([[item["parameters"][key] for key in form.parameters]])
        total += item["weight"] * form.log_value(phi, x)[0]
    return np.asarray(expit(total))
