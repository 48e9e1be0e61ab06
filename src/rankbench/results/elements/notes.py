"""What a reader must know beside the table: units, bases, marks, machines, reasons."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rankbench.cell import REFERENCE
from rankbench.record import (
    BUDGET,
    NO_EXCHANGE,
    OTHER_SAMPLES,
    SAME_DATA,
    UNCLEAN_END,
    Record,
)
from rankbench.results.elements.text import Note, describe_base
from rankbench.results.numbers.fit import EQUAL, MARGIN, UNTOLD
from rankbench.results.numbers.statistics import CONFIDENCE, MIN_LAUNCHES
from rankbench.results.numbers.summary import (
    DISTURBED,
    DRIFTING,
    ENVIRONMENT,
    GROUPED,
    NO_STEADY_STATE,
    UNPAIRED,
    Summary,
)

MARKS = {
    "approximate": "a lossy option is on; the trained model differs from that of one "
    "process.",
    BUDGET: "the budget ended the launches of this row before there were as many as "
    "asked for: a larger budget goes on.",
    "built-whole": "the model cannot be built without values, so each rank held it "
    "whole, in the memory of its host, before it was split.",
    "emulated": "the model sleeps instead of computing: communication is real, "
    "arithmetic is not.",
    "functional": "the devices are logical parts of one device: the row shows that the "
    "strategy works, not how fast it would be.",
    "mixed-hosts": "the launches of this row did not run on the same hosts.",
    "mixed-torch": "the launches of this row, or those of its base, ran different "
    "versions of torch.",
    NO_STEADY_STATE: "no steady state: in at least one launch, step times changed "
    "their level until the end. Its numbers are of its whole timed window.",
    DISTURBED: "a launch was 1.5 times slower than the other launches of its round "
    "explain, and is left out of all numbers of the row; or other programs, a CPU "
    "quota, a suspension or the state of a GPU disturbed it and its repetitions, and "
    "it counts. Its record is kept.",
    DRIFTING: "the launches grew faster or slower one after the other: the machine "
    "changed meanwhile (the bracket of a line through them excludes 0).",
    UNPAIRED: "this row and its base were not launched in the same rounds, so they "
    "have no ratio: a machine that changes in between would be a part of it. "
    "rankbench run --next launches them together.",
    GROUPED: "launches of this row fall into groups, for example by where memory was "
    "placed: two or more are far from the others, or significantly more than of other "
    "rows are 1.5 times slower than their rounds explain. All count.",
    ENVIRONMENT: "launches of this workload ran with different values of these "
    "variables: only rows with equal ones are compared. env in site.yaml keeps them.",
    NO_EXCHANGE: "ranks exchange no gradients, and no weights: each trains a model of "
    "its own. The row is not compared with others.",
    SAME_DATA: "all ranks of the script got the same samples in its first step: its "
    "data is not split over them, so that more ranks do not learn from more samples.",
    OTHER_SAMPLES: "the inputs of the script's model are not as many as "
    "samples_per_step says, so throughput may be wrong: see under steps.",
    "other-code": "the code that the ranks ran differs from the plan's.",
    UNCLEAN_END: "a launch hung or crashed while its ranks parted, after all of them "
    "had reported; the numbers are whole.",
    "unchecked": "no gate has found that it trains what a single process trains.",
    "preload": "LD_PRELOAD loads a library into every process of the row, which may "
    "replace any function of torch and of its libraries.",
    "throttled": "a GPU lowered its clocks because of heat or a fault of its power "
    "supply: the row says nothing about what the machine can do.",
    "oversubscribed": "ranks share a physical core or a GPU, or had fewer cores than "
    "planned: the row says nothing about scaling.",
}
SCALING = {
    "weak": "batch_size is per model replica: more devices, more samples in a step.",
    "strong": "batch_size is global: more devices share the same samples of a step.",
}


_BUILDS = (
    "rows ran different builds ({}): what differs between them may be the build, not "
    "the backend. One image for all (image: NAME) compares like with like."
)


def collect_notes(summaries: Sequence[Summary]) -> list[Note]:
    """What a reader of the table must know: base, brackets, batch, marks, machine."""
    return [
        *(_of_numbers(summaries) if any(s.numbers for s in summaries) else []),
        *(
            Note(mark, MARKS[mark.partition("(")[0]])
            for mark in sorted({mark for s in summaries for mark in s.marks})
            if mark.partition("(")[0] in MARKS
        ),
        *_of_machines(summaries),
    ]


def collect_details(summaries: Sequence[Summary]) -> list[Note]:
    """What else is known of rows: units, scripts, the gate, GPUDirect."""
    return [
        Note(
            "throughput",
            f"{_count(summaries)} of all replicas per second of the slowest rank, over "
            "the timed window, from where step times have reached their last level.",
        ),
        *_of_scripts(summaries),
        *_of_gate(summaries),
        *_of_gpudirect(summaries),
    ]


def _count(summaries: Sequence[Summary]) -> str:
    """What throughput counts: samples, tokens, or both in columns of their own."""
    cells = [s.cell for s in summaries if s.numbers]
    contexts = sorted({c.context for c in cells if c.context is not None})
    if not contexts:
        return "samples"
    named = " or ".join(f"{context:,}" for context in contexts)
    tokens = f"tokens (a sample is a sequence of {named} tokens)"
    return f"samples or {tokens}" if any(c.context is None for c in cells) else tokens


def _of_scripts(summaries: Sequence[Summary]) -> Iterator[Note]:
    scripts = [s.cell.script for s in summaries if s.cell.script is not None]
    if scripts:
        said = ", ".join(_distinct(one["samples_per_step"] for one in scripts))
        yield Note(
            "samples", f"of a step over all ranks, as the experiment says: {said}."
        )
    for s in summaries:
        if s.cell.script is not None and s.launches:
            ranks = [launch.record["ranks"][0] for launch in s.launches]
            told = _distinct(
                _of_steps(rank["details"]) for rank in ranks if rank["details"]
            )
            if told:
                yield Note("steps", f"of {s.id}: {'; or '.join(told)}.")


def _of_steps(details: Mapping[str, Any]) -> str:
    """What a rank of a script has counted."""
    parts = [f"by {details.get('optimizer', 'marks of the script')}"]
    if counted := details.get("counted"):
        parts.append(
            "inputs of {inputs} samples in the timed window, where the experiment "
            "says {planned}".format(**counted)
        )
    return ", ".join(parts)


def _of_numbers(summaries: Sequence[Summary]) -> Iterator[Note]:
    scripts = any(s.cell.script is not None for s in summaries)
    base = "the same script" if scripts else REFERENCE
    bases = (s.efficiency_base for s in summaries)
    named = ", ".join(_distinct(describe_base(one) for one in bases if one))
    yield Note(
        "efficiency",
        f"throughput of a device / that of {base} on one device (in a workload without "
        "that row, of the strategy itself), with the same model, data and options: "
        f"{named or 'no such cell is ok'}.",
    )
    pairs = ""
    if any(s.paired for s in summaries):
        pairs = " Efficiencies are means of the ratios within rounds."
    yield Note(
        "brackets",
        f"{CONFIDENCE:.0%} intervals.{pairs} All efficiencies hold at once: a row "
        "differs from its base if, and only if, its bracket excludes 1. Throughputs "
        "and times are means over launches, without an interval: plots show launches. "
        f"None: fewer than {MIN_LAUNCHES} launches, or the base itself.",
    )
    verdicts = {n.verdict for s in summaries for n in s.numbers.values()}
    if EQUAL in verdicts:
        yield Note(
            EQUAL, f"equal: the bracket is within {MARGIN:.0%} of 1, and includes 1."
        )
    if UNTOLD in verdicts:
        yield Note(
            UNTOLD, "the bracket includes 1: cannot be told. Not the same as equal."
        )
    kinds = (s.cell.scaling for s in summaries if s.cell.script is None)
    for kind in _distinct(kinds):
        yield Note(f"{kind} scaling", SCALING[kind])


def _of_machines(summaries: Sequence[Summary]) -> Iterator[Note]:
    records = [launch.record for s in summaries for launch in s.launches]
    hosts = _distinct(_describe_host(host) for r in records for host in r["hosts"])
    software = _distinct(_describe_software(record) for record in records)
    if records:
        yield Note("machine", "; ".join([*hosts, *software]) + ".")
    builds = _distinct(record["software"]["torch"] for record in records)
    if len(builds) > 1:
        yield Note("torch", _BUILDS.format(", ".join(builds)))


def _of_gate(summaries: Sequence[Summary]) -> list[Note]:
    """How many rows were checked, and how far off the worst of them was."""
    compared = [
        s.launches[0].record.get("gate")
        for s in summaries
        if s.launches and s.cell.strategy != REFERENCE
    ]
    gates = [gate for gate in compared if gate]
    if not gates:
        return []
    rows = "row" if len(compared) == 1 else "rows"
    texts = [f"{len(gates)} of {len(compared)} {rows} compared with {REFERENCE}."]
    # An older record may not have the numbers.
    distances: dict[str, list[float]] = {}
    for gate in gates:
        if gate.get("tolerance"):
            weights = 0.0 if gate["lossy"] else gate["weights_error"]
            distance = max(weights, gate["loss_error"])
            distances.setdefault(_describe_gate(gate), []).append(distance)
    for kind, own in distances.items():
        rows = "1 row" if len(own) == 1 else f"{len(own)} rows"
        texts.append(f"{rows} {kind} at most {max(own):.2g}.")
    return [Note("gate", " ".join(texts))]


def _describe_gate(gate: Record) -> str:
    limit = f"tolerance {gate['tolerance']:g}"
    if gate["lossy"]:
        return f"with a lossy option ({limit}), loss off by"
    return f"in {gate['dtype']} ({limit}), weights and loss off by"


def _of_gpudirect(summaries: Sequence[Summary]) -> list[Note]:
    """Rows that asked for GPUDirect, or for none, and what their logs say of it."""
    found = []
    for s in summaries:
        if s.cell.gpudirect == "auto" or not s.launches:
            continue
        told = {
            library["gpudirect_rdma"]
            for launch in s.launches
            for seen in (launch.record.get("transport") or {}).get("seen", [])
            for library in seen["libraries"].values()
            if library.get("gpudirect_rdma") is not None
        }
        asked = "on" if s.cell.gpudirect else "off"
        words = {True: "it was in effect", False: "it was not in effect"}
        said = [words[one] for one in (True, False) if one in told]
        unknown = "no log says whether it was in effect (backend_logs: true asks them)"
        says = "; on other ranks ".join(said) or unknown
        found.append(Note(s.id, f"gpudirect {asked}: {says}."))
    return found


def _describe_host(host: Record) -> str:
    gpus = [gpu["name"] for gpu in host["gpus"]]
    parts = [
        *(f"{gpus.count(name)} x {name}" for name in _distinct(gpus)),
        f"{host['cpu']}, {host['cores']} cores",
        f"{host['memory_gib']:.0f} GiB",
    ]
    return ", ".join(parts)


def _describe_software(record: Record) -> str:
    names = ("torch", "cuda", "nccl", "python")
    versions = [(name, record["software"].get(name)) for name in names]
    found = ", ".join(f"{name} {version}" for name, version in versions if version)
    image = record["image"]
    return f"{found}, in the image {image['name']}" if image else f"{found}, native"


def _distinct(texts: Iterable[str]) -> list[str]:
    """Each text once, in order of appearance."""
    return list(dict.fromkeys(texts))
