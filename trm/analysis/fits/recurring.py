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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit, logit

from trm.analysis.fits.bootstrap import student_factor
from trm.analysis.fits.compare import MIN_DELTA, Fitted, aicc, delta_for, fit_values
from trm.analysis.fits.data import Data
from trm.analysis.fits.forms import SCALE, Array, Bounds, Form
from trm.analysis.fits.solve import solve
from trm.analysis.specs import VARIABLES, FitSpec, PredictedRun
from trm.analysis.tables import Table
from trm.analysis.words import compact, count

COLUMNS = VARIABLES["recurring_data"]
"""The variables C, N and U."""
LEVEL = 0.9
"""Level of the intervals: these grids are small."""
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


RECURRING: dict[str, Form] = {
    f"{shape} {data}".strip(): _form(shape, data) for shape in SHAPES for data in DATA
}
"""Name -> form, its value in logits."""


def runs_of(rows: pd.DataFrame) -> Data:
    """The rows as observations; of an error of 0 or 1 half a test puzzle is taken away."""
    x = rows[list(COLUMNS)].to_numpy(float).T
    tested = rows["puzzles"].to_numpy(float)
    error = np.clip(rows["error"].to_numpy(float), 0.5 / tested, 1 - 0.5 / tested)
    _, group = np.unique(x, axis=1, return_inverse=True)
    return Data(x, error, group.reshape(-1), rows["run"].tolist(), tested)


def recurring(table: Table, spec: FitSpec) -> dict[str, Any]:
    """Forms with their weights; floors, predictions of `spec.places` and of the runs beyond `spec.until`."""
    rows = table.select(spec.where, COLUMNS, plain=True)
    rows = rows[rows["finished"].astype(bool) & rows["error"].notna()]
    within = rows[COLUMNS[0]].to_numpy(float) <= (spec.until or np.inf)
    data = runs_of(rows[within])
    group: dict[str, Any] = {"hue": None, "runs": len(data.y), "points": data.points}
    group |= {"exclusions": [], "notes": []}
    least = min(data.points - 2, len(data.y) - 3)
    usable = {name: form for name, form in RECURRING.items() if len(form.parameters) <= least}
    if not usable:
        points = count(data.points, "point")
        return {**group, "error": f"{points}: too few for the forms of compute, size and data"}
    fits, noise = _fit(data, usable, spec)
    if not fits:
        return {**group, "error": "no form converges"}
    wanted: list[tuple[PredictedRun, int | None]] = [(run, None) for run in spec.places]
    wanted += [(_observed(part), len(part)) for _, part in rows[~within].groupby(list(COLUMNS))]
    tested = int(data.tested.min())
    return group | {
        "chosen": "average",
        "why": "all forms, by their Akaike weights",
        "doubts": [],
        "interval": LEVEL,
        "range": [[float(row.min()), float(row.max())] for row in data.x],
        "forms": {name: fit.numbers for name, fit in fits.items()},
        "floors": [{"puzzles": float(u), **_floor(fits, float(u))} for u in np.unique(data.x[2])],
        "places": [_place(fits, run, (seeds, tested), noise, spec.seed) for run, seeds in wanted],
    }


@dataclass(frozen=True)
class _Fit:
    form: Form
    phi: Array
    """In the data's own units [1, k]."""
    refits: Array
    """[B, k]."""
    aicc: float
    weight: float

    @property
    def numbers(self) -> dict[str, Any]:
        values = dict(zip(self.form.parameters, self.phi[0].tolist()))
        return {"parameters": values, "aicc": self.aicc, "weight": self.weight, "enough_points": True}


