"""Invented certificates of 40 cases, with every number chosen so that a reader of the page can be checked."""

import numpy as np
import xarray as xr

RADII = np.array([0.0, 0.01, 0.02, 0.05])
ORDERS = np.array([1, 2, 8])


def certificates(labelled=True, units="standard deviations", names=("left", "right")):
    rng = np.random.default_rng(0)
    robust = np.sort(rng.uniform(0.004, 0.04, 40))
    flipped = robust * rng.uniform(1.5, 3.0, 40)
    flipped[5] = np.inf
    predicted = np.array([names[k % 2] for k in range(40)], dtype=object)
    held = robust[:, None] >= RADII
    truncated = robust * np.array([[0.2], [0.5], [0.9]])
    truncated[0, :15] = 0
    certified = truncated[..., None] >= RADII
    certified[0, :15] = False
    first = np.where(certified.any(0), ORDERS[certified.argmax(0)], 0)
    bound = {"units": "1", "claim": "bound"}
    variables = {
        "robust": (("case", "radius"), held, {**bound, "long_name": "robust"}),
        "robust_radius": ("case", robust, {**bound, "units": units, "long_name": "certified radius"}),
        "robust_fraction": ("radius", held.mean(0), {**bound, "long_name": "robust share"}),
        "truncated_radius": (("order", "case"), truncated, {**bound, "units": units, "long_name": "certified radius"}),
        "flipped_radius": ("case", flipped, {"units": units, "claim": "measured", "long_name": "flipped"}),
        "certified_order": (("case", "radius"), first, {**bound, "long_name": "order"}),
        "certified_fraction": (("order", "radius"), certified.mean(1), {**bound, "long_name": "certified share"}),
        "half_width": ("channel", [2.0, 5.0], {"units": "as in the data", "claim": "exact", "long_name": "half width"}),
    }
    coords = {
        "case": np.arange(100, 140),
        "predicted": ("case", predicted),
        "radius": ("radius", RADII, {"units": units}),
        "order": ORDERS,
        "channel": ["C3", "C4"],
    }
    if labelled:
        label = predicted.copy()
        label[:4] = predicted[1:5]
        coords["label"] = ("case", label)
    attrs = {
        "family": "hermite",
        "set": "box around each case",
        "global_box": "For all inputs together nothing is known.",
    }
    return xr.Dataset(variables, coords=coords, attrs=attrs)
