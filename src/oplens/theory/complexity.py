"""Complexity of tasks: the least parameters of a class of tasks, what sharing among tasks saves, and the memory one pass needs."""

import math
from collections.abc import Hashable, Sequence

from oplens.errors import ArgumentError
from oplens.theory.statement import Bound, Quantity, Stated, count, least_count, number, power

_DERIVED = "derived for this library by counting; the proof is in the docstring"


def crm_interval(log2_tasks: float, bits: int, found: int, fraction: float = 0.5) -> Bound:
    """Between which sizes the least number of parameters (CRM) that serves a class of tasks lies.

    ceil(log2(tasks)/b) <= CRM <= found: 2^(bP) models cannot serve more tasks than there are models, and `found` does serve them. A
    single task may need fewer; but at most 2^(bP) tasks have CRM <= P when every smaller model is also one of size P (zero padding), so
    all but a fraction q of the tasks have CRM >= floor((log2(tasks) + log2 q)/b) + 1.

    Parameters
    ----------
    log2_tasks : float
        log2 of the number of tasks, no two of which one model can serve: 2^n for all Boolean functions of n bits.
    bits : int
        b, bits per parameter.
    found : int
        Parameters of a family known to serve every task, all slots counted (:func:`lookup_size` for one).
    fraction : float
        q, in (0, 1).

    Returns
    -------
    Bound
        `parameters`, `parameters_upper`, `parameters_typical`.

    Raises
    ------
    ArgumentError
        If `found` is below the counting bound: such a family does not exist.

    Notes
    -----
    Accuracy: *bound*, all three; the upper end is as good as the search that found it. Cost: O(1).

    Examples
    --------
    >>> interval = crm_interval(log2_tasks=2.0**12, bits=16, found=20_000)
    >>> interval.value, interval["parameters_upper"], interval["parameters_typical"]
    (256, 20000, 256)
    """
    call = "crm_interval"
    tasks = number(call, "log2_tasks", log2_tasks, 0, open_below=True, meaning="log2 of the number of tasks")
    b, upper = count(call, "bits", bits), count(call, "found", found)
    q = number(call, "fraction", fraction, 0, 1, open_below=True)
    lower = max(1, least_count(tasks / b))
    if upper < lower:
        raise ArgumentError(
            f"{call}(found={upper}): {upper} parameters of {b} bits cannot serve 2^{tasks:g} tasks, {lower} is the least; "
            "either not every task is served or the parameters are longer."
        )
    typical = max(0, math.floor((tasks + math.log2(q)) / b * (1 - 1e-12)) + 1)
    return Bound(
        call,
        (
            Quantity("parameters", lower, "1", "bound", "least parameters by counting, for the worst task"),
            Quantity("parameters_upper", upper, "1", "bound", "parameters known to suffice for every task"),
            Quantity(
                "parameters_typical",
                typical,
                "1",
                "bound",
                f"least parameters for all but a fraction {q:g} of the tasks",
            ),
        ),
        "the least number of b-bit parameters that serves every task of a class lies between log2(tasks)/b and the best found",
        (
            "parameters each one of 2^b values, one fixed architecture",
            "no model serves two of the tasks (as with sup error < 1/2 on Boolean functions)",
            "`found` counts every parameter slot; for non-zeros alone use sparse_parameters",
            "for the typical task: models of size P contain the smaller ones",
        ),
        _DERIVED,
        Stated(
            "Definição 3 (CRM)",
            "the smallest N_min such that some T with N >= N_min parameters solves the task",
            (("N_min", 0.0),),
            "vacuous as printed: if any T solves the task then N_min = 0 satisfies it, and padding satisfies it for every N_min",
        ),
    )


