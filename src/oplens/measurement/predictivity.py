"""How well features predict recorded responses: cross-validated ridge against the noise ceiling, with a permutation test."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oplens.errors import ArgumentError, DataError
from oplens.measurement.arrays import Floats, floats, plain, whole
from oplens.results.variables import variable

if TYPE_CHECKING:
    import xarray as xr

FEWEST_ORDERS = 20  # of groups, without which no p is as small as .05
ALPHAS = tuple(float(a) for a in np.logspace(-2, 6, 17))


@dataclass(frozen=True)
class RidgeFold:
    """Ridge on one training fold, all penalties at once: features standardised on that fold, response means unpenalised.

    With Z = U diag(s) V' the standardised features, predictions for a new row z are mean(y) + z V diag(s/(s^2 + alpha)) U'(y - mean(y));
    the penalty of each response is the one with the least leave-one-out error, residual_i / (1 - 1/n - sum_k U_ik^2 s_k^2/(s_k^2 + alpha)).

    Attributes
    ----------
    left : ndarray, (n_train, k)
    singular : ndarray, (k,)
    unseen : ndarray, (n_test, k)
        Test rows times V.
    train, test : ndarray of int
    alphas : tuple of float
    """

    left: Floats
    singular: Floats
    unseen: Floats
    train: NDArray[np.intp]
    test: NDArray[np.intp]
    alphas: tuple[float, ...]

    @classmethod
    def of(cls, X: Floats, train: NDArray[np.intp], test: NDArray[np.intp], alphas: tuple[float, ...]) -> "RidgeFold":
        """Decompose once; every response and every permutation then costs two products."""
        mean, scale = X[train].mean(0), X[train].std(0)
        # A feature that is constant up to rounding would be blown up to pure noise.
        varies = scale > 1e-10 * np.abs(X).max(0, initial=0)
        Z = (X[:, varies] - mean[varies]) / scale[varies]
        if not varies.any():
            Z = np.zeros((len(X), 1))
        left, singular, right = np.linalg.svd(Z[train], full_matrices=False)
        return cls(left, singular, Z[test] @ right.T, train, test, alphas)

    def predict(self, Y: Floats) -> tuple[Floats, Floats]:
        """Predictions (n_test, n_neurons) from the training rows of Y (stimuli, n_neurons), and the penalties chosen."""
        y = Y[self.train]
        mean = y.mean(0)
        projected = self.left.T @ (y - mean)
        n, squares = len(y), self.singular**2
        best, chosen = np.full(Y.shape[1], np.inf), np.zeros(Y.shape[1], dtype=int)
        for k, alpha in enumerate(self.alphas):
            shrink = squares / (squares + alpha)
            leverage = 1 / n + self.left**2 @ shrink
            residual = (y - mean - self.left @ (shrink[:, None] * projected)) / (1 - leverage)[:, None]
            error = (residual**2).mean(0)
            better = error < best
            best, chosen = np.where(better, error, best), np.where(better, k, chosen)
        alphas = np.array(self.alphas)[chosen]
        weights = self.singular[:, None] / (squares[:, None] + alphas)
        return mean + self.unseen @ (weights * projected), alphas


def neural_predictivity(
    features: Any,
    responses: Any,
    *,
    groups: Any = None,
    folds: int = 5,
    alphas: Any = ALPHAS,
    permutations: int = 200,
    halves: int = 100,
    seed: int = 0,
) -> "xr.Dataset":
    r"""Cross-validated ridge from a model's features to recorded responses, beside what noise allows and what chance gives.

    Per neuron: r is Pearson's correlation of held-out predictions with the mean response over repeats, averaged over folds. The ceiling
    is sqrt(reliability), the correlation of a perfect model of the expected response with the recorded mean. Reliability is the
    correlation of two halves of the repeats, averaged over random halves, and carried to all R repeats by Spearman and Brown:
    f r / (1 + (f - 1) r), f = R / floor(R/2).

    Parameters
    ----------
    features : array, (stimuli, n_features)
    responses : array, (stimuli, n_neurons) or (stimuli, n_neurons, repeats)
    groups : array, (stimuli,), optional
        Stimuli of one text or film share a number: they are never split between training and test, and are permuted as a block, for a group
        with as many stimuli. Without this, neighbours in time leak from training into test and r is too large.
    folds : int
    alphas : sequence of float
        Penalties to choose from on each training fold, per neuron, by leave-one-out error.
    permutations : int
        0: no test.
    halves : int
        Random halves.
    seed : int

    Returns
    -------
    xarray.Dataset
        Over `neuron`: `predictivity` (r), `alpha` (median over folds), with repeats `noise_ceiling` and `normalised_predictivity` (NaN where
        the reliability is not positive); `mean_predictivity`, `median_normalised_predictivity`, `p_value` and `null_mean`.

    Notes
    -----
    p = (1 + number of permutations with mean r at least as large) / (1 + permutations): rows of the responses, all neurons and repeats
    together, are permuted against the features; valid if stimuli (or groups of one size) are exchangeable. A group that has a size of its own
    stays where it is, which leaves p valid and makes it larger. A neuron constant in a test fold has r = 0
    there. Claims: *measured*. Cost: one singular value decomposition a fold; O(permutations folds stimuli^2 (neurons + alphas)).
    Source: Schrimpf et al. (2021), PNAS 118(45), for the protocol; Spearman (1910), Brown (1910); p: Phipson & Smyth (2010), SAGMB 9(1).

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((80, 4))
    >>> Y = (X @ rng.standard_normal((4, 3)))[..., None] + rng.standard_normal((80, 3, 6))
    >>> ds = neural_predictivity(X, Y, permutations=49)
    >>> float(ds.p_value), bool((ds.normalised_predictivity > 0.9).all())
    (0.02, True)
    """
    import xarray as xr

    call = "neural_predictivity"
    X, Y, blocks, penalties = checked(call, features, responses, groups, alphas)
    n_permutations, n_halves = whole(call, "permutations", permutations, 0), whole(call, "halves", halves, 1)
    seed = whole(call, "seed", seed, 0)
    split_seed, half_seed, null_seed = np.random.SeedSequence(seed).spawn(3)
    fitted = [
        RidgeFold.of(X, *pair, penalties) for pair in divide(call, blocks, whole(call, "folds", folds, 2), split_seed)
    ]
    mean = Y.mean(-1)
    r = _score(fitted, mean)
    chosen = np.median([fold.predict(mean)[1] for fold in fitted], axis=0)
    found: dict[str, Any] = {
        "predictivity": variable("neuron", r, "correlation of held-out prediction and response"),
        "alpha": variable("neuron", chosen, "ridge penalty, median over folds"),
        "mean_predictivity": variable((), float(r.mean()), "predictivity, mean over neurons"),
    }
    if Y.shape[-1] > 1:
        ceiling = np.sqrt(np.maximum(reliability(Y, n_halves, half_seed), 0))
        positive = ceiling > 0
        normalised = np.divide(r, ceiling, out=np.full_like(r, np.nan), where=positive)
        middle = float(np.nanmedian(normalised)) if positive.any() else np.nan
        found["noise_ceiling"] = variable(
            "neuron", np.where(positive, ceiling, np.nan), "correlation that a perfect model would reach"
        )
        found["normalised_predictivity"] = variable("neuron", normalised, "predictivity over the noise ceiling")
        found["median_normalised_predictivity"] = variable((), middle, "normalised predictivity, median over neurons")
    if n_permutations:
        null = null_predictivity(fitted, mean, blocks, n_permutations, null_seed)
        p = (1 + int((null >= r.mean() - 1e-12).sum())) / (1 + n_permutations)
        found["p_value"] = variable((), p, "share of permutations that predict as well")
        found["null_mean"] = variable((), float(null.mean()), "mean predictivity of permuted responses")
    attrs = {
        "seed": seed,
        "folds": len(fitted),
        "permutations": n_permutations,
        "halves": n_halves,
        "grouped": int(groups is not None),
    }
    return xr.Dataset(found, coords={"neuron": np.arange(Y.shape[1])}, attrs=attrs)


def reliability(responses: Any, halves: int = 100, seed: Any = 0) -> Floats:
    """Reliability of the mean over all repeats, per neuron: split-half correlation over stimuli, stepped up by Spearman and Brown.

    Parameters
    ----------
    responses : array, (stimuli, n_neurons, repeats)
        At least two repeats.
    halves : int
        Random pairs of disjoint halves of floor(repeats / 2).
    seed : int or numpy SeedSequence

    Returns
    -------
    ndarray, (n_neurons,)
        At most 1; not positive where noise hides everything. 0 for a constant neuron.

    Notes
    -----
    Claim: *measured*. Correlations are averaged before stepping up. Source: Spearman (1910), Brown (1910), Brit. J. Psychol. 3.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> Y = rng.standard_normal((2000, 1, 1)) + rng.standard_normal((2000, 1, 4))  # variance 1 of signal, 1/4 of the mean's noise
    >>> abs(float(reliability(Y)[0]) - 0.8) < 0.02
    True
    """
    Y = floats("reliability", "responses", responses, (3,), "(stimuli, n_neurons, repeats)")
    repeats = Y.shape[-1]
    if repeats < 2 or len(Y) < 3:
        raise DataError(
            f"reliability: {len(Y)} stimuli with {repeats} repeats; halves need two repeats and three stimuli or more."
        )
    generator, size = np.random.default_rng(seed), repeats // 2
    total = np.zeros(Y.shape[1])
    for _ in range(whole("reliability", "halves", halves, 1)):
        order = generator.permutation(repeats)
        total += correlation(Y[..., order[:size]].mean(-1), Y[..., order[size : 2 * size]].mean(-1))
    r, f = total / halves, repeats / size
    return np.asarray(f * r / (1 + (f - 1) * np.maximum(r, 0)))


def correlation(x: Floats, y: Floats) -> Floats:
    """Pearson's correlation along the first axis; 0 where a side is constant up to rounding."""
    a, b = x - x.mean(0), y - y.mean(0)
    sizes = [np.linalg.norm(v, axis=0) for v in (a, b)]
    floors = [1e-12 * np.linalg.norm(v, axis=0) for v in (x, y)]
    varies = (sizes[0] > floors[0]) & (sizes[1] > floors[1])
    return np.asarray(np.divide((a * b).sum(0), sizes[0] * sizes[1], out=np.zeros(x.shape[1:]), where=varies))


