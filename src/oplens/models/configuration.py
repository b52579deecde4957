"""What a model is, apart from its weights: architecture, names and preprocessing, all of which travel with it."""

import dataclasses
import math
import numbers
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oplens.data.sequences import default_channels
from oplens.errors import ArgumentError
from oplens.operators import DISCRETISATIONS, INITIALISATIONS
from oplens.operators.trainable import initial_ring_poles, position_of
from oplens.operators.travel import delay_limits

ARCHITECTURES = ("plain", "reference")
READOUTS = ("gelu", "polynomial")
POOLINGS = ("mean", "none")
HIGHEST_DEGREE = 64  # beyond it powers of pre-activations leave double precision
LARGEST_SIZE = (
    2**20
)  # a larger one is a damaged file, and building it would take all memory before anything is compared


@dataclass(frozen=True)
class Preprocessing:
    """Affine preprocessing that belongs to the model: (x - mean) / scale per channel, after removing each case's own mean if asked.

    Parameters
    ----------
    mean, scale : tuple of float
        Per channel, in the units of the data.
    remove_offset : bool
        Subtract every case's own channel means (over its valid steps) first, so that only its oscillations are left.

    Examples
    --------
    >>> Preprocessing.identity(2)
    Preprocessing(mean=(0.0, 0.0), scale=(1.0, 1.0), remove_offset=False)
    """

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    remove_offset: bool = False

    def __post_init__(self) -> None:
        for name in ("mean", "scale"):
            object.__setattr__(self, name, _numbers(name, getattr(self, name)))
        if not isinstance(self.remove_offset, bool):
            raise ArgumentError(f"Preprocessing(remove_offset={self.remove_offset!r}): give True or False.")
        if len(self.mean) != len(self.scale):
            raise ArgumentError(
                f"Preprocessing: {len(self.mean)} means but {len(self.scale)} scales; give one of each per channel."
            )
        for name, values in (("mean", self.mean), ("scale", self.scale)):
            if not all(math.isfinite(v) for v in values):
                raise ArgumentError(
                    f"Preprocessing: {name} {values} is not finite; compute it from finite training data."
                )
        if any(v <= 0 for v in self.scale):
            raise ArgumentError(f"Preprocessing: scale {self.scale} must be positive in every channel.")

    @classmethod
    def identity(cls, n_channels: int) -> "Preprocessing":
        """No preprocessing: raw values enter the encoder."""
        return cls((0.0,) * n_channels, (1.0,) * n_channels)

    @classmethod
    def standardise(
        cls, X: NDArray[np.float64], lengths: NDArray[np.int64], remove_offset: bool = False
    ) -> "Preprocessing":
        """Mean and standard deviation (ddof 0) of all valid steps of X (n_cases, n_channels, n_timepoints); a constant channel keeps scale 1.

        Examples
        --------
        >>> import numpy as np
        >>> Preprocessing.standardise(np.array([[[0.0, 2.0]]]), np.array([2]))
        Preprocessing(mean=(1.0,), scale=(1.0,), remove_offset=False)
        """
        valid = np.arange(X.shape[-1])[None, None, :] < lengths[:, None, None]
        count = float(lengths.sum())
        largest = np.abs(X * valid).max((0, 2))
        if remove_offset:
            X = X - (X * valid).sum(-1, keepdims=True) / lengths[:, None, None]
            mean = np.zeros(X.shape[1])
        else:
            mean = (X * valid).sum((0, 2)) / count
        scale = np.sqrt((((X - mean[None, :, None]) * valid) ** 2).sum((0, 2)) / count)
        # A dead channel's spread is rounding of its mean; dividing by it would turn that noise into a signal. Compared with the
        # channel's own values: magnetometers record 1e-13 T and are alive.
        scale = np.where(scale > 1e-12 * largest, scale, 1.0)
        return cls(tuple(mean.tolist()), tuple(scale.tolist()), remove_offset)


