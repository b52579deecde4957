"""The S4D classifier at complex eps along a ray, in plain numpy: what Taylor coefficients and singularities are checked with."""

import numpy as np
import torch
from scipy.special import erf

from oplens.models import S4D, Preprocessing, S4DConfig


def ray_model(n_layers=1, prenorm=False, architecture="reference", n_classes=3, seed=0, drive=1.0, remove_offset=False):
    """A small model; `drive` scales what the input adds to the encoder's bias, and with it how far the power series reaches."""
    torch.manual_seed(seed)
    config = S4DConfig(
        2, n_classes, 4, 6, n_layers, architecture, prenorm, dt_min=0.05, dt_max=0.6, channels=("a", "b"),
        classes=tuple("xyz"[:n_classes]), sampling_rate=40.0,
        preprocessing=Preprocessing((0.2, -0.4), (1.3, 0.7), remove_offset),
    )  # fmt: skip
    model = S4D(config)
    model.encoder.weight.data *= drive
    torch.nn.init.normal_(model.encoder.bias)
    if architecture == "reference":
        for norm in model.norms:
            torch.nn.init.normal_(norm.weight, 1, 0.3)
            torch.nn.init.normal_(norm.bias, 0, 0.3)
    return model.double()


def ray_cases(seed=0, lengths=(19, 11, 14)):
    rng = np.random.default_rng(seed)
    return [rng.normal(0.5, 1.2, size=(2, n)) for n in lengths]


class RayNetwork:
    """One case along start + eps (raw - start), both (n_channels, length), at every eps of a path that begins at 0."""

    def __init__(self, model, raw, start):
        self.config = model.config
        self.p = {name: value.detach().double().numpy() for name, value in model.state_dict().items()}
        self.start, self.end = (self.preprocess(np.broadcast_to(v, raw.shape)) for v in (start, raw))

    def preprocess(self, raw):
        p = self.config.preprocessing
        if p.remove_offset:
            raw = raw - raw.mean(-1, keepdims=True)
        return ((raw - np.array(p.mean)[:, None]) / np.array(p.scale)[:, None]).T

    def response(self, layer, length):
        prefix = f"s4_layers.{layer}."
        C = self.p[prefix + "kernel.C"]
        pole = -np.exp(self.p[prefix + "kernel.log_A_real"]) + 1j * self.p[prefix + "kernel.A_imag"]
        x = pole * np.exp(self.p[prefix + "kernel.log_dt"])[:, None]
        weight = (C[..., 0] + 1j * C[..., 1]) * (np.exp(x) - 1) / pole
        response = np.stack([2 * (weight * np.exp(x * t)).sum(-1).real for t in range(length)])  # (L, H)
        response[0] += self.p[prefix + "D"]
        return response

    def norm(self, layer, hidden, seen):
        centred = hidden - hidden.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1) + 1e-5
        seen[f"LayerNorm of layer {layer}"] = variance
        # The branch that is positive at eps = 0, followed along the path.
        scale = np.sqrt(np.abs(variance)) * np.exp(0.5j * np.unwrap(np.angle(variance), axis=0))
        return self.p[f"norms.{layer}.weight"] * centred / scale[..., None] + self.p[f"norms.{layer}.bias"]

    def __call__(self, path, seen=None):
        """Logits (n_path, n_classes); `seen` collects the variances and the gates' denominators (n_path, ...)."""
        seen = {} if seen is None else seen
        path = np.asarray(path, dtype=complex)[:, None, None]
        hidden = (self.start + path * (self.end - self.start)) @ self.p["encoder.weight"].T + self.p["encoder.bias"]
        length = len(self.start)
        lag = np.arange(length)[:, None] - np.arange(length)[None]
        for layer in range(self.config.n_layers):
            u = self.norm(layer, hidden, seen) if self.config.prenorm else hidden
            toeplitz = np.where(lag[..., None] >= 0, self.response(layer, length)[np.maximum(lag, 0)], 0.0)
            z = np.einsum("ijh,njh->nih", toeplitz, u)
            active = z * (1 + erf(z / np.sqrt(2))) / 2
            if self.config.architecture == "plain":
                hidden = active
                continue
            prefix = f"s4_layers.{layer}.output_linear.0."
            mixed = active @ self.p[prefix + "weight"][..., 0].T + self.p[prefix + "bias"]
            value, gate = np.split(mixed, 2, axis=-1)
            denominator = 1 + np.exp(-gate)
            seen[f"gate of layer {layer}"] = denominator
            hidden = hidden + value / denominator
            if not self.config.prenorm:
                hidden = self.norm(layer, hidden, seen)
        return hidden.mean(1) @ self.p["decoder.weight"].T + self.p["decoder.bias"]

    def taylor(self, order, radius, points=64):
        """Coefficients 0..order of the logits by Cauchy's integral over abs(eps) = radius: (order + 1, n_classes)."""
        out = np.linspace(0, radius, 40)[:-1]
        circle = radius * np.exp(2j * np.pi * np.arange(points) / points)
        values = self(np.concatenate([out, circle]))[len(out) :]
        k = np.arange(order + 1)
        return (np.fft.fft(values, axis=0)[: order + 1] / points).real / radius ** k[:, None]

    def windings(self, radius, points=500):
        """Zeros inside abs(eps) = radius of every variance and gate denominator, by the argument principle: name -> count.

        What leaves double precision counts as one: it did so by growing without bound near a zero.
        """
        seen, out = {}, np.linspace(0, radius, 30)[:-1]
        circle = radius * np.exp(2j * np.pi * np.arange(points + 1) / points)
        with np.errstate(all="ignore"):
            self(np.concatenate([out, circle]), seen)
            found = {}
            for name, values in seen.items():
                angle = np.unwrap(np.angle(values), axis=0)[len(out) :]
                turns = np.round((angle[-1] - angle[0]) / (2 * np.pi))
                found[name] = int(np.abs(np.where(np.isfinite(turns), turns, 1)).sum())
        return found
