"""What a result may hold: `docs/schema.md` as tables of variables and their dimensions, group by group."""

CLAIMS = ("exact", "conditional", "truncated", "bound", "fitted", "measured")

PART_DIMENSIONS = ("feature", "wave", "channel", "band", "window")

_SINGLE = (
    *("case", "class", "channel", "band", "window", "feature", "wave", "pair", "order", "time", "lag", "site", "layer"),
    *("head", "token", "radius", "epoch", "seed", "subject", "source", "baseline", "rank", "quantity"),
    *("stimulus", "wavenumber", "displacement", "n_waves", "position", "position_2"),
    *("layer_2", "token_2", "neuron", "sigma"),
)
DIMENSIONS = (*_SINGLE, *(f"{name}_2" for name in (*PART_DIMENSIONS, "source")))

# `[class]` may be absent; `*parts` are the partition's dimensions, `*parts_2` those of the second member.
_PARTITION = {
    "share": "order case [class] *parts",
    "source_share": "order case [class] source",
    "order_0": "case [class]",
    "remainder": "case [class]",
    "full_share": "case [class] *parts",
    "source_full_share": "case [class] source",
    "full_constant": "case [class]",
    "target": "case [class]",
    "logits": "case class",
    "truncated_logits": "order case class",
    "sum_abs_terms": "case [class]",
    "completeness_residual": "case [class]",
    "cancellation_ratio": "case [class]",
    "layer_share": "case [class] layer feature wave",
    "layer_skip_share": "case [class] layer feature",
    "residual_share": "case [class]",
    "constant": "case [class]",
    "centre": "feature",
    "scale": "feature",
}
_SUMMARY = {
    **dict.fromkeys(("accuracy", "relative_accuracy", "agreement", "margin_r2"), "order"),
    **dict.fromkeys(("model_accuracy", "channel_mean_r2", "completeness", "cancellation"), ""),
    "accuracy_beyond_means": "quantity",
}
_BASELINES = {"accuracy": "baseline", "cv_accuracy": "baseline", "model_accuracy": ""}
_INPUTS = {"signal": "case channel time"}

_RING = {
    "envelope": "case feature site time",
    "drive": "case feature time",
    "ring_residual": "case feature",
    **dict.fromkeys(("coupling", "coupling_before"), "feature displacement"),
    **dict.fromkeys(("injection", "readout", "site_lag", "peak_lag"), "feature site"),
    **dict.fromkeys(("frequency", "decay", "phase_velocity", "group_velocity"), "feature wavenumber"),
    **dict.fromkeys(("frequency_before", "decay_before", "phase_velocity_before"), "feature wavenumber"),
    **dict.fromkeys(("group_velocity_before", "frequency_change", "decay_ratio"), "feature wavenumber"),
    **dict.fromkeys(("wavenumber_mode", "conjugated", "aliased"), "feature wavenumber"),
    **dict.fromkeys(("velocity", "velocity_before", "revolution", "resolution", "energy_left"), "feature"),
    **dict.fromkeys(("lag_agreement", "lag_miss", "delay_low", "delay_high", "largest_rate"), "feature"),
    **dict.fromkeys(("phase_delay", "mean_share"), "feature"),
}
_RAY = {
    **dict.fromkeys(("ray_order", "ray_error", "power_order"), "order case [class]"),
    **dict.fromkeys(("model_course", "expansion_course"), "position case [class]"),
    **dict.fromkeys(("remainder", "target", "sum_abs_terms", "completeness_residual"), "case [class]"),
    "cancellation_ratio": "case [class]",
    "logits": "case class",
    **dict.fromkeys(("convergence_radius", "growth_radius"), "case"),
}
_ACCURACIES = ("accuracy_gaussian", "accuracy", "accuracy_lower_bound", "accuracy_upper_bound")
_DISCRIMINATION = {
    **dict.fromkeys(("target_mean", "target_variance", "target_variance_bound", *_ACCURACIES), "stimulus"),
    "variance_by_order": "order stimulus",
    **dict.fromkeys(("class_mean", "class_variance", *(f"class_{name}" for name in _ACCURACIES)), "class"),
    **dict.fromkeys((*(f"balanced_{name}" for name in _ACCURACIES), "gaussian_correction"), ""),
    **dict.fromkeys((f"simulated_{n}{e}" for n in ("mean", "variance", "accuracy") for e in ("", "_error")), "class"),
    "simulated_target": "class case",
}
_SWEEP = {
    **dict.fromkeys(("target_mean", "target_variance", "target_variance_bound", "phase_variance"), "stimulus [class]"),
    **dict.fromkeys(("probability_towards", "simulated_share_towards"), "stimulus"),
    **dict.fromkeys((f"simulated_{n}{e}" for n in ("mean", "variance") for e in ("", "_error")), "stimulus [class]"),
}
_KERNELS = {
    "h1": "[class] channel time",
    **dict.fromkeys(("linear_gain", "square_gain"), "[class] channel stimulus"),
    "h2_size": "[class] channel channel_2",
    "h2": "[class] pair position position_2",
}
_CERTIFICATES = {
    **dict.fromkeys(("robust", "margin_lower_bound", "certified_order"), "case radius"),
    **dict.fromkeys(("robust_radius", "flipped_radius", "margin"), "case"),
    "robust_fraction": "radius",
    "certified_fraction": "order radius",
    "truncated_radius": "order case",
    **dict.fromkeys(("truncated_margin_lower_bound", "remainder_bound"), "order case radius"),
    "half_width": "channel",
}
_SMALLER = ("accuracy", "agreement", "margin_r2")
_REDUCTION = {
    **dict.fromkeys((*_SMALLER, *(f"refitted_{name}" for name in _SMALLER)), "n_waves"),
    **dict.fromkeys(("n_parameters", "n_features", "n_skips"), "n_waves"),
    **dict.fromkeys(("model_accuracy", "model_parameters"), ""),
    **dict.fromkeys(("importance", "frequency", "decay_time"), "rank"),
}

