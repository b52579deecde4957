"""What a result file can hold of an operator besides partitions, each in groups of its own: pages show whichever are there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oplens.data import SequenceData
from oplens.errors import ArgumentError

if TYPE_CHECKING:
    import xarray as xr

    from oplens.explanation import ExplicitOperator

    Groups = dict[str, xr.Dataset]

FRAMES = 1000  # steps of a ring's trajectory that a file keeps
ABLATED = 24  # parts removed for the picture of ablations


@dataclass(frozen=True)
class Subject:
    """An operator and the cases its views are taken of; `cases` are those that a page shows one by one."""

    op: "ExplicitOperator"
    data: SequenceData
    labels: NDArray[np.str_] | None
    predicted: Sequence[str]
    cases: Sequence[int]

    def shown(self, count: int) -> list[int]:
        """The first shown cases of different predicted classes."""
        first: dict[str, int] = {}
        for case in self.cases:
            first.setdefault(self.predicted[case], case)
        return list(first.values())[:count]


def _ring(subject: Subject) -> "Groups":
    cases = subject.shown(2)
    every = -(-int(subject.data.lengths[cases].max()) // FRAMES)
    return {"ring": subject.op.ring(subject.data, cases=cases, every=every)}


def _certificates(subject: Subject) -> "Groups":
    return {"certificates": subject.op.certify(subject.data, subject.labels, radius=None)}


def _what_if(subject: Subject) -> "Groups":
    from oplens.explanation.interventions import what_if_groups

    return what_if_groups(subject.op.steer(subject.data, subject.labels), subject.cases)


def _ablation(subject: Subject) -> "Groups":
    return {"ablation": subject.op.ablate(subject.data, subject.labels, parts=ABLATED)}


def _kernels(subject: Subject) -> "Groups":
    from oplens.explanation import summarise_kernels

    return {"kernels": summarise_kernels(subject.op)}


def _reduction(subject: Subject) -> "Groups":
    return {"reduction": subject.op.reduction_curve(subject.data, subject.labels)}


def _ray(subject: Subject) -> "Groups":
    # The shown cases only: a radius takes up to seconds a case in deep stacks.
    cases = list(subject.cases)
    some = subject.data.select(cases)
    ray, radii = subject.op.ray(some), subject.op.convergence(some)
    both = {name: radii[name] for name in ("convergence_radius", "growth_radius")}
    return {"ray": ray.assign(both).assign_coords(nearest=radii["nearest"], case=cases)}


@dataclass(frozen=True)
class View:
    """How its groups are made, a line for the progress of it, which models have it, and whether a page has it unasked."""

    make: Callable[[Subject], "Groups"]
    words: str
    fits: Callable[["ExplicitOperator"], bool]
    unasked: bool


def _always(op: "ExplicitOperator") -> bool:
    return True


def _plain(op: "ExplicitOperator") -> bool:
    return op.model.config.architecture == "plain"


def _certifiable(op: "ExplicitOperator") -> bool:
    return _plain(op) and op.training.X is not None


def _deep(op: "ExplicitOperator") -> bool:
    return op.expansion is None


VIEWS: dict[str, View] = {
    "ring": View(_ring, "following rings", _always, unasked=True),
    "certificates": View(_certificates, "certifying decisions", _certifiable, unasked=True),
    "kernels": View(_kernels, "drawing kernels", _plain, unasked=True),
    "reduction": View(_reduction, "trying smaller models", _certifiable, unasked=True),
    "what_if": View(_what_if, "searching for the smallest changes that flip decisions", _always, unasked=False),
    "ablation": View(_ablation, "running the model without its largest waves", _plain, unasked=False),
    "ray": View(_ray, "following the ways from a baseline to the cases", _deep, unasked=True),
}


def default_views(op: "ExplicitOperator") -> list[str]:
    """Names of the views that a report holds when nothing else is asked for.

    Examples
    --------
    >>> import numpy as np
    >>> from oplens import S4D, S4DConfig, expand
    >>> default_views(expand(S4D(S4DConfig(d_input=1, n_classes=2, d_model=2, d_state=4)), np.ones((2, 1, 8))))
    ['ring', 'certificates', 'kernels', 'reduction']
    """
    if op.model.config.n_classes < 2:
        return []
    return [name for name, view in VIEWS.items() if view.unasked and view.fits(op)]


def check_views(op: "ExplicitOperator", names: Any, call: str) -> list[str]:
    """Known views that the model can have, or a sentence."""
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise ArgumentError(f"{call}(views={names!r}): give a list of names, of {', '.join(VIEWS)}.")
    unknown = [name for name in names if name not in VIEWS]
    if unknown:
        raise ArgumentError(f"{call}(views=...): {unknown[0]!r} is no view; choose from {', '.join(VIEWS)}.")
    config = op.model.config
    for name in names:
        if not VIEWS[name].fits(op) or config.n_classes < 2:
            raise ArgumentError(
                f"{call}(views=...): {name!r} is no view of this model ({config.architecture} architecture, {config.n_layers} "
                f"layer{'s' if config.n_layers > 1 else ''}, {config.n_classes} class{'es' if config.n_classes > 1 else ''}); it can have "
                f"{', '.join(n for n, v in VIEWS.items() if v.fits(op)) or 'none'}."
            )
    return list(dict.fromkeys(names))
