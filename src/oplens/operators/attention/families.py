"""What an attention layer is, apart from its weights: one frozen dataclass per family, and the table in which they are looked up."""

import dataclasses
import numbers
from dataclasses import dataclass
from typing import Any, ClassVar

from oplens.errors import ArgumentError


@dataclass(frozen=True)
class Family:
    """Base of the attention families; `refuses_causal` is the reason why a family cannot be causal, "" where it can."""

    name: ClassVar[str]
    refuses_causal: ClassVar[str] = ""
    shares_queries: ClassVar[bool] = False

    def for_layer(self, index: int) -> "Family":
        """The same family with the draws of layer `index`: what one layer misses by bad luck, another need not."""
        return self


@dataclass(frozen=True)
class Softmax(Family):
    """Exact attention: softmax(scale q k^T) v.

    Examples
    --------
    >>> Softmax()
    Softmax()
    """

    name = "softmax"


@dataclass(frozen=True)
class Performer(Family):
    """Positive random features with the normaliser, in linear cost (see :mod:`oplens.operators.attention.performer`).

    Parameters
    ----------
    n_features : int
        m; shared by heads.
    seed : int
    orthogonal : bool
        Directions orthogonal within blocks of d_head features: never a larger variance than independent ones.
    """

    name = "performer"
    n_features: int = 64
    seed: int = 0
    orthogonal: bool = True

    def __post_init__(self) -> None:
        _check_integers(self, n_features=1, seed=0)
        _check_flag(self, "orthogonal")

    def for_layer(self, index: int) -> "Performer":
        """The same with other features in every layer."""
        return dataclasses.replace(self, seed=self.seed + index)


@dataclass(frozen=True)
class Linformer(Family):
    """Keys and values averaged over `rank` groups of positions (see :mod:`oplens.operators.attention.linformer`).

    Parameters
    ----------
    rank : int
        Groups; as many as there are positions make it exact.
    seed : int
    """

    name = "linformer"
    refuses_causal = (
        "every projected key mixes all positions, later ones too, so no mask can hide the future; "
        "use Softmax, Performer, Reformer or BigBird in a decoder"
    )
    rank: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        _check_integers(self, rank=1, seed=0)

    def for_layer(self, index: int) -> "Linformer":
        """The same with other groups in every layer."""
        return dataclasses.replace(self, seed=self.seed + index)


@dataclass(frozen=True)
class Reformer(Family):
    """Shared-query-key attention within buckets of a locality-sensitive hash (see :mod:`oplens.operators.attention.reformer`).

    Parameters
    ----------
    n_hashes : int
        Rounds; two positions meet when any round puts them into one bucket.
    bucket_size : int
        Mean positions per bucket; a sequence no longer than this has one bucket, and is attended to whole.
    seed : int
    """

    name = "reformer"
    shares_queries = True
    n_hashes: int = 4
    bucket_size: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        _check_integers(self, n_hashes=1, bucket_size=1, seed=0)

    def for_layer(self, index: int) -> "Reformer":
        """The same with other rotations in every layer."""
        return dataclasses.replace(self, seed=self.seed + index)


@dataclass(frozen=True)
class BigBird(Family):
    """Window, global and random blocks of keys, in linear cost (see :mod:`oplens.operators.attention.bigbird`).

    Parameters
    ----------
    window : int
        Odd number of neighbouring blocks, the query's own in the middle; a causal layer sees the first half of it.
    n_global : int
        First blocks, which all positions see and which see all positions.
    n_random : int
        Random blocks per block of queries, outside of its window and the global ones; in a causal layer among earlier blocks.
    seed : int
    block_size : int
        Positions per block; 1 chooses single positions, at a higher cost per visible key.
    """

    name = "bigbird"
    window: int = 3
    n_global: int = 1
    n_random: int = 1
    seed: int = 0
    block_size: int = 16

    def __post_init__(self) -> None:
        _check_integers(self, window=1, n_global=0, n_random=0, seed=0, block_size=1)
        if self.window % 2 == 0:
            raise ArgumentError(
                f"BigBird(window={self.window}): the query's own block stands in the middle, so the number of blocks is odd; "
                f"give {self.window - 1} or {self.window + 1}."
            )

    def for_layer(self, index: int) -> "BigBird":
        """The same with other random blocks in every layer."""
        return dataclasses.replace(self, seed=self.seed + index)


EXACT = Softmax()
FAMILIES: dict[str, type[Family]] = {
    family.name: family for family in (Softmax, Performer, Linformer, Reformer, BigBird)
}


def family_to_dict(family: Family) -> dict[str, Any]:
    """A JSON-ready dictionary: the family's name under "family", and its parameters.

    Examples
    --------
    >>> family_to_dict(Reformer(n_hashes=2))
    {'family': 'reformer', 'n_hashes': 2, 'bucket_size': 32, 'seed': 0}
    """
    return {"family": family.name, **dataclasses.asdict(family)}


def family_from_dict(values: dict[str, Any]) -> Family:
    """Build the family that :func:`family_to_dict` described.

    Raises
    ------
    ArgumentError
        If the family or a parameter is unknown, or a value cannot work.
    """
    values = dict(values)
    name = values.pop("family", None)
    if not isinstance(name, str) or name not in FAMILIES:
        raise ArgumentError(f"attention family {name!r} is unknown; choose one of {', '.join(FAMILIES)}.")
    known = [field.name for field in dataclasses.fields(FAMILIES[name])]
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise ArgumentError(
            f"attention family {name!r} has no {', '.join(unknown)}; its parameters are {', '.join(known) or 'none'}."
        )
    return FAMILIES[name](**values)


def _check_integers(family: Family, **least: int) -> None:
    kind = type(family).__name__
    for name, lowest in least.items():
        value = getattr(family, name)
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise ArgumentError(f"{kind}({name}={value!r}): expected an integer.")
        object.__setattr__(family, name, int(value))
        if not lowest <= int(value) < 2**31:
            raise ArgumentError(f"{kind}({name}={value}): must be at least {lowest} and below 2^31.")


def _check_flag(family: Family, name: str) -> None:
    value = getattr(family, name)
    if not isinstance(value, bool):
        raise ArgumentError(f"{type(family).__name__}({name}={value!r}): give True or False.")
