"""The laws that can be fitted: value, logarithmic derivatives, and a grid of starts, for many fits at once.

Every form works on normalised variables u = x / g with g the geometric mean of the data, and on internal coordinates
phi (logs of the positive parameters), where the problem is well scaled. Shapes: phi [M, k], u [v, N] or [M, v, N];
values and log values [M, N], Jacobians d log f / d phi [M, N, k].

constant            e = E
power_law           e = A x^-a
power_law_floor     e = E + A x^-a (Hestness et al. 2017, arXiv 1712.00409)
exponential         e = E + A exp(-x/s)
sigmoid             e = E + A / (1 + (x/m)^k), a sigmoid in log x whose midpoint m lies within the data
repeated_data       e = E + A D'^-a, D' = U + U R*(1 - exp(-R/R*)) (Muennighoff et al. 2023, arXiv 2305.16264, eq. 5)
joint               e = E + A N^-a + B C^-b (Hoffmann et al. 2022, arXiv 2203.15556, eq. 2)
critical_batch      S = Smin (1 + B*/B) (McCandlish et al. 2018, arXiv 1812.06162, eq. 2.11)
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_expit

Array = NDArray[np.float64]
TINY = 1e-12
EXPONENT = (0.01, 8.0)
Bounds = tuple[float, float]
SCALE: Bounds = (-60.0, 60.0)
"""Logarithm of a scale, relative to the data: wide enough never to bind on real data."""
POWER: Bounds = (float(np.log(EXPONENT[0])), float(np.log(EXPONENT[1])))
"""Logarithm of an exponent. A fit that ends at any bound but a scale's has found no law."""


@dataclass(frozen=True)
class Form:
    """One law."""

    parameters: tuple[str, ...]
    """Public names, in the order of phi."""
    bounds: tuple[Bounds, ...]
    """Least and largest phi."""
    value: Callable[[Array, Array], tuple[Array, Array]]
    """(phi [M, k], u [v, N]) -> (log f [M, N], d log f / d phi [M, N, k])."""
    starts: Callable[[Array, Array], Array]
    """(u [v, N], y [N]) -> phi [S, k]."""
    public: Callable[[Array, Array], Array]
    """(phi [M, k], g [v]) -> parameters in the data's own units [M, k]."""
    midpoint: int | None = None
    """Index in phi of the logarithm of a place that must lie within the data."""
    variables: int = 1
    repeats: bool = False
    """Whether the second variable is a count with a true zero, which is not normalised."""

    def log_value(self, phi: Array, u: Array) -> Array:
        return self.value(phi, u)[0]

    def limits(self, u: Array) -> tuple[Array, Array]:
        """Least and largest phi for data at u [v, N]."""
        lower, upper = np.array(self.bounds).T
        if self.midpoint is not None:
            lower[self.midpoint], upper[self.midpoint] = np.log(u[0].min()), np.log(u[0].max())
        return lower, upper


def _sum(parts: list[tuple[Array, list[tuple[int, Array]]]], k: int) -> tuple[Array, Array]:
    """Logarithm of a sum of positive terms given by their logarithms, with its derivatives.

    parts: (log term, [(index in phi, its derivative)]).
    """
    logs = np.stack([term for term, _ in parts])
    top = logs.max(axis=0)
    weights = np.exp(logs - top)
    total = weights.sum(axis=0)
    jacobian = np.zeros((*total.shape, k))
    for weight, (_, slopes) in zip(weights, parts):
        for index, slope in slopes:
            jacobian[..., index] += weight / total * slope
    return top + np.log(total), jacobian


def _ones(phi: Array, u: Array) -> Array:
    return np.ones((len(phi), u.shape[-1]))


def _constant(phi: Array, u: Array) -> tuple[Array, Array]:
    one = _ones(phi, u)
    return phi[:, :1] * one, one[..., None]


def _power(phi: Array, u: Array) -> tuple[Array, Array]:
    one, log_u = _ones(phi, u), np.log(u[..., 0, :])
    return phi[:, :1] - phi[:, 1:] * log_u, np.stack([one, -log_u * one], axis=-1)


def _term(scale: Array, exponent: Array, log_u: Array) -> tuple[Array, Array]:
    """log(A u^-a) with a = exp(exponent), and its derivative by that logarithm."""
    drop = np.exp(exponent)[:, None] * log_u
    return scale[:, None] - drop, -drop


