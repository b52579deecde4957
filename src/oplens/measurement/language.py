"""Perplexity and bits per byte, summed over predictions; never means of windows."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from oplens.errors import ArgumentError, DataError
from oplens.measurement.arrays import Floats, floats, fraction, plain, validity
from oplens.measurement.ratios import RatioTotals
from oplens.results.variables import variable

if TYPE_CHECKING:
    import xarray as xr

_ABOVE = 1e-5  # rounding of a log-softmax in float32 near probability 1


@dataclass(frozen=True)
class PredictionTotals:
    """Log-probabilities of what came next, over as many batches as are added; constant memory.

    Attributes
    ----------
    per_token : RatioTotals
        -log p over predictions, nats.
    per_byte : RatioTotals or None
        -log2 p of the tokens that stand for text, over bytes, where bytes were given.

    Notes
    -----
    Claim: *measured*. Cost: O(size).

    Examples
    --------
    >>> import numpy as np
    >>> totals = PredictionTotals.of(np.log([[0.5, 0.5, 0.9]]), mask=[[1, 1, 0]]) + PredictionTotals.of(np.log([[0.125]]))
    >>> round(float(totals.statistics().perplexity), 6)  # 2^((1 + 1 + 3)/3), not the mean of 2 and 8
    3.174802
    """

    per_token: RatioTotals
    per_byte: RatioTotals | None = None

    @classmethod
    def of(cls, log_probabilities: Any, mask: Any = None, n_bytes: Any = None, text: Any = None) -> "PredictionTotals":
        """Of log-probabilities (natural logarithm) of the tokens that came.

        Parameters
        ----------
        log_probabilities : array, (n_cases, n_predictions)
            -inf is allowed: a token said to be impossible makes the perplexity infinite.
        mask : array, (n_cases, n_predictions), optional
            True where a prediction counts.
        n_bytes : array of int, (n_cases,), optional
            UTF-8 bytes of the text that the counted predictions cover; a case without predictions of text has 0.
        text : array, (n_cases, n_predictions), optional
            True where what came stands for text. The cost of other tokens, such as the one that ends a text, counts in perplexity and not
            per byte. Default: everywhere.
        """
        call = "PredictionTotals.of"
        logs = floats(call, "log_probabilities", log_probabilities, (2,), "(n_cases, n_predictions)", False)
        real = validity(call, mask, logs.shape, "(n_cases, n_predictions)")
        logs = np.where(real, logs, 0.0)
        if np.isnan(logs).any():
            raise DataError(f"{call}(log_probabilities): NaN outside the padding; one of them makes every sum NaN.")
        if (logs > _ABOVE).any():
            raise DataError(
                f"{call}(log_probabilities): holds {logs.max():.4g} > 0; give logarithms of probabilities, not probabilities, losses or scores."
            )
        nats = -np.minimum(logs, 0.0).sum(1)
        with np.errstate(invalid="ignore"):  # inf - inf: the error of an infinite mean
            per_token = RatioTotals.of(nats, real.sum(1))
            per_byte = None
            if n_bytes is not None:
                worded = real if text is None else real & validity(call, text, logs.shape, "(n_cases, n_predictions)")
                bits = np.where(worded, -np.minimum(logs, 0.0), 0.0).sum(1) / math.log(2)
                per_byte = RatioTotals.of(bits, _bytes(call, n_bytes, worded))
        return cls(per_token, per_byte)

    def __add__(self, other: "PredictionTotals") -> "PredictionTotals":
        """Both together."""
        one, two = self.per_byte, other.per_byte
        if (one is None) != (two is None):
            raise ArgumentError(
                "predictions: bytes were given for one batch and not for the other; give them for all or for none."
            )
        with np.errstate(invalid="ignore"):
            return PredictionTotals(self.per_token + other.per_token, None if one is None or two is None else one + two)

    def statistics(self, level: float = 0.95) -> "xr.Dataset":
        """Perplexity exp(-sum log p / N) over all predictions, and bits per byte -sum log2 p / bytes over those of text.

        Returns
        -------
        xarray.Dataset
            `perplexity`, `perplexity_low`, `perplexity_high`, `loss` (nats per prediction), `loss_error`, `n_predictions`; with bytes
            `bits_per_byte`, `bits_per_byte_error`, `n_bytes`.

        Notes
        -----
        Intervals are Student's on the loss, over cases as independent draws, and NaN below two cases; that of perplexity is their
        exponential. Perplexity depends on the tokenizer, bits per byte does not: special tokens are context to it and no text, so what it
        costs to predict one is left out, as the harnesses do that compare models by it (EleutherAI's conditions on a beginning and predicts
        no end). Source: the paper, section 6.1 (PPL, natural logarithm); bits per byte: Gao et al. (2020), arXiv 2101.00027.
        """
        import xarray as xr

        level = fraction("statistics", "level", level)
        n = int(self.per_token.rows)
        if n == 0:
            raise DataError("statistics: no predictions were given; a text of one token predicts nothing.")
        loss, (low, high) = float(self.per_token.mean), self.per_token.interval(level)
        with np.errstate(over="ignore"):
            perplexity, least, most = (float(np.exp(v)) for v in (loss, low, high))
        variables = {
            "perplexity": variable((), perplexity, "perplexity over all predictions"),
            "perplexity_low": variable((), least, f"lower end of the {level:.0%} interval of perplexity"),
            "perplexity_high": variable((), most, f"upper end of the {level:.0%} interval of perplexity"),
            "loss": variable((), loss, "cross-entropy of a prediction", "nat"),
            "loss_error": variable((), float(self.per_token.error), "standard error of the loss over cases", "nat"),
            "n_predictions": variable((), n, "predictions counted", claim="exact"),
        }
        if self.per_byte is not None and self.per_byte.rows > 0:
            variables["bits_per_byte"] = variable((), float(self.per_byte.mean), "bits per byte of text", "bit")
            variables["bits_per_byte_error"] = variable(
                (), float(self.per_byte.error), "standard error of bits per byte over cases", "bit"
            )
            variables["n_bytes"] = variable((), int(self.per_byte.rows), "bytes of text covered", claim="exact")
        return xr.Dataset(variables, attrs={"level": level})


def token_log_probabilities(logits: Any, tokens: Any, mask: Any = None) -> tuple[Floats, Any]:
    r"""Log-probability of each next token, log softmax(logits_t)[token_{t+1}], in float64, and which of them count.

    Parameters
    ----------
    logits : array, (n_cases, length, n_vocabulary)
    tokens : array of int, (n_cases, length)
        Padded positions may hold anything.
    mask : array, (n_cases, length), optional
        True where a token is real; a prediction counts if it is made from a real token about a real one.

    Returns
    -------
    log_probabilities, mask : ndarray, (n_cases, length - 1)

    Notes
    -----
    Claim: *measured*; rounding that of float64. Cost: O(size of logits).

    Examples
    --------
    >>> import numpy as np
    >>> logs, real = token_log_probabilities(np.zeros((1, 3, 4)), [[0, 3, 1]])
    >>> np.exp(logs).round(12).tolist(), real.tolist()
    ([[0.25, 0.25]], [[True, True]])
    """
    from scipy.special import logsumexp

    call = "token_log_probabilities"
    scores = floats(call, "logits", logits, (3,), "(n_cases, length, n_vocabulary)", False)
    ids = plain(call, "tokens", tokens)
    if ids.shape != scores.shape[:2] or ids.dtype.kind not in "iu":
        raise ArgumentError(
            f"{call}(tokens of shape {ids.shape}, {ids.dtype}): expected whole numbers of shape {scores.shape[:2]}."
        )
    real = validity(call, mask, ids.shape, "(n_cases, length)")
    count = real[:, :-1] & real[:, 1:]
    following = np.where(count, ids[:, 1:], 0)
    if (following < 0).any() or (following >= scores.shape[-1]).any():
        raise DataError(
            f"{call}(tokens): holds {following.min()} to {following.max()} where the vocabulary is 0 to {scores.shape[-1] - 1}; mask padding."
        )
    scores = np.where(count[..., None], scores[:, :-1], 0.0)
    if np.isnan(scores).any() or (scores == np.inf).any():
        raise DataError(f"{call}(logits): NaN or infinite scores outside the padding.")
    chosen = np.take_along_axis(scores, following[..., None], -1)[..., 0]
    return np.where(count, chosen - logsumexp(scores, axis=-1), 0.0), count


def _bytes(call: str, n_bytes: Any, worded: Any) -> Floats:
    counts = plain(call, "n_bytes", n_bytes)
    if counts.shape != worded.shape[:1] or counts.dtype.kind not in "iu" or (counts < 0).any():
        raise ArgumentError(
            f"{call}(n_bytes of shape {counts.shape}): expected {worded.shape[:1]} whole numbers, bytes of text per case."
        )
    wrong = (counts > 0) != worded.any(1)
    if wrong.any():
        raise DataError(
            f"{call}(n_bytes): case {int(np.argmax(wrong))} has bytes without predictions of text, or predictions of text without bytes."
        )
    return counts.astype(float)
