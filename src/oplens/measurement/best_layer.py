"""Which layers cannot be told apart from the best: held-out predictions resampled over stimuli, for all layers alike."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oplens.measurement.arrays import Floats
from oplens.results.variables import variable

FEWEST = 3  # stimuli or groups in a fold; of two, one would be drawn, and what differs between them would not be seen
ENTRIES = 2**20  # of one block of resampled sums


def resampled_predictivity(
    predictions: list[Floats], responses: list[Floats], units: list[NDArray[np.intp]], resamples: int, seed: Any
) -> Floats:
    """Mean predictivity when the stimuli of each fold are drawn again; one seed draws the same stimuli for every layer.

    Parameters
    ----------
    predictions, responses : list of ndarray, (n_test, n_neurons)
        Held out, one of each a fold.
    units : list of ndarray of int, (n_test,)
        Stimuli that share a number are drawn together.
    resamples : int
    seed : int or numpy SeedSequence

    Returns
    -------
    ndarray, (resamples,)
        Correlations averaged over neurons, then over folds.

    Notes
    -----
    Of the g units of a fold g - 1 are drawn, with replacement: the spread of a mean over resamples is then that of the unbiased variance,
    however few they are. Nothing is refitted. Cost: O(resamples stimuli neurons). Source: Rao & Wu (1988), JASA 83(401).

    Examples
    --------
    >>> y = [np.arange(6.0)[:, None]]
    >>> resampled_predictivity(y, y, [np.arange(6)], 3, 0).round(12).tolist()
    [1.0, 1.0, 1.0]
    """
    generator, found = np.random.default_rng(seed), np.zeros(resamples)
    for P, Y, unit in zip(predictions, responses, units, strict=True):
        place = np.unique(unit, return_inverse=True)[1]
        count = int(place.max()) + 1
        a, b = _standard(P), _standard(Y)
        products = np.concatenate([a, b, a * a, b * b, a * b], axis=1)
        size = max(1, ENTRIES // max(products.shape[1], len(P)))
        for start in range(0, resamples, size):
            drawn = generator.multinomial(count - 1, np.full(count, 1 / count), min(size, resamples - start))[:, place]
            means = (drawn @ products) / drawn.sum(1, keepdims=True)
            found[start : start + size] += _correlation(*np.split(means, 5, axis=1)).mean(1)
    return found / len(units)


def against_best(
    means: Floats, drawn: Floats, level: float, freedom: int
) -> dict[str, tuple[Any, Any, dict[str, str]]]:
    r"""Intervals of every layer's mean predictivity, and of its difference to the best layer, whichever that is.

    Parameters
    ----------
    means : ndarray, (n_layers,)
    drawn : ndarray, (n_layers, resamples)
        :func:`resampled_predictivity` of every layer, from the same seed.
    level : float
    freedom : int
        Units less folds, the degrees of freedom of a spread within folds.

    Returns
    -------
    dict
        Over `layer`: `mean_predictivity_low`, `mean_predictivity_high`, `difference_to_best`, `difference_to_best_low`, `difference_to_best_high`.

    Notes
    -----
    The best layer of a recording is partly so by luck, so it is not held fixed. For layer l all differences theta_l - theta_j are
    enclosed at once by m_l - m_j -+ c_l s_lj, where s_lj is the spread over resamples and c_l the `level` quantile of
    max_j abs(t_lj). Since theta_l - max_j theta_j = min_j (theta_l - theta_j), the least low end and the least high end enclose the
    difference to the truly best layer, with probability `level` for each layer. The high end is 0 where no layer is shown to be better.
    The truly best layer is among these with at least that probability, however many layers there are. c_l and the intervals of the means
    are widened by the ratio of quantiles of Student's t and the normal distribution. Claim: *measured*.
    Source: Edwards & Hsu (1983), JASA 78(384), multiple comparisons with the best; quantiles of the largest ratio by resampling, Westfall &
    Young (1993).

    Examples
    --------
    >>> noise = 0.01 * np.random.default_rng(0).standard_normal((3, 1000))
    >>> found = against_best(np.array([0.2, 0.301, 0.3]), noise, 0.95, 100)
    >>> found["difference_to_best_high"][1].round(2).tolist()
    [-0.07, 0.0, 0.0]
    """
    from scipy.stats import norm, t

    moved = drawn - drawn.mean(1, keepdims=True)  # correlations of few stimuli are biased, and of resampled ones more
    wider = float(t.ppf((1 + level) / 2, freedom) / norm.ppf((1 + level) / 2))
    alone = wider * np.quantile(np.abs(moved), level, axis=1)
    ends = np.array([_ends(layer, means, moved, level, wider) for layer in range(len(means))])
    text = "mean predictivity less that of the best layer"
    found = {
        "mean_predictivity_low": (np.maximum(means - alone, -1), "mean predictivity, low end of its interval"),
        "mean_predictivity_high": (np.minimum(means + alone, 1), "mean predictivity, high end of its interval"),
        "difference_to_best": (means - means.max(), text),
        "difference_to_best_low": (ends[:, 0], f"{text}, low end of its interval"),
        "difference_to_best_high": (ends[:, 1], f"{text}, high end of its interval; 0: may be the best"),
    }
    return {name: variable("layer", value, words) for name, (value, words) in found.items()}


def _ends(layer: int, means: Floats, moved: Floats, level: float, wider: float) -> tuple[float, float]:
    """Both ends of one layer's difference to the best; the comparison with itself is 0, so neither is above it."""
    apart = moved[layer] - moved
    spread = apart.std(1)
    ratios = np.divide(np.abs(apart), spread[:, None], out=np.zeros_like(apart), where=spread[:, None] > 1e-14)
    reach = wider * float(np.quantile(ratios.max(0), level)) * spread
    difference = means[layer] - means
    return float((difference - reach).min()), float((difference + reach).min())


def _standard(x: Floats) -> Floats:
    """Zero mean and unit spread over stimuli, so that sums of squares lose no digits; constant columns become zeros."""
    centred = x - x.mean(0)
    spread = centred.std(0)
    varies = spread > 1e-12 * np.abs(x).max(0, initial=0)
    return np.asarray(np.divide(centred, spread, out=np.zeros_like(centred), where=varies))


def _correlation(a: Floats, b: Floats, aa: Floats, bb: Floats, ab: Floats) -> Floats:
    """Correlation from means and means of products; 0 where a resample is constant."""
    spread_a, spread_b = aa - a * a, bb - b * b
    varies = (spread_a > 1e-12) & (spread_b > 1e-12)
    size = np.sqrt(np.where(varies, spread_a * spread_b, 1.0))
    return np.asarray(np.where(varies, (ab - a * b) / size, 0.0))