def _powers(phi: Array, u: Array) -> tuple[Array, Array]:
    """A floor and a power of each variable."""
    one = _ones(phi, u)
    parts = [(phi[:, :1] * one, [(0, one)])]
    for i in range(1, phi.shape[1], 2):
        term, slope = _term(phi[:, i], phi[:, i + 1], np.log(u[..., i // 2, :]))
        parts.append((term, [(i, one), (i + 1, slope)]))
    return _sum(parts, phi.shape[1])


def _exponential(phi: Array, u: Array) -> tuple[Array, Array]:
    one, ratio = _ones(phi, u), u[..., 0, :] * np.exp(-phi[:, 2:3])
    return _sum([(phi[:, :1] * one, [(0, one)]), (phi[:, 1:2] - ratio, [(1, one), (2, ratio)])], 3)


def _sigmoid(phi: Array, u: Array) -> tuple[Array, Array]:
    one, k = _ones(phi, u), np.exp(phi[:, 3:4])
    z = k * (np.log(u[..., 0, :]) - phi[:, 2:3])
    passed = expit(z)
    slopes = [(1, one), (2, k * passed), (3, -z * passed)]
    return _sum([(phi[:, :1] * one, [(0, one)]), (phi[:, 1:2] + log_expit(-z), slopes)], 4)


def _repeated(phi: Array, u: Array) -> tuple[Array, Array]:
    """u[1] holds the repeats R themselves (a count with a true zero), not a normalised variable."""
    one, rate = _ones(phi, u), np.exp(phi[:, 3])[:, None]
    decay = np.exp(-u[..., 1, :] / rate)
    gain = 1 + rate * (1 - decay)
    log_data = np.log(u[..., 0, :]) + np.log(gain)
    term, slope = _term(phi[:, 1], phi[:, 2], log_data)
    by_rate = (rate * (1 - decay) - u[..., 1, :] * decay) / gain
    third = -np.exp(phi[:, 2])[:, None] * by_rate
    return _sum([(phi[:, :1] * one, [(0, one)]), (term, [(1, one), (2, slope), (3, third)])], 4)


def _batch(phi: Array, u: Array) -> tuple[Array, Array]:
    one = _ones(phi, u)
    ratio = phi[:, 1:2] - np.log(u[..., 0, :])
    return _sum([(phi[:, :1] * one, [(0, one)]), (phi[:, :1] + ratio, [(0, one), (1, one)])], 2)


def _scale_for(shape: Array, y: Array) -> tuple[Array, Array]:
    """Least relative squares of y = E + A * shape, E, A >= 0, for every row of shape [S, N]: E, A [S]."""
    w = 1 / y**2
    one, s, t = w.sum(), shape @ w, (shape**2) @ w
    b, c = (w * y).sum(), shape @ (w * y)
    det = one * t - s * s
    safe = np.where(np.abs(det) > TINY * np.maximum(one * t, TINY), det, np.inf)
    floor, scale = (b * t - c * s) / safe, (c * one - b * s) / safe
    only = c / t
    floor, scale = np.where(scale > 0, floor, b / one), np.where(scale > 0, scale, TINY)
    scale = np.where(floor > 0, scale, only)
    least = 1e-3 * y.min()
    return np.maximum(floor, least), np.maximum(scale, least)


def _floor_starts(u: Array, y: Array) -> Array:
    a = np.geomspace(0.05, 4.0, 24)
    floor, scale = _scale_for(u[0] ** -a[:, None], y)
    return np.column_stack([np.log(floor), np.log(scale), np.log(a)])


def _exponential_starts(u: Array, y: Array) -> Array:
    scale = np.geomspace(0.3 * u[0].min(), u[0].max(), 16)
    floor, height = _scale_for(np.exp(-u[0] / scale[:, None]), y)
    return np.column_stack([np.log(floor), np.log(height), np.log(scale)])


def _sigmoid_starts(u: Array, y: Array) -> Array:
    middle = np.repeat(np.geomspace(u[0].min(), u[0].max(), 8), 6)
    k = np.tile(np.geomspace(0.3, 6.0, 6), 8)
    floor, height = _scale_for(1 / (1 + (u[0] / middle[:, None]) ** k[:, None]), y)
    return np.column_stack([np.log(floor), np.log(height), np.log(middle), np.log(k)])


def _repeated_starts(u: Array, y: Array) -> Array:
    found = []
    for rate in np.geomspace(0.5, 2000, 12):
        data = u[0] * (1 + rate * (1 - np.exp(-u[1] / rate)))
        part = _floor_starts(np.stack([data, u[1]]), y)[::2]
        found.append(np.column_stack([part, np.full(len(part), np.log(rate))]))
    return np.concatenate(found)


def _joint_starts(u: Array, y: Array) -> Array:
    found = []
    w = 1 / y
    for a in np.geomspace(0.05, 3.0, 7):
        for b in np.geomspace(0.05, 3.0, 7):
            design = np.stack([np.ones_like(y), u[0] ** -a, u[1] ** -b], axis=1)
            scales = np.linalg.lstsq(design * w[:, None], y * w, rcond=None)[0]
            floor, first, second = np.log(np.maximum(scales, 0.02 * y.min()))
            found.append((floor, first, np.log(a), second, np.log(b)))
    return np.array(found)


def _power_starts(u: Array, y: Array) -> Array:
    log_u = np.log(u[0])
    slope = np.polyfit(log_u, np.log(y), 1)[0] if np.ptp(log_u) else 0.0
    return np.array([[np.log(y).mean(), -slope], [np.median(np.log(y)), 0.0]])


def _batch_starts(u: Array, y: Array) -> Array:
    ratio = np.geomspace(1e-3, 1e3, 25)
    shape = 1 + ratio[:, None] / u[0]
    scale = np.exp((np.log(y) - np.log(shape)).mean(axis=1))
    return np.column_stack([np.log(scale), np.log(ratio)])


def _powers_public(phi: Array, g: Array) -> Array:
    columns = [np.exp(phi[:, 0])]
    for i in range(1, phi.shape[1], 2):
        a = np.exp(phi[:, i + 1])
        columns += [np.exp(phi[:, i] + a * np.log(g[i // 2])), a]
    return np.column_stack(columns)


FORMS: dict[str, Form] = {
    "constant": Form(
        ("E",),
        (SCALE,),
        _constant,
        lambda u, y: np.array([[np.log(y).mean()], [np.median(np.log(y))]]),
        lambda phi, g: np.exp(phi),
    ),
    "power_law": Form(
        ("A", "a"),
        (SCALE, (-EXPONENT[1], EXPONENT[1])),
        _power,
        _power_starts,
        lambda phi, g: np.column_stack([np.exp(phi[:, 0] + phi[:, 1] * np.log(g[0])), phi[:, 1]]),
    ),
    "power_law_floor": Form(("E", "A", "a"), (SCALE, SCALE, POWER), _powers, _floor_starts, _powers_public),
    "exponential": Form(
        ("E", "A", "s"),
        (SCALE, SCALE, SCALE),
        _exponential,
        _exponential_starts,
        lambda phi, g: np.exp(phi) * [1, 1, g[0]],
    ),
    "sigmoid": Form(
        ("E", "A", "m", "k"),
        (SCALE, SCALE, SCALE, POWER),
        _sigmoid,
        _sigmoid_starts,
        lambda phi, g: np.exp(phi) * [1, 1, g[0], 1],
        midpoint=2,
    ),
    "repeated_data": Form(
        ("E", "A", "a", "R*"),
        (SCALE, SCALE, POWER, (float(np.log(1e-2)), float(np.log(1e5)))),
        _repeated,
        _repeated_starts,
        lambda phi, g: np.column_stack([_powers_public(phi[:, :3], g), np.exp(phi[:, 3])]),
        variables=2,
        repeats=True,
    ),
    "joint": Form(
        ("E", "A", "a", "B", "b"),
        (SCALE, SCALE, POWER, SCALE, POWER),
        _powers,
        _joint_starts,
        _powers_public,
        variables=2,
    ),
    "critical_batch": Form(
        ("Smin", "B*"),
        (SCALE, (float(np.log(1e-4)), float(np.log(1e4)))),
        _batch,
        _batch_starts,
        lambda phi, g: np.column_stack([np.exp(phi[:, 0]), np.exp(phi[:, 1]) * g[0]]),
    ),
}


def normalise(form: Form, x: Array) -> tuple[Array, Array]:
    """Variables [v, N] over their geometric means, and the means [v]; repeats stay as they are."""
    g = np.exp(np.log(np.maximum(x, TINY)).mean(axis=1))
    if form.repeats:
        g[1] = 1.0
    return x / g[:, None], g
