"""What every measured model is behind one Protocol: a batch goes in; attention, hidden states and output come out, padding as zeros."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from oplens.errors import ArgumentError, DataError

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


@dataclass(frozen=True)
class Recording:
    """One batch through a model, in evaluation mode, without gradients; padding is 0 everywhere.

    Attributes
    ----------
    mask : Tensor, (batch, length) bool
        True at real positions.
    attentions : tuple of Tensor or None, each (batch, n_heads, length, length)
        One entry per layer, None where a layer has no attention; () when the model has none at all.
    hidden : tuple of n_layers + 1 Tensor, each (batch, length, d_model)
        The embedding, then what stands after each layer.
    output : Tensor, (batch, length, n) or (batch, n)
        At every position, or one answer per case; the last hidden state of a model without a head.
    """

    mask: Tensor
    attentions: tuple[Tensor | None, ...]
    hidden: tuple[Tensor, ...]
    output: Tensor


class Recorder(Protocol):
    """A model that can be measured.

    Attributes
    ----------
    name : str
        Of its folder or class, for titles.
    kind : {"tokens", "series"}
        Integers (batch, length), or real inputs (batch, length, d_input).
    causal : bool
        What stands at a position depends on it and the past only.
    predicts_next : bool
        output[:, t] are logits of token t + 1.
    vocabulary, max_length, d_input : int or None
    facts : Mapping
        JSON-ready: architecture, parameters (tied ones once), sizes, dtype, kind of attention.
    notes : tuple of str
        Sentences that a reader of the measurements has to know.
    module : nn.Module
        Frozen, in evaluation mode; its named_parameters are what :meth:`apply` takes.
    """

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def kind(self) -> Literal["tokens", "series"]: ...  # noqa: D102
    @property
    def n_layers(self) -> int: ...  # noqa: D102
    @property
    def causal(self) -> bool: ...  # noqa: D102
    @property
    def predicts_next(self) -> bool: ...  # noqa: D102
    @property
    def vocabulary(self) -> int | None: ...  # noqa: D102
    @property
    def max_length(self) -> int | None: ...  # noqa: D102
    @property
    def d_input(self) -> int | None: ...  # noqa: D102
    @property
    def facts(self) -> Mapping[str, Any]: ...  # noqa: D102
    @property
    def notes(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def module(self) -> nn.Module: ...  # noqa: D102

    def record(self, x: Tensor, mask: Tensor | None = None) -> Recording:
        """Run a batch, (batch, length) integers or (batch, length, d_input) numbers; mask (batch, length), True where real."""
        ...

    def visible(self, layer: int, length: int) -> Tensor | None:
        """What attention layer `layer` sees beyond what `causal` says, (length, length) bool; None: everything."""
        ...

    def apply(self, parameters: Mapping[str, Tensor] | None, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Output alone, with other values of `module.named_parameters()`; differentiable in them, also forward and under vmap."""
        ...