def meta_approximation(length: int, vocabulary: int, tasks: int, values: int) -> Bound:
    """What f(x, task) = g_task(h(x)) costs with the shared h built once, and the least bits that any family needs.

    Shared: V^n units that name h(x), one for each input, and k units in each task. Separate: V^n units in each task. Below, with
    Boolean g and k' = min(k, V^n, 2^tasks): b P >= (V^n - k') log2 k' + sum_{i < k'} log2(2^tasks - i), because a table of tasks by
    inputs with at most k distinct columns has that many choices: any k' distinct columns for the first k' inputs, any of them after.

    Parameters
    ----------
    length, vocabulary : int
        n symbols from V; V^n inputs.
    tasks : int
        How many g.
    values : int
        k, the number of values of h: the order of meta-approximation, which the paper leaves unused.

    Returns
    -------
    Bound
        `units_shared`, `units_separate` (both suffice), `bits` (lower bound).

    Notes
    -----
    Accuracy: *bound*. Cost: O(k). About representation only: whether unseen tasks work is another question.

    Examples
    --------
    >>> bound = meta_approximation(length=8, vocabulary=2, tasks=50, values=4)
    >>> bound.value, bound["units_separate"], bound["bits"]
    (456, 12800, 704.0)
    """
    call = "meta_approximation"
    n, V = count(call, "length", length), count(call, "vocabulary", vocabulary, 2)
    inputs = power(call, V, n)
    t = count(call, "tasks", tasks, 1, 1000)
    k = count(call, "values", values, 1, 10**6, "number of values of the shared h")
    few = min(k, inputs, 2**t)
    bits = (inputs - few) * math.log2(few) + sum(math.log2(2**t - i) for i in range(few))
    return Bound(
        call,
        (
            Quantity("units_shared", inputs + k * t, "1", "bound", "hidden units that suffice with h shared"),
            Quantity(
                "units_separate", inputs * t, "1", "bound", "hidden units that suffice with a table for each task"
            ),
            Quantity("bits", bits, "bit", "bound", "fewest bits in all parameters of any family"),
        ),
        "f(x, task) = g_task(h(x)) with k values of h needs V^n + tasks k units shared, tasks V^n separate, and at least `bits` bits",
        (
            "every h with at most k values and every Boolean g_task",
            "sup error < 1/2",
            "for `bits`: one fixed architecture",
        ),
        _DERIVED,
        Stated(
            "Definição 4",
            "meta-approximation of order k: approximates every f(x, tau) = g_tau(h(x))",
            (),
            "k does not occur in it and h = identity makes it vacuous; here k is the number of values of h",
        ),
    )


def one_pass_memory(table: Sequence[Hashable], vocabulary: int) -> Bound:
    """Bits of memory that one pass over the input needs to compute a function: exact.

    ceil(log2 max_t R_t), R_t the number of different functions of the remaining symbols that the first t symbols leave. Proof: two
    prefixes that leave different functions must leave different memory; and the function left is itself enough memory, since it and
    the next symbol give the next one.

    Parameters
    ----------
    table : sequence of V^n values
        f of all inputs in lexicographic order, the first symbol read varying slowest.
    vocabulary : int
        V.

    Returns
    -------
    Bound
        `bits`, `states` (max_t R_t), `step` (the first t that attains it).

    Raises
    ------
    ArgumentError
        If the table's length is no power of V, or a value is NaN (which equals nothing) or itself a list.

    Notes
    -----
    Accuracy: *exact*, for a memory whose contents may depend on t. Cost: O(n V^n).

    Examples
    --------
    >>> parity = [bin(i).count("1") % 2 for i in range(64)]
    >>> one_pass_memory(parity, vocabulary=2).value
    1
    >>> palindrome = [int(f"{i:06b}" == f"{i:06b}"[::-1]) for i in range(64)]
    >>> one_pass_memory(palindrome, vocabulary=2).value
    3
    """
    call = "one_pass_memory"
    V = count(call, "vocabulary", vocabulary, 2)
    values = _hashable(call, table)
    n = round(math.log(len(values), V)) if values else -1
    if n < 1 or V**n != len(values):
        raise ArgumentError(
            f"{call}: the table has {len(values)} values, which is not {V}^n for any n >= 1; give f of every input, in order."
        )
    if any(value != value for value in values):  # noqa: PLR0124  (only NaN differs from itself)
        raise ArgumentError(
            f"{call}: the table holds NaN, which equals no value, itself included; give numbers or labels."
        )
    left = [len({values[i : i + V ** (n - t)] for i in range(0, len(values), V ** (n - t))}) for t in range(n + 1)]
    states = max(left)
    return Bound(
        call,
        (
            Quantity("bits", (states - 1).bit_length(), "bit", "exact", "memory that one pass needs"),
            Quantity("states", states, "1", "exact", "most functions of the rest that any prefix length leaves"),
            Quantity("step", left.index(states), "symbol", "exact", "symbols read when that many are left"),
        ),
        "one pass needs exactly ceil(log2 max_t R_t) bits, R_t the number of residual functions after t symbols",
        ("symbols are read once, in order", "the memory after t symbols is one of a finite set that may depend on t"),
        "derived for this library: the residual argument of Myhill (1957) and Nerode (1958), for inputs of one length",
        Stated(
            "7.1 (conjecture)",
            "T_const < T_log < T_poly < T_exp, classes of functions approximable in memory O(space(n))",
            (),
            "a theorem for the space of Turing machines; for transformers it depends on the model. This is the memory of one function",
        ),
    )


def _hashable(call: str, table: Sequence[Hashable]) -> tuple[Hashable, ...]:
    try:
        values = tuple(table)
        hash(values)
    except TypeError:
        raise ArgumentError(
            f"{call}: the table must be one sequence of numbers or labels, f of every input in order; got {type(table).__name__}, "
            "or lists within it."
        ) from None
    return values