@dataclass(frozen=True)
class S4DConfig:
    """Configuration of :class:`oplens.models.S4D`.

    Parameters
    ----------
    d_input, n_classes : int
        Input channels and logits.
    d_model, d_state : int
        Hidden features; state size per feature counting both members of every conjugate pair (even).
    n_layers : int
        Layers; the plain architecture has one.
    architecture : {"plain", "reference"}
        `plain`: logits = W mean_t GELU(z(t)) + bias. `reference`: the S4D repository's blocks with GLU, residual and LayerNorm.
    prenorm : bool
        LayerNorm before instead of after each block (reference architecture).
    discretisation : {"zoh", "bilinear"}
    dropout : float
    dt_min, dt_max : float
        Range of the initial step sizes.
    channels, classes : tuple of str
        Names; numbered when not given.
    sampling_rate : float, optional
        Hz. Without it frequencies are in cycles per step.
    preprocessing : Preprocessing, optional
        Identity when omitted.
    initialisation : {"lin", "inv", "real"}
        Poles before training: S4D-Lin, S4D-Inv or S4D-Real (see :mod:`oplens.operators.initialisation`).
    coupling : int, optional
        Train every feature as a ring of d_state sites that hear each other up to so many sites away, 1 to d_state / 2: the coupling
        weights, and no longer the poles, are parameters, and every wave decays whatever their values (see
        :mod:`oplens.operators.trainable`). They start from the initialisation, cut at this reach. None: poles are the parameters.
    phase_delay : float, optional
        Angle in radians that the sites of every ring first hear each other late by, poles times exp(-i phase_delay); learned
        afterwards, feature by feature, always inside the limits at which every wave decays. None: no delay. Rings may be delayed
        whether they are trained by their coupling or by their poles.
    readout : {"gelu", "polynomial"}
        What a pre-activation goes through. `polynomial`: sum_k polynomial[h, k] z^k, with coefficients of each feature's own that are
        parameters of the model; then the model is a finite Volterra series (plain architecture only).
    degree : int, optional
        Of the polynomial readout, 1 to 64; needed by it and by no other.
    pooling : {"mean", "none"}
        `mean` over time, one decision per case. `none`: one output per step, y(t) = W g(z(t)) + bias, as a filter gives (plain
        architecture only).

    Examples
    --------
    >>> S4DConfig(d_input=1, n_classes=2, d_state=16, coupling=2, phase_delay=0.01).ring_ordering
    'stored'
    >>> try:
    ...     S4DConfig(d_input=1, n_classes=2, d_state=16, phase_delay=0.1)
    ... except ArgumentError as error:
    ...     print(str(error).split(":")[0], "|", str(error).split(";")[1])
    S4DConfig(phase_delay=0.1) |  phases between -1.5708 and 0.0227325 keep every wave decaying.
    >>> S4DConfig(d_input=1, n_classes=1, readout="polynomial", degree=2, pooling="none").degree
    2
    """

    d_input: int
    n_classes: int
    d_model: int = 32
    d_state: int = 64
    n_layers: int = 1
    architecture: str = "plain"
    prenorm: bool = False
    discretisation: str = "zoh"
    dropout: float = 0.0
    dt_min: float = 0.001
    dt_max: float = 0.1
    channels: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    sampling_rate: float | None = None
    preprocessing: Preprocessing | None = None
    initialisation: str = "lin"
    coupling: int | None = None
    phase_delay: float | None = None
    readout: str = "gelu"
    degree: int | None = None
    pooling: str = "mean"

    def __post_init__(self) -> None:
        self._check_types()
        for name in ("d_input", "n_classes", "d_model", "n_layers", "d_state"):
            if not 1 <= getattr(self, name) <= LARGEST_SIZE:
                raise ArgumentError(
                    f"S4DConfig({name}={getattr(self, name)}): must be at least 1 and at most {LARGEST_SIZE}."
                )
        if self.d_state % 2:
            raise ArgumentError(
                f"S4DConfig(d_state={self.d_state}): d_state counts conjugate pairs, so it is even and at least 2."
            )
        if self.architecture not in ARCHITECTURES:
            raise ArgumentError(
                f"S4DConfig(architecture={self.architecture!r}): choose one of {', '.join(ARCHITECTURES)}."
            )
        if self.architecture == "plain" and (self.n_layers != 1 or self.prenorm):
            raise ArgumentError(
                f"S4DConfig(architecture='plain', n_layers={self.n_layers}, prenorm={self.prenorm}): the plain architecture has one "
                "layer and no norm; use architecture='reference' for stacks."
            )
        if self.discretisation not in DISCRETISATIONS:
            raise ArgumentError(
                f"S4DConfig(discretisation={self.discretisation!r}): choose one of {', '.join(DISCRETISATIONS)}."
            )
        if self.initialisation not in INITIALISATIONS:
            raise ArgumentError(
                f"S4DConfig(initialisation={self.initialisation!r}): choose one of {', '.join(INITIALISATIONS)}."
            )
        self._check_ring()
        self._check_readout()
        if not 0 <= self.dropout < 1:
            raise ArgumentError(f"S4DConfig(dropout={self.dropout}): must be at least 0 and below 1.")
        if not 0 < self.dt_min <= self.dt_max < math.inf:
            raise ArgumentError(f"S4DConfig(dt_min={self.dt_min}, dt_max={self.dt_max}): needs 0 < dt_min <= dt_max.")
        if self.sampling_rate is not None and not (math.isfinite(self.sampling_rate) and self.sampling_rate > 0):
            raise ArgumentError(
                f"S4DConfig(sampling_rate={self.sampling_rate}): give a positive rate in Hz, or None if unknown."
            )
        channels = tuple(self.channels) or default_channels(self.d_input)
        classes = tuple(self.classes) or tuple(f"class {i}" for i in range(self.n_classes))
        _check_names("channels", channels, self.d_input)
        _check_names("classes", classes, self.n_classes)
        preprocessing = self.preprocessing or Preprocessing.identity(self.d_input)
        if not isinstance(preprocessing, Preprocessing):
            raise ArgumentError(f"S4DConfig(preprocessing={preprocessing!r}): expected a Preprocessing or None.")
        if len(preprocessing.mean) != self.d_input:
            raise ArgumentError(
                f"S4DConfig: preprocessing holds {len(preprocessing.mean)} channels, the model has d_input={self.d_input}."
            )
        object.__setattr__(self, "channels", channels)
        object.__setattr__(self, "classes", classes)
        object.__setattr__(self, "preprocessing", preprocessing)

    def _check_types(self) -> None:
        for name in ("d_input", "n_classes", "d_model", "n_layers", "d_state"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, numbers.Integral):
                raise ArgumentError(f"S4DConfig({name}={value!r}): expected an integer.")
            object.__setattr__(self, name, int(value))
        for name in ("coupling", "degree"):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, numbers.Integral):
                raise ArgumentError(f"S4DConfig({name}={value!r}): expected an integer or None.")
            object.__setattr__(self, name, int(value))
        for name in ("dropout", "dt_min", "dt_max", "sampling_rate", "phase_delay"):
            value = getattr(self, name)
            if value is None and name in ("sampling_rate", "phase_delay"):
                continue
            if isinstance(value, bool) or not isinstance(value, numbers.Real):
                raise ArgumentError(f"S4DConfig({name}={value!r}): expected a number.")
            object.__setattr__(self, name, float(value))
        if not isinstance(self.prenorm, bool):
            raise ArgumentError(f"S4DConfig(prenorm={self.prenorm!r}): give True or False.")
        for name in ("channels", "classes"):
            value = getattr(self, name)
            if isinstance(value, str) or not isinstance(value, Iterable):
                raise ArgumentError(f"S4DConfig({name}={value!r}): give a sequence of names.")

    def _check_ring(self) -> None:
        if self.coupling is not None and not 1 <= self.coupling <= self.n_modes:
            raise ArgumentError(
                f"S4DConfig(coupling={self.coupling}): a ring of d_state={self.d_state} sites has neighbours 1 to {self.n_modes} sites "
                "away; choose one of these distances, or None to train the poles."
            )
        phase = self.phase_delay
        if phase is None:
            return
        if not math.isfinite(phase):
            raise ArgumentError(
                f"S4DConfig(phase_delay={phase}): give a finite angle in radians, or None for no delay."
            )
        poles = initial_ring_poles(self.initialisation, self.d_state, self.coupling)
        if position_of(poles, phase) is None:
            largest = float((poles.real * math.cos(phase) + poles.imag * math.sin(phase)).max())
            low, high = (float(limit) for limit in delay_limits(poles))
            start = "unstable" if largest > 0 else "too close to the limit to be learned from there"
            raise ArgumentError(
                f"S4DConfig(phase_delay={phase:g}): the rings would start {start}, their largest Re lambda would be {largest:.3g} "
                f"(initialisation={self.initialisation!r}, d_state={self.d_state}, coupling={self.coupling}); phases between "
                f"{low:.6g} and {high:.6g} keep every wave decaying."
            )

    def _check_readout(self) -> None:
        for name, known in (("readout", READOUTS), ("pooling", POOLINGS)):
            if getattr(self, name) not in known:
                raise ArgumentError(f"S4DConfig({name}={getattr(self, name)!r}): choose one of {', '.join(known)}.")
        if self.architecture != "plain":
            for name, value in (("readout", "polynomial"), ("pooling", "none")):
                if getattr(self, name) == value:
                    raise ArgumentError(
                        f"S4DConfig({name}={value!r}, architecture={self.architecture!r}): the reference architecture has GELU, gates, "
                        "norms and a mean over time, as its checkpoints do; use architecture='plain'."
                    )
        if self.readout == "gelu" and self.degree is not None:
            raise ArgumentError(
                f"S4DConfig(degree={self.degree}): only readout='polynomial' has a degree; give that, or leave degree out."
            )
        if self.readout == "polynomial" and (self.degree is None or not 1 <= self.degree <= HIGHEST_DEGREE):
            raise ArgumentError(
                f"S4DConfig(readout='polynomial', degree={self.degree}): give the polynomial's degree, 1 to {HIGHEST_DEGREE}."
            )

    @property
    def ring_ordering(self) -> str:
        """How modes stand on the rings: as "stored" where coupling was trained, else by "frequency" (:mod:`oplens.operators.ring`)."""
        return "frequency" if self.coupling is None else "stored"

    @property
    def n_modes(self) -> int:
        """Stored modes per feature, d_state / 2."""
        return self.d_state // 2

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dictionary; :meth:`from_dict` gives the same configuration back."""
        return {**dataclasses.asdict(self), "channels": list(self.channels), "classes": list(self.classes)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "S4DConfig":
        """Build from a dictionary such as :meth:`to_dict` returns.

        Raises
        ------
        ArgumentError
            If a key is unknown or missing, or a value cannot work.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ArgumentError(
                f"S4DConfig: unknown keys {', '.join(unknown)}; this version knows {', '.join(sorted(known))}."
            )
        missing = sorted({"d_input", "n_classes"} - set(values))
        if missing:
            raise ArgumentError(f"S4DConfig: key {missing[0]!r} is missing.")
        values = dict(values)
        try:
            if isinstance(values.get("preprocessing"), dict):
                values["preprocessing"] = Preprocessing(**values["preprocessing"])
            return cls(**values)
        except TypeError as error:
            raise ArgumentError(f"S4DConfig: a value has the wrong type ({error}).") from error


def _numbers(name: str, values: object) -> tuple[float, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ArgumentError(f"Preprocessing({name}={values!r}): give one number per channel.")
    values = tuple(values)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise ArgumentError(f"Preprocessing: {name} holds {value!r}, expected one number per channel.")
    return tuple(float(value) for value in values)


def _check_names(kind: str, names: tuple[str, ...], expected: int) -> None:
    if len(names) != expected:
        raise ArgumentError(
            f"S4DConfig: {len(names)} names of {kind} were given ({', '.join(map(str, names))}), the model has {expected}."
        )
    if not all(isinstance(name, str) for name in names):
        raise ArgumentError(f"S4DConfig: names of {kind} must be strings, got {names!r}.")
    if len(set(names)) != len(names):
        raise ArgumentError(f"S4DConfig: names of {kind} must differ, got {', '.join(names)}.")