@dataclass(frozen=True)
class Packing:
    """A padded batch with every case moved to the front and cut to the longest: what comes back stands where the caller had it.

    Models disagree on left padding (positions, pooling, windows); none does once real positions come first.

    Attributes
    ----------
    mask : Tensor, (batch, length) bool
    start : Tensor, (batch,) int64
        First real position of each case.
    lengths : Tensor, (batch,) int64

    Examples
    --------
    >>> x = torch.tensor([[0, 0, 7, 8], [0, 4, 5, 6]])
    >>> packing = Packing.of("record", x, x > 0)
    >>> packing.pack(x, 0).tolist()
    [[7, 8, 0], [4, 5, 6]]
    >>> packing.unpack(torch.tensor([[[1.0], [2.0], [9.0]], [[3.0], [4.0], [5.0]]]))[..., 0].tolist()
    [[0.0, 0.0, 1.0, 2.0], [0.0, 3.0, 4.0, 5.0]]
    """

    mask: Tensor
    start: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, call: str, x: Tensor, mask: Tensor | None) -> "Packing":
        """Of a mask, True or 1 where a position is real; None: everywhere.

        Raises
        ------
        ArgumentError
            If the mask has another shape, other values, a case without real positions, or one with gaps.
        """
        batch, length = x.shape[:2]
        if mask is None:
            mask = torch.ones(batch, length, dtype=torch.bool, device=x.device)
        if mask.shape != x.shape[:2]:
            raise ArgumentError(
                f"{call}(mask of shape {tuple(mask.shape)}): expected (batch, length) = {tuple(x.shape[:2])}."
            )
        if mask.dtype != torch.bool and not bool(((mask == 0) | (mask == 1)).all()):
            raise ArgumentError(
                f"{call}(mask of {mask.dtype}): give booleans or 0 and 1, 1 where a position is real; this looks like an additive mask."
            )
        mask = mask.to(x.device, torch.bool)
        lengths, start = mask.sum(-1), mask.to(torch.int64).argmax(-1)
        if not bool(lengths.all()):
            case = int((lengths == 0).nonzero()[0])
            raise ArgumentError(f"{call}(mask): case {case} has no real position; leave it out.")
        position = torch.arange(length, device=x.device)
        whole = (position >= start[:, None]) & (position < (start + lengths)[:, None])
        if not torch.equal(whole, mask):
            case = int((whole != mask).any(-1).nonzero()[0])
            raise ArgumentError(
                f"{call}(mask): case {case} has padding between its real positions; padding may stand before or after them only."
            )
        return cls(mask, start, lengths)

    @property
    def longest(self) -> int:
        """Length of the longest case."""
        return int(self.lengths.max())

    @property
    def packed_mask(self) -> Tensor:
        """(batch, longest) bool, True before each case's length."""
        return torch.arange(self.longest, device=self.lengths.device) < self.lengths[:, None]

    @property
    def plain(self) -> bool:
        """Nothing is padding."""
        return bool(self.mask.all())

    def pack(self, x: Tensor, fill: float = 0) -> Tensor:
        """(batch, length, ...) to (batch, longest, ...), `fill` in place of padding, whatever stood there."""
        if self.plain:
            return x
        rows = torch.arange(len(x), device=x.device)[:, None]
        position = torch.arange(self.longest, device=x.device) + self.start[:, None]
        found = x[rows, position.clamp(max=x.shape[1] - 1)]
        keep = self.packed_mask.reshape(*self.packed_mask.shape, *(1,) * (x.ndim - 2))
        # Selected, not multiplied: padding may hold NaN, and 0 * NaN is NaN.
        return torch.where(keep, found, fill)

    def unpack(self, packed: Tensor) -> Tensor:
        """(batch, longest, ...) to (batch, length, ...), 0 at padding."""
        if self.plain:
            return packed
        rows, columns = self._back()
        keep = self.mask.reshape(*self.mask.shape, *(1,) * (packed.ndim - 2))
        return torch.where(keep, packed[rows, columns], 0)

    def unpack_pairs(self, packed: Tensor) -> Tensor:
        """(batch, n_heads, longest, longest) to (batch, n_heads, length, length), 0 in rows and columns of padding."""
        if self.plain:
            return packed
        rows, columns = self._back()
        found = packed.transpose(1, 3)[rows[:, :, None], columns[:, :, None], columns[:, None, :]]
        # Axes of `packed` after the exchange: key, query, head; picked pairs stand as (key, query).
        keep = self.mask[:, :, None] & self.mask[:, None, :]
        return torch.where(keep[..., None], found, 0).permute(0, 3, 2, 1)

    def _back(self) -> tuple[Tensor, Tensor]:
        length = self.mask.shape[1]
        rows = torch.arange(len(self.mask), device=self.mask.device)[:, None]
        position = torch.arange(length, device=self.mask.device) - self.start[:, None]
        return rows, position.clamp(0, self.longest - 1)