def _score(fitted: list[RidgeFold], Y: Floats) -> Floats:
    return np.asarray(np.mean([correlation(fold.predict(Y)[0], Y[fold.test]) for fold in fitted], axis=0))


def null_predictivity(fitted: list[RidgeFold], Y: Floats, blocks: Any, count: int, seed: Any) -> Floats:
    """Mean predictivity under permutations of whole blocks of stimuli among those of their size."""
    generator = np.random.default_rng(seed)
    sizes = np.bincount(blocks)
    alike = [np.flatnonzero(np.isin(blocks, np.flatnonzero(sizes == size))) for size in np.unique(sizes)]
    places = [rows[np.argsort(blocks[rows], kind="stable")].reshape(-1, sizes[blocks[rows[0]]]) for rows in alike]
    source, found = np.empty(len(Y), dtype=int), np.empty(count)
    for k in range(count):
        for rows in places:
            source[rows] = rows[generator.permutation(len(rows))]
        found[k] = _score(fitted, Y[source]).mean()
    return found


def divide(call: str, blocks: Any, folds: int, seed: Any) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Whole blocks, shuffled, in `folds` nearly equal parts."""
    count = int(blocks.max()) + 1
    if count < folds:
        raise ArgumentError(f"{call}(folds={folds}): there are {count} stimuli or groups to divide; give fewer folds.")
    pairs = []
    for part in np.array_split(np.random.default_rng(seed).permutation(count), folds):
        held = np.isin(blocks, part)
        if held.sum() < 3 or (~held).sum() < 3:
            raise DataError(
                f"{call}: a fold has {held.sum()} test and {(~held).sum()} training stimuli; a correlation needs 3. Give fewer folds."
            )
        pairs.append((np.flatnonzero(~held), np.flatnonzero(held)))
    return pairs


def checked(
    call: str, features: Any, responses: Any, groups: Any, alphas: Any
) -> tuple[Floats, Floats, Any, tuple[float, ...]]:
    """Features, responses (stimuli, neurons, repeats), the block of each stimulus, and penalties; refused where they do not fit."""
    X = floats(call, "features", features, (2,), "(stimuli, n_features)")
    Y = floats(call, "responses", responses, (2, 3), "(stimuli, n_neurons) or (stimuli, n_neurons, repeats)")
    Y = Y[..., None] if Y.ndim == 2 else Y
    if len(X) != len(Y) or 0 in X.shape or 0 in Y.shape:
        raise ArgumentError(
            f"{call}: features of shape {X.shape}, responses of shape {Y.shape}; both need the same stimuli, at least one of each."
        )
    penalties = floats(call, "alphas", alphas, (1,), "a sequence of penalties")
    if not len(penalties) or (penalties <= 0).any():
        raise ArgumentError(f"{call}(alphas={alphas!r}): give positive penalties, such as (1, 10, 100).")
    if groups is None:
        return X, Y, np.arange(len(X)), tuple(penalties.tolist())
    labels = plain(call, "groups", groups)
    if labels.shape != (len(X),):
        raise ArgumentError(f"{call}(groups of shape {labels.shape}): expected one label for each of {len(X)} stimuli.")
    _, blocks, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    orders = math.prod(math.factorial(int(same)) for same in np.unique(sizes, return_counts=True)[1])
    if len(set(sizes.tolist())) > 1 and orders < FEWEST_ORDERS:
        raise DataError(
            f"{call}(groups): groups can only be exchanged for groups with as many stimuli; {len(sizes)} groups of {sizes.min()} to {sizes.max()} "
            f"have {orders} of the {FEWEST_ORDERS} orders that a p of .05 needs. Cut them to one size."
        )
    return X, Y, blocks, tuple(penalties.tolist())
