"""Explanations by their definitions, in plain numpy loops over time and cases; shares no code with the library but the model's weights.

A partition is a dictionary of what it splits by: waves (bool), channels (indices), bands (edges), windows (count).
"""

import itertools
import math

import numpy as np
from scipy.special import erf, expit

STEPS = np.linspace(-14, 14, 4001)
NODES, WEIGHTS = np.polynomial.legendre.leggauss(80)


def cdf(x):
    return (1 + erf(x / math.sqrt(2))) / 2


def density(x):
    return np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def gelu(z):
    return z * cdf(z)


def hermite(k, w, variance):
    """s^k He_k(w / s) by its explicit sum."""
    total = np.zeros_like(w)
    for j in range(k // 2 + 1):
        factor = math.factorial(k) / (math.factorial(j) * math.factorial(k - 2 * j) * 2**j)
        total = total + (-1) ** j * factor * variance**j * w ** (k - 2 * j)
    return total


def derivative(z, k):
    """k-th derivative of GELU: z Phi^(k) + k Phi^(k-1)."""

    def phi(n):
        return cdf(z) if n == 0 else (-1) ** (n - 1) * hermite(n - 1, z, 1.0) * density(z)

    return z * phi(k) + (k * phi(k - 1) if k else 0)


def coefficients(mean, variance, order):
    """E g^(k)(m + s X) / k! by the trapezoidal rule, which converges exponentially here: (H, order + 1)."""
    z = mean[:, None] + np.sqrt(variance)[:, None] * STEPS
    weight = density(STEPS)
    weight = weight / weight.sum()
    return np.stack([(derivative(z, k) * weight).sum(-1) / math.factorial(k) for k in range(order + 1)], axis=-1)


def mean_slope(z, m):
    """(g(z) - g(m)) / (z - m) as the integral of g' from m to z."""
    total = np.zeros_like(z)
    for node, weight in zip(NODES, WEIGHTS, strict=True):
        total += weight / 2 * derivative(m + (z - m) * (node + 1) / 2, 1)
    return total


class Weights:
    """A model's parameters as numpy arrays."""

    def __init__(self, model):
        self.config = model.config
        self.values = {name: value.detach().double().numpy() for name, value in model.state_dict().items()}

    def __getitem__(self, name):
        return self.values[name]

    def system(self, layer=0):
        prefix = f"s4_layers.{layer}."
        pole = -np.exp(self[prefix + "kernel.log_A_real"]) + 1j * self[prefix + "kernel.A_imag"]
        step = np.exp(self[prefix + "kernel.log_dt"])[:, None]
        C = self[prefix + "kernel.C"][..., 0] + 1j * self[prefix + "kernel.C"][..., 1]
        if self.config.discretisation == "zoh":
            a, b = np.exp(pole * step), (np.exp(pole * step) - 1) / pole
        else:
            a, b = (1 + pole * step / 2) / (1 - pole * step / 2), step / (1 - pole * step / 2)
        return a, b, C, self[prefix + "D"]

    def preprocess(self, x):
        """One unpadded case (d, L), standardised."""
        p = self.config.preprocessing
        if p.remove_offset:
            x = x - x.mean(-1, keepdims=True)
        return (x - np.array(p.mean)[:, None]) / np.array(p.scale)[:, None]


def respond(system, u):
    """Waves (J, H, P, L) and skips (J, H, L) of inputs u (J, H, L): one step after the other."""
    a, b, C, D = system
    s = np.zeros((*u.shape[:2], a.shape[1]), complex)
    out = np.empty((*u.shape[:2], a.shape[1], u.shape[-1]))
    for t in range(u.shape[-1]):
        s = a * s + b * u[:, :, t, None]
        out[..., t] = 2 * (C * s).real
    return out, D[:, None] * u


class Case:
    """One case of a one-layer model: everything an account needs, by the formulas of the architecture."""

    def __init__(self, weights, raw, directions):
        w, config = weights, weights.config
        self.w, self.x = w, w.preprocess(raw)
        self.length = L = raw.shape[1]
        self.reference = config.architecture == "reference"
        E, e, W = w["encoder.weight"], w["encoder.bias"], w["decoder.weight"]
        encoded = E @ self.x + e[:, None]
        self.E, self.drive, bias = E, np.ones(L), np.repeat(e[:, None], L, 1)
        if self.reference and config.prenorm:
            gamma, beta = w["norms.0.weight"], w["norms.0.bias"]
            self.drive = 1 / np.sqrt(encoded.var(0) + 1e-5)
            self.E = gamma[:, None] * (E - E.mean(0))
            bias = self.drive * (gamma * (e - e.mean()))[:, None] + beta[:, None]
        modes, skip = respond(w.system(), bias[None])
        self.z_bias = modes[0].sum(1) + skip[0]
        modes, skip = self.response(self.x[None])
        self.z = self.z_bias + modes[0].sum(1) + skip[0]
        R = directions @ W  # (T, H)
        if not self.reference:
            self.omega = np.repeat(R[..., None], L, -1) / L
            self.constant = directions @ w["decoder.bias"]
            self.stream = None
            self.logits = W @ gelu(self.z).mean(-1) + w["decoder.bias"]
            return
        H = len(e)
        A, G = w["s4_layers.0.output_linear.0.weight"][:H, :, 0], w["s4_layers.0.output_linear.0.weight"][H:, :, 0]
        alpha, g = w["s4_layers.0.output_linear.0.bias"][:H], w["s4_layers.0.output_linear.0.bias"][H:]
        gate = expit(G @ gelu(self.z) + g[:, None])
        hidden = encoded + (A @ gelu(self.z) + alpha[:, None]) * gate
        gamma, beta = w["norms.0.weight"], w["norms.0.bias"]
        self.constant = directions @ w["decoder.bias"]
        R = np.repeat(R[..., None], L, -1) / L  # (T, H, L)
        if not config.prenorm:
            sigma = np.sqrt(hidden.var(0) + 1e-5)
            hidden = gamma[:, None] * (hidden - hidden.mean(0)) / sigma + beta[:, None]
            self.constant = self.constant + (R * beta[:, None]).sum((1, 2))
            R = R * gamma[:, None] / sigma
            R = R - R.mean(1, keepdims=True)
        self.constant = self.constant + (R * gate * alpha[:, None]).sum((1, 2)) + (R * e[:, None]).sum((1, 2))
        self.omega = np.einsum("tgl,gl,gh->thl", R, gate, A)
        self.stream = R
        self.logits = W @ hidden.mean(-1) + w["decoder.bias"]

    def response(self, parts):
        """Waves and skips that parts of x (J, d, L) drive."""
        return respond(self.w.system(), self.drive * np.einsum("hd,jdl->jhl", self.E, parts))

    def split(self, by):
        """Parts of x (J, d, L), in the order channel, band, window, and what they leave of x."""
        parts = []
        for channel, band, window in itertools.product(
            by.get("channels") or [None],
            by.get("bands") or [None],
            range(by["windows"]) if by.get("windows") else [None],
        ):
            part = self.x.copy()
            if band is not None:
                rate = self.w.config.sampling_rate or 1.0
                index = np.arange(self.length)
                frequency = np.minimum(index, self.length - index) * rate / self.length
                mask = (frequency >= band[0]) & ((frequency < band[1]) | (band[1] >= rate / 2))
                part = np.fft.ifft(np.fft.fft(part) * mask).real
            if window is not None:
                step = np.arange(self.length) * by["windows"]
                part = part * ((step >= window * self.length) & (step < (window + 1) * self.length))
            if channel is not None:
                part = part * (np.arange(len(part)) == channel)[:, None]
            parts.append(part)
        parts = np.stack(parts)
        return parts, self.x - parts.sum(0)

    def zeta(self, by, covers):
        """Pre-activations of parts (J, H, L) and of sources, dict of (H, L); parts of waves by mode, then by part of x."""
        if not by.get("waves"):
            parts, rest = self.split(by)
            modes, skip = self.response(parts)
            sources = {"bias": self.z_bias}
            if not covers:
                other, direct = self.response(rest[None])
                sources["rest"] = other[0].sum(1) + direct[0]
            return modes.sum(2) + skip, sources
        plain = len(by) == 1
        parts, rest = (self.x[None], 0 * self.x) if plain else self.split(by)
        modes, skip = self.response(parts)
        other, direct = self.response(rest[None])
        sources = {"bias": self.z_bias, "skip": skip.sum(0) + direct[0]}
        if not covers:
            sources["rest"] = other[0].sum(1)
        if self.reference:
            sources["residual"] = 0 * self.z_bias
        return modes.transpose(2, 0, 1, 3).reshape(-1, *self.z.shape), sources

    def direct(self, by, covers, n_parts, names):
        """The residual stream's part shares (T, n) and source shares (T, S): linear in x, outside the readout."""
        T = len(self.constant)
        parts, sources = np.zeros((T, n_parts)), np.zeros((T, len(names)))
        if self.stream is None:
            return parts, sources
        if by.get("waves"):
            sources[:, names.index("residual")] = np.einsum(
                "thl,hd,dl->t", self.stream, self.w["encoder.weight"], self.x
            )
            return parts, sources
        split, rest = self.split(by)
        parts = np.einsum("thl,hd,jdl->tj", self.stream, self.w["encoder.weight"], split)
        if not covers:
            sources[:, names.index("rest")] = np.einsum("thl,hd,dl->t", self.stream, self.w["encoder.weight"], rest)
        return parts, sources


class Oracle:
    """Terms and pairs of a one-layer model, family and partition, fitted on lists of raw cases (d, L)."""

    def __init__(self, model, train, family, order, directions):
        self.w, self.family, self.order, self.directions = Weights(model), family, order, directions
        self.train = [Case(self.w, x.astype(np.float32).astype(float), directions) for x in train]
        self.m = np.mean([c.z.mean(-1) for c in self.train], 0)
        self.v = np.mean([((c.z - self.m[:, None]) ** 2).mean(-1) for c in self.train], 0)
        if family == "taylor":
            self.m, self.v = 0 * self.m, 0 * self.v
        self.d = coefficients(self.m, self.v, order)

    def members(self, case, by, covers):
        """Parts and sources as one array (J, H, L), and the names of the sources."""
        parts, sources = case.zeta(by, covers)
        return np.concatenate([parts, np.stack(list(sources.values()))]), list(sources)

    def moments(self, by, covers):
        """Means (J, H), covariances with z (J, H) and among members (J, J, H) over the training cases."""
        zetas = [self.members(c, by, covers)[0] for c in self.train]
        J, H, _ = zetas[0].shape
        if self.family == "taylor":
            return np.zeros((J, H)), np.zeros((J, H)), np.zeros((J, J, H))
        mean = np.mean([z.mean(-1) for z in zetas], 0)
        pairs = np.zeros((J, J, H))
        for zeta in zetas:
            centred = zeta - mean[..., None]
            pairs += np.einsum("ihl,jhl->ijh", centred, centred) / zeta.shape[-1]
        pairs /= len(zetas)
        return mean, pairs.sum(1), pairs

    def terms(self, raw, by, covers=True):
        """All that `explain` returns of one case, per feature where the partition holds waves: arrays with a leading target axis."""
        case = Case(self.w, raw, self.directions)
        zeta, names = self.members(case, by, covers)
        mean, C, _ = self.moments(by, covers)
        w = case.z - self.m[:, None]
        H = [hermite(k, w, self.v[:, None]) for k in range(self.order + 1)]
        nu = zeta - mean[..., None]
        cells = []
        for k in range(1, self.order + 1):
            term = nu * H[k - 1]
            if k >= 2:
                term = term - (k - 1) * C[..., None] * H[k - 2]
            cells.append(np.einsum("thl,h,jhl->tjh", case.omega, self.d[:, k], term))
        full = np.einsum("thl,jhl,hl->tjh", case.omega, nu, mean_slope(case.z, self.m[:, None]))
        n = len(zeta) - len(names)
        direct, source_direct = case.direct(by, covers, n, names)
        polynomial = sum(self.d[:, k, None] * H[k] for k in range(self.order + 1))
        keep = bool(by.get("waves"))
        share = np.stack([c[:, :n] if keep else c[:, :n].sum(-1) for c in cells])
        source = np.stack([c[:, n:].sum(-1) for c in cells])
        full_share, full_source = full[:, :n] if keep else full[:, :n].sum(-1), full[:, n:].sum(-1)
        if not keep:
            share[0] += direct
            full_share = full_share + direct
        source[0] += source_direct
        total = case.omega.sum(-1)
        return {
            "share": np.moveaxis(share, -1, 2) if keep else share,
            "source_share": source,
            "order_0": case.constant + np.einsum("th,h->t", total, self.d[:, 0]),
            "remainder": np.einsum("thl,hl->t", case.omega, gelu(case.z) - polynomial),
            "full_share": np.moveaxis(full_share, -1, 1) if keep else full_share,
            "source_full_share": full_source + source_direct,
            "full_constant": case.constant + np.einsum("th,h->t", total, gelu(self.m)),
            "target": self.directions @ case.logits,
            "logits": case.logits,
        }, names

    def pairs(self, raw, by, covers=True):
        """Pairs of orders 2..K of one case: (order, T, J, J, H) over parts and sources."""
        case = Case(self.w, raw, self.directions)
        zeta, names = self.members(case, by, covers)
        mean, C, pairs = self.moments(by, covers)
        w = case.z - self.m[:, None]
        nu = zeta - mean[..., None]
        J = len(zeta)
        out = np.zeros((self.order - 1, len(self.directions), J, J, len(self.m)))

        def basis(k):
            return hermite(k, w, self.v[:, None])

        for k, i, j in itertools.product(range(2, self.order + 1), range(J), range(J)):
            term = (nu[i] * nu[j] - pairs[i, j][:, None]) * basis(k - 2)
            if k >= 3:
                term = term - (k - 2) * (C[i][:, None] * nu[j] + C[j][:, None] * nu[i]) * basis(k - 3)
            if k >= 4:
                term = term + (k - 2) * (k - 3) * (C[i] * C[j])[:, None] * basis(k - 4)
            out[k - 2, :, i, j] = np.einsum("thl,hl->th", case.omega, self.d[:, k, None] * term)
        return out, names
