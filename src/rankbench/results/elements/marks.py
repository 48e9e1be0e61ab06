"""What marks of rows mean: the first clause says what weakens a row."""

from rankbench.record import (
    BUDGET,
    DISTURBED,
    NO_EXCHANGE,
    OTHER_SAMPLES,
    OVERSUBSCRIBED,
    SAME_DATA,
    UNCLEAN_END,
)
from rankbench.results.numbers.result_set import (
    DRIFTING,
    ENVIRONMENT,
    GROUPED,
    NO_STEADY_STATE,
    SLOW_HOST,
    UNPAIRED,
)

MARKS = {
    "approximate": "a lossy option changes what is trained.",
    BUDGET: "the budget ended the launches of this row before there were as many as "
    "asked for: a larger budget goes on.",
    "built-whole": "the model cannot be built without values, so each rank held it "
    "whole, in the memory of its host, before it was split.",
    "emulated": "computation is emulated: the model sleeps instead; communication is "
    "real.",
    "functional": "the devices are logical parts of one device: the row shows that the "
    "strategy works, not how fast it would be.",
    SLOW_HOST: "a host was slower than others in its launches: see Hosts.",
    "mixed-hosts": "launches ran on different hosts.",
    "mixed-torch": "it or its base ran different versions of torch: what differs may "
    "be the build, not the backend. One image for all (image: NAME) compares like with "
    "like.",
    "other-arithmetic": "gradients are summed in fewer bits than by others: a part of "
    "its ratio is that.",
    NO_STEADY_STATE: "step times still changed their level at the end of a launch: its "
    "numbers are of its whole timed window.",
    DISTURBED: "a launch was 1.5 times slower than the other launches of its round "
    "explain, and is left out of all numbers of the row; or other programs, a CPU "
    "quota, a suspension or the state of a GPU disturbed it and its repetitions, and "
    "it counts. Its record is kept.",
    DRIFTING: "launches became faster or slower one after the other: the machine "
    "changed meanwhile (the bracket of a line through them excludes 0).",
    UNPAIRED: "it was not launched in the same rounds as its base: they have no ratio, "
    "because a machine that changes in between would be a part of it. rankbench run "
    "--next launches them together.",
    GROUPED: "launches fall into groups, some slower than others: two or more are far "
    "from the others, for example by where memory was placed, or significantly more "
    "than of other rows are 1.5 times slower than their rounds explain. All count.",
    ENVIRONMENT: "launches of this workload ran with different values of these "
    "variables: only rows with equal ones are compared. env in site.yaml keeps them.",
    NO_EXCHANGE: "ranks exchange no gradients: each trains a model of its own. The row "
    "is not compared with others.",
    SAME_DATA: "ranks train on the same samples: the script does not split its data, "
    "so that more ranks do not learn from more samples.",
    OTHER_SAMPLES: "batches are not as large as samples_per_step says: throughput may "
    "be wrong, see under steps.",
    "other-code": "the code of its ranks has changed since: it is not the plan's.",
    UNCLEAN_END: "a launch hung or crashed after its ranks had reported: the numbers "
    "are whole.",
    "unchecked": "no gate has checked what it trains.",
    "preload": "LD_PRELOAD loads a library into every process of the row, which may "
    "replace any function of torch and of its libraries.",
    "throttled": "a GPU lowered its clocks: because of heat or a fault of its power "
    "supply, so that the row says nothing about what the machine can do.",
    OVERSUBSCRIBED: "ranks share a core or a GPU, or lack cores: the row says nothing "
    "about scaling.",
}

# Those that do not weaken a row, or of which an answer says more.
_APART = {BUDGET, "built-whole", "functional", SLOW_HOST, DISTURBED, "preload"}


def weakness(mark: str) -> str | None:
    """What weakens a row with this mark, in words; None if nothing does."""
    known = mark in MARKS and mark not in _APART
    return MARKS[mark].partition(":")[0].rstrip(".") if known else None
