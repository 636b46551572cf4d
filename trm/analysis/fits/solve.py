"""Robust nonlinear least squares in log space, for thousands of refits at once.

Minimises sum_i huber_delta(log y_i - log f(x_i)) by Levenberg-Marquardt with iteratively reweighted
residuals, in one batch of numpy arrays. scipy.optimize solves one problem a call; a bootstrap of 1,000
refits of three forms with several starts would take minutes so, and takes about a second here.
tests/analysis checks it against scipy's least_squares.
"""

from dataclasses import dataclass

import numpy as np

from trm.analysis.fits.forms import SCALE, Array, Form

ITERATIONS = 120
TOLERANCE = 1e-8


@dataclass(frozen=True)
class Solution:
    """Best fit of each of B data sets."""

    phi: Array
    """Internal coordinates [B, k]."""
    cost: Array
    """Huber cost [B], in squared log units: sum of r^2/2 within delta, linear beyond."""
    converged: np.ndarray
    """[B] bool: finite and stationary."""
    at_bound: np.ndarray
    """[B] bool: an exponent ended at its bound, so the data do not determine a law."""


def huber(residual: Array, delta: float, weight: Array | float = 1.0) -> Array:
    """Huber's function, weighted and summed over the last axis."""
    size = np.abs(residual)
    value = np.where(size <= delta, 0.5 * residual**2, delta * (size - 0.5 * delta))
    return np.asarray((weight * value).sum(axis=-1))


def solve(
    form: Form,
    u: Array,
    log_y: Array,
    delta: float,
    starts: Array,
    refine: int = 3,
    weights: Array | None = None,
) -> Solution:
    """Fit `form` to each row of log_y.

    Args:
        form: the law.
        u: normalised variables [v, N], shared by all data sets.
        log_y: logarithms of the data [B, N].
        delta: Huber threshold in log units.
        starts: initial phi [S, k]; the `refine` best of them for each data set are iterated to convergence.
        refine: starts iterated.
        weights: of the observations [B, N]; 0 leaves one out.

    Returns:
        The best solution of each data set.
    """
    lower, upper = form.limits(u)
    starts = np.clip(starts, lower, upper)
    values = form.log_value(starts, u)
    count, keep = len(log_y), min(refine, len(starts))
    weights = np.ones_like(log_y) if weights is None else weights
    cost = np.stack([huber(log_y - value, delta, weights) for value in values], axis=1)
    chosen = np.argsort(cost, axis=1, kind="stable")[:, :keep]
    phi = starts[chosen].reshape(count * keep, -1)
    data = np.repeat(log_y, keep, axis=0)
    phi, cost, done = _iterate(form, u, data, delta, phi, (lower, upper), np.repeat(weights, keep, axis=0))
    shape = (count, keep)
    best = np.argmin(np.where(np.isfinite(cost), cost, np.inf).reshape(shape), axis=1) + keep * np.arange(
        count
    )
    phi, cost = phi[best], cost[best]
    limited = [bounds != SCALE for bounds in form.bounds]
    bound = ((phi <= lower + 1e-6) | (phi >= upper - 1e-6))[:, limited].any(axis=1)
    return Solution(phi, cost, done[best] & np.isfinite(cost), bound)


def _iterate(
    form: Form, u: Array, data: Array, delta: float, phi: Array, limits: tuple[Array, Array], weights: Array
) -> tuple[Array, Array, np.ndarray]:
    """Levenberg-Marquardt on every row; rows that converged leave the batch."""
    k, (lower, upper) = phi.shape[1], limits
    cost = huber(data - form.log_value(phi, u), delta, weights)
    damping = np.full(len(phi), 1e-2)
    done = np.zeros(len(phi), bool)
    eye = np.eye(k)
    for _ in range(ITERATIONS):
        rows = np.flatnonzero(~done)
        if not len(rows):
            break
        value, jacobian = form.value(phi[rows], u)
        residual = data[rows] - value
        weight = weights[rows] * np.minimum(1.0, delta / np.maximum(np.abs(residual), 1e-300))
        weighted = jacobian * weight[..., None]
        gradient = np.einsum("mnk,mn->mk", weighted, residual)
        # A coordinate resting on its bound with the gradient pointing outwards is held there.
        held = ((phi[rows] <= lower) & (gradient < 0)) | ((phi[rows] >= upper) & (gradient > 0))
        free = ~held
        hessian = np.einsum("mnk,mnl->mkl", weighted, jacobian) * free[:, :, None] * free[:, None, :]
        gradient = gradient * free
        diagonal = np.einsum("mkk->mk", hessian)
        ridge = damping[rows, None] * np.maximum(diagonal, 1e-6) + 1e-10 + held
        step = np.linalg.solve(hessian + ridge[:, :, None] * eye, gradient[..., None])[..., 0]
        trial = np.clip(phi[rows] + np.clip(step, -3.0, 3.0), lower, upper)
        fresh = huber(data[rows] - form.log_value(trial, u), delta, weights[rows])
        better = fresh < cost[rows]
        gain = cost[rows] - fresh
        small = np.abs(trial - phi[rows]).max(axis=1) < 1e-7
        settled = (better & (gain <= TOLERANCE * (cost[rows] + 1e-12))) | small | (damping[rows] > 1e10)
        phi[rows[better]] = trial[better]
        cost[rows[better]] = fresh[better]
        damping[rows] = np.where(better, damping[rows] * 0.2, damping[rows] * 6.0).clip(1e-10, 1e12)
        done[rows[settled]] = True
    return phi, cost, done