def _fit(data: Data, forms: Mapping[str, Form], spec: FitSpec) -> tuple[dict[str, _Fit], float]:
    """Every form that converges, with its refits and its Akaike weight; and the noise of a run (standard deviation)."""
    logits, limit = logit(data.y), float(np.log(2 * data.tested.min() - 1))
    seen = {name: replace(form, value=_Seen(form.value, limit)) for name, form in forms.items()}
    binomial = 1 / (data.tested * data.y * (1 - data.y))
    noise, found = START, {}
    for _ in range(3):  # the noise weighs the runs, and their misfit is the noise
        weight = noise**2 / (noise**2 + binomial)
        found = {n: fit_values(form, data, logits, delta_for(noise), weight) for n, form in seen.items()}
        found = {name: item for name, item in found.items() if item.solution.converged[0]}
        if not found:
            return {}, noise
        lowest = min(found.values(), key=_criterion)
        free = len(logits) - len(lowest.form.parameters)
        misfit = logits - lowest.form.log_value(lowest.solution.phi, lowest.u)[0]
        noise = max(MIN_DELTA, float(np.sqrt((weight * misfit**2).sum() / free)))
    rng = np.random.default_rng(spec.seed)
    wide = student_factor(free, 0, LEVEL) * np.sqrt(noise**2 + binomial)
    draws = wide * rng.normal(size=(spec.bootstrap, len(logits)))
    refits = {}
    for name, item in found.items():
        own = item.form.log_value(item.solution.phi, item.u)[0]
        samples = np.clip(own + draws, -limit, limit)
        starts = np.concatenate([item.solution.phi, item.starts])
        weights = np.broadcast_to(weight, samples.shape)
        again = solve(item.form, item.u, samples, delta_for(noise), starts, refine=2, weights=weights)
        if again.converged.any():
            refits[name] = item.form.public(again.phi[again.converged], item.scale)
    criteria = {name: _criterion(found[name]) for name in refits}
    shares = {name: float(np.exp((min(criteria.values()) - value) / 2)) for name, value in criteria.items()}
    fits = {}
    for name, share in shares.items():
        own = found[name].form.public(found[name].solution.phi, found[name].scale)
        fits[name] = _Fit(forms[name], own, refits[name], criteria[name], share / sum(shares.values()))
    return fits, noise


def _criterion(item: Fitted) -> float:
    return aicc(item) or 0.0  # there are enough runs


def _observed(rows: pd.DataFrame) -> PredictedRun:
    first = rows.iloc[0]
    return PredictedRun(
        label=f"held out, {compact(first[COLUMNS[2]])} puzzles, {compact(first[COLUMNS[1]])} parameters",
        puzzles=int(first[COLUMNS[2]]),
        parameters=int(first[COLUMNS[1]]),
        flops=float(first[COLUMNS[0]]),
        error=float(rows["error"].mean()),
    )


def _mixed(draws: Mapping[str, Array], fits: Mapping[str, _Fit]) -> list[float]:
    """The interval of the draws [B] of several forms, weighted."""
    values = np.concatenate(list(draws.values()))
    weights = np.concatenate(
        [np.full(len(part), fits[name].weight / len(part)) for name, part in draws.items()]
    )
    ends = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    return [float(end) for end in np.quantile(values, ends, weights=weights, method="inverted_cdf")]


def _place(
    fits: Mapping[str, _Fit], run: PredictedRun, measured: tuple[int | None, int], noise: float, seed: int
) -> dict[str, Any]:
    """The prediction for a measurement with this many seeds (None: one) and test puzzles."""
    runs, tested = measured[0] or 1, measured[1] * (measured[0] or 1)
    x = np.array([[run.flops], [run.parameters], [run.puzzles]], float)
    rng = np.random.default_rng(seed)
    draws = {}
    for name, fit in fits.items():
        at = fit.form.log_value(fit.refits, x)[:, 0]
        error = expit(at + rng.normal(0, noise / runs**0.5, len(at)))
        draws[name] = rng.binomial(tested, error) / tested
    own = {name: float(fit.form.log_value(fit.phi, x)[0, 0]) for name, fit in fits.items()}
    return run.model_dump() | {
        "predicted": float(expit(sum(fits[name].weight * value for name, value in own.items()))),
        "interval": _mixed(draws, fits),
        "seeds": measured[0],
        "forms": {name: float(expit(value)) for name, value in own.items()},
    }


def _floor(fits: Mapping[str, _Fit], puzzles: float) -> dict[str, Any]:
    """The error that no compute removes, at U puzzles."""

    def floor(name: str, phi: Array) -> Array:
        known = name.endswith(" floor")
        return expit(phi[:, 3] - phi[:, 4] * np.log(puzzles)) if known else np.zeros(len(phi))

    value = sum(fit.weight * float(floor(name, fit.phi)[0]) for name, fit in fits.items())
    return {"value": value, "interval": _mixed({n: floor(n, fit.refits) for n, fit in fits.items()}, fits)}


def averaged(forms: Mapping[str, Any], x: Array) -> Array:
    """The error at x [3, N] by all forms together, `forms` of fit.json."""
    total = np.zeros(x.shape[1])
    for name, item in forms.items():
        phi = np.array([[item["parameters"][key] for key in RECURRING[name].parameters]])
        total += item["weight"] * RECURRING[name].log_value(phi, x)[0]
    return np.asarray(expit(total))