def check_tokens(call: str, x: Tensor, mask: Tensor | None, vocabulary: int, max_length: int | None) -> Packing:
    """Refuse what are no tokens of this model, before it runs."""
    if x.ndim != 2 or 0 in x.shape:
        raise ArgumentError(f"{call}(x of shape {tuple(x.shape)}): expected (batch >= 1, length >= 1) tokens.")
    if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        raise ArgumentError(f"{call}(x of {x.dtype}): tokens are integers.")
    packing = Packing.of(call, x, mask)
    real = x[packing.mask]
    low, high = int(real.min()), int(real.max())
    if low < 0 or high >= vocabulary:
        raise DataError(
            f"{call}(x): tokens from {low} to {high}, the model's vocabulary is 0 to {vocabulary - 1}; these are tokens of another "
            "tokenizer, or padding that the mask does not say."
        )
    check_length(call, packing, max_length)
    return packing


def check_numbers(call: str, x: Tensor, mask: Tensor | None, d_input: int, max_length: int | None) -> Packing:
    """Refuse what are no real inputs of this model, before it runs."""
    if x.ndim != 3 or 0 in x.shape or x.shape[-1] != d_input:
        raise ArgumentError(
            f"{call}(x of shape {tuple(x.shape)}): expected (batch >= 1, length >= 1, d_input={d_input})."
        )
    if x.is_complex() or x.dtype == torch.bool:
        raise ArgumentError(f"{call}(x of {x.dtype}): give real numbers.")
    packing = Packing.of(call, x, mask)
    bad = ~torch.isfinite(x) & packing.mask[..., None]
    if bool(bad.any()):
        case, step, channel = (int(i) for i in bad.nonzero()[0])
        raise DataError(
            f"{call}(x): NaN or infinite values outside the padding, first in case {case}, position {step}, input {channel}; "
            "every number of that case would become NaN. Mend or leave out the case, or mark what is padding in the mask."
        )
    check_length(call, packing, max_length)
    return packing


def check_length(call: str, packing: Packing, max_length: int | None) -> None:
    """Refuse cases longer than the model's positions reach."""
    if max_length is not None and packing.longest > max_length:
        raise DataError(
            f"{call}: a case has {packing.longest} positions, the model was made for at most {max_length}; cut the cases, e.g. into "
            f"pieces of {max_length}."
        )


def check_shift(call: str, packing: Packing, pattern: Tensor | None) -> None:
    """Refuse padding before the tokens where a pattern (length, length) counts positions from the first: it would not fit the batch."""
    if pattern is not None and bool(packing.start.any()) and not torch.equal(pattern[1:, 1:], pattern[:-1, :-1]):
        raise ArgumentError(
            f"{call}(mask): padding stands before the real positions, and what attention sees depends on the count from the first one "
            "(blocks or chunks); pad after the real positions."
        )


def count_parameters(module: nn.Module) -> int:
    """Trainable numbers, tied ones once."""
    return sum(parameter.numel() for parameter in module.parameters())


def chosen_parameters(call: str, module: nn.Module, parameters: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """The parameters to run with: those given, the module's own in place of those that are not; unknown names are refused."""
    own: dict[str, Tensor] = dict(module.named_parameters())
    unknown = sorted(set(parameters or ()) - set(own))
    if unknown:
        raise ArgumentError(
            f"{call}(parameters): {unknown[0]!r} is none of module.named_parameters(), such as {next(iter(own))!r}."
        )
    return {**own, **(parameters or {})}


def check_dtype(call: str, dtype: str, allowed: tuple[str, ...] = tuple(DTYPES)) -> torch.dtype:
    """The torch dtype of a name."""
    if dtype not in allowed:
        raise ArgumentError(f"{call}(dtype={dtype!r}): choose one of {', '.join(allowed)}.")
    return DTYPES[dtype]


def check_layer(call: str, layer: int, n_layers: int, length: int) -> None:
    """Refuse a layer or a length that is none; layers count from 0 here."""
    if not 0 <= layer < n_layers or length < 1:
        raise ArgumentError(
            f"{call}(layer={layer}, length={length}): layers are 0 to {n_layers - 1}, lengths at least 1."
        )