_MEANS = ("entropy_sum", "entropy", "normalised_entropy", "distance", "first_mass", "previous_mass")
_RANKS = ("effective_rank", "relative_rank", "stable_rank", "numerical_rank", "eigenvalue_effective_rank", "undefined")
_ENDS = ("", "_error", "_low", "_high")
_ATTENTION = dict.fromkeys(
    (*(f"{name}{end}" for name in (*_MEANS, *_RANKS) for end in _ENDS), "n_rows", "n_left_out"), "layer head"
)
_REPRESENTATIONS = dict.fromkeys(
    (
        *("d_int", "d_int_centred", "participation_ratio", "participation_ratio_corrected", "effective_rank"),
        *("stable_rank", "numerical_rank", "n_points", "two_nn", "two_nn_likelihood", "two_nn_low", "two_nn_high"),
        *("mle", "mle_error", "n_sampled", "n_repeated"),
    ),
    "layer",
)
_SIMILARITY = {**dict.fromkeys(("cka", "cka_unbiased"), "layer layer_2"), "n_points": ""}
_PREDICTIONS = dict.fromkeys(
    (
        *("perplexity", "perplexity_low", "perplexity_high", "loss", "loss_error", "n_predictions"),
        *("bits_per_byte", "bits_per_byte_error", "n_bytes", "accuracy", "accuracy_low", "accuracy_high", "n_cases"),
    ),
    "",
)
_ATTENTION_MAPS = {"weight": "rank token token_2"}
_ERRORS = dict.fromkeys(
    (
        *("eam", "eam_error", "eam_low", "eam_high", "largest", "exceedance", "largest_case", "target_size"),
        *("agreement", "agreement_error", "n_cases"),
    ),
    "",
)
_NEURAL = {
    **dict.fromkeys(("predictivity", "normalised_predictivity", "alpha"), "layer neuron"),
    "noise_ceiling": "neuron",
    **dict.fromkeys(("mean_predictivity", "median_normalised_predictivity", "null_mean"), "layer"),
    **dict.fromkeys(("p_value", "p_value_corrected", "mean_predictivity_low", "mean_predictivity_high"), "layer"),
    **dict.fromkeys((f"difference_to_best{end}" for end in ("", "_low", "_high")), "layer"),
    **dict.fromkeys(("n_stimuli", "n_repeats"), ""),
}
_ROBUSTNESS = {
    **dict.fromkeys((*(f"deviation{end}" for end in _ENDS), "first_order", "first_order_error"), "sigma"),
    **dict.fromkeys(("first_order_bound", "remainder", "paper_claim"), "sigma"),
    **dict.fromkeys(
        (
            *("slope", "slope_low", "slope_high", "first_order_slope", "first_order_slope_error", "jacobian_norm"),
            *("jacobian_norm_error", "linear_until", "remainder_order", "remainder_order_low", "remainder_order_high"),
            *("lipschitz", "output_spread", "n_parameters"),
        ),
        "",
    ),
}

_CONSTRUCTION = {
    "construction": {
        **dict.fromkeys(("hidden_units", "n_heads", "nonzeros", "places"), "layer"),
        "error_part": "quantity",
        **dict.fromkeys(("error_bound", "width", "dense", "sparse"), ""),
    },
    "construction_margins": dict.fromkeys(("required", "delivered"), "rank"),
    "construction_checks": dict.fromkeys(("inputs", "errors", "largest_error"), "rank"),
    "construction_states": {
        **dict.fromkeys(("known", "wrong"), "case layer token token_2"),
        **dict.fromkeys(("used", "firing"), "case layer token"),
    },
    "construction_maps": {"weight": "case layer head token token_2"},
    "construction_terms": {
        "contribution": "case rank quantity",
        **dict.fromkeys(("rest", "constant", "answer", "wanted"), "case quantity"),
        "n_terms": "case",
    },
    "construction_slices": {**dict.fromkeys(("answer", "wanted", "error"), "rank position"), "largest_error": ""},
    "construction_surface": {"error": "position position_2"},
    "construction_kernels": {
        **dict.fromkeys(("wanted", "built"), "feature lag"),
        **dict.fromkeys(("wanted_gain", "built_gain"), "feature stimulus"),
        **dict.fromkeys(("norm", "error", "n_modes"), "feature"),
    },
    "construction_waves": dict.fromkeys(("decay_time", "frequency", "size"), "feature wave"),
}

# Variables and dimensions by kind of group; groups of one kind each are called by its name.
TABLES: dict[str, dict[str, str]] = {
    "partition": _PARTITION,
    "pairs": {},
    "summary": _SUMMARY,
    "baselines": _BASELINES,
    "inputs": _INPUTS,
    "ring": _RING,
    "ray": _RAY,
    "certificates": _CERTIFICATES,
    "kernels": _KERNELS,
    "reduction": _REDUCTION,
    "discrimination": _DISCRIMINATION,
    "sweep": _SWEEP,
    "attention": _ATTENTION,
    "representations": _REPRESENTATIONS,
    "similarity": _SIMILARITY,
    "predictions": _PREDICTIONS,
    "attention_maps": _ATTENTION_MAPS,
    "errors": _ERRORS,
    "neural": _NEURAL,
    "robustness": _ROBUSTNESS,
    **_CONSTRUCTION,
}
# Any one of these lines of variables makes the group complete.
REQUIRED: dict[str, tuple[tuple[str, ...], ...]] = {
    "partition": (("target", "share", "order_0", "remainder"), ("target", "full_share"), ("target", "layer_share")),
    "pairs": (("pair_share",),),
    "summary": (("agreement",), ("model_accuracy",), ("completeness",)),
    "baselines": (("accuracy",), ("cv_accuracy",)),
    "inputs": (("signal",),),
    "ring": (("envelope", "drive", "velocity", "revolution", "frequency"),),
    "certificates": (("robust_radius", "certified_fraction"),),
    "kernels": (("h1",),),
    "reduction": (("agreement", "margin_r2"),),
    "ray": (("ray_order", "ray_error", "target", "remainder"),),
    "discrimination": (("class_accuracy", "target_mean"),),
    "sweep": (("target_mean", "target_variance"),),
    "attention": (("entropy", "distance", "effective_rank"),),
    "representations": (("d_int", "participation_ratio", "n_points"),),
    "similarity": (("cka",),),
    "predictions": (("perplexity", "n_predictions"), ("accuracy", "n_cases")),
    "attention_maps": (("weight",),),
    "errors": (("eam", "largest", "n_cases"),),
    "neural": (("predictivity", "mean_predictivity"),),
    "robustness": (("deviation", "first_order", "remainder", "paper_claim"),),
    "construction": (("hidden_units", "error_bound"),),
    "construction_margins": (("required", "delivered"),),
    "construction_checks": (("inputs", "largest_error"),),
    "construction_states": (("known", "used"),),
    "construction_maps": (("weight",),),
    "construction_terms": (("contribution", "answer", "wanted"),),
    "construction_slices": (("answer", "wanted", "error"),),
    "construction_surface": (("error",),),
    "construction_kernels": (("wanted", "built"),),
    "construction_waves": (("decay_time", "frequency"),),
}
