"""Every strategy that the folder holds keeps its promises; new ones are found here."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from equipment import ON_CPU, STRATEGIES, backend_of, case, require_packages
from strategy_ranks import (
    LOUD,
    SAMPLES,
    batches,
    make_optimizer,
    run_on_ranks,
    small_model,
)
from torch import nn

from rankbench.cell import Cell, is_lossy
from rankbench.matrix.catalog import load_catalog
from rankbench.matrix.declarations import STRATEGY_DEFAULTS
from rankbench.matrix.experiment import experiment_schema
from rankbench.rank.strategies import find_strategy
from rankbench.rank.world.devices import find_runtime
from rankbench.schema import check, fits

pytestmark = pytest.mark.contract


def run(folder: Path, name: str, ranks: int, **more):
    facts = STRATEGIES[name]
    require_packages(name)
    options = defaults_of(name)
    options |= more.pop("options", {})
    needs = facts["needs"]
    return run_on_ranks(
        folder,
        name,
        ranks,
        backend=backend_of(name),
        options=options,
        devices={"one": needs["min_devices"], "node": 2, "device": 1}[needs["ranks"]],
        replica_ranks=replica_ranks(name, ranks, options),
        **more,
    )


def defaults_of(name: str) -> dict[str, object]:
    return {key: rule["default"] for key, rule in STRATEGIES[name]["options"].items()}


def replica_ranks(name: str, ranks: int, options: dict[str, object]) -> int:
    wanted = STRATEGIES[name]["needs"]["replica_ranks"]
    if isinstance(wanted, list):
        return math.prod(options[option] for option in wanted)
    return ranks if wanted == "all" else wanted


def is_whole(name: str, ranks: int) -> bool:
    """Whether a strategy with its defaults can train the model on so many ranks."""
    needs = STRATEGIES[name]["needs"]
    if needs["ranks"] == "one":
        return ranks == 1
    return ranks % replica_ranks(name, ranks, defaults_of(name)) == 0


WORLDS = [
    case(name, ranks) for name in ON_CPU for ranks in (1, 2) if is_whole(name, ranks)
]


def phases_of(name: str) -> list[str]:
    """Phases of a step, as columns of a launch: the harness marks the first two."""
    return ["load", "transfer", *find_strategy(name).phases]


@pytest.mark.parametrize("name", STRATEGIES)
def test_it_declares_what_the_plan_must_know(name):
    facts, found = STRATEGIES[name], find_strategy(name)
    assert found.needs.keys() <= STRATEGY_DEFAULTS.keys()
    assert facts["needs"] == {**STRATEGY_DEFAULTS, **found.needs}
    assert len(set(phases_of(name))) == len(phases_of(name))
    assert facts["options"] == found.options
    assert facts["needs"]["ranks"] in ("one", "device", "node")
    assert facts["needs"]["replicas"] in ("one", "rank", "device")
    assert set(facts["needs"]["device"]) <= {"cpu", "cuda"}
    assert set(facts["needs"]["backends"]) <= {"gloo", "mpi", "nccl", "ccl"}
    assert find_runtime(facts["needs"]["runtime"])
    needs = facts["needs"]
    named = (needs["multiple_of"], needs["group_ranks"], *needs["axes"])
    for option in (*named, *facts["approximate"]):
        assert option is None or option in facts["options"]
    assert facts["conditions"] == found.conditions
    keys = {key for one in facts["conditions"] for key in {**one["if"], **one["then"]}}
    assert keys <= facts["options"].keys() | {field.name for field in fields(Cell)}
    assert find_strategy(name).__doc__


@pytest.mark.parametrize("name", STRATEGIES)
def test_its_options_have_sound_defaults_and_names_of_their_own(name):
    options = STRATEGIES[name]["options"]
    defaults = {key: rule["default"] for key, rule in options.items()}
    check(defaults, {"type": "object", "properties": options}, source=name)
    taken = options.keys() & experiment_schema(load_catalog())["properties"].keys()
    # People call it mesh_context.
    assert taken <= {"context"}


@pytest.mark.parametrize("name", STRATEGIES)
def test_it_knows_nothing_of_clocks_files_and_schedulers(name):
    source = Path(find_strategy(name).__module__.replace(".", "/") + ".py")
    import rankbench

    text = (Path(rankbench.__file__).parents[1] / source).read_text()
    for word in ("import os", "import time", "SLURM", "open(", "environ", "pathlib"):
        assert word not in text


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory):
    return run(tmp_path_factory.mktemp("reference"), "single", 1)[0]


@pytest.mark.parametrize(("name", "ranks"), WORLDS)
def test_it_learns_what_a_single_process_learns(name, ranks, reference, tmp_path):
    reports = run(tmp_path, name, ranks)
    known = [report["loss"] for report in reports if report["loss"] is not None]
    loss = torch.stack(known).mean(dim=0)
    # The loss is stored as float32.
    torch.testing.assert_close(loss, reference["loss"], rtol=1e-6, atol=1e-6)
    weights = reports[0]["weights"]
    assert weights.keys() == reference["weights"].keys()
    assert_same(name, weights, reference["weights"])
    counted = sum(report["samples"] for report in reports)
    assert counted == SAMPLES * 6 * replica_ranks(name, ranks, defaults_of(name))
    assert all(json.dumps(report["details"]) for report in reports)


# Rounding of six steps affects only the last digits of the type.
TOLERANCES = {
    "float64": {"rtol": 1e-9, "atol": 1e-11},
    "float32": {"rtol": 1e-5, "atol": 1e-6},
}


def assert_same(name: str, weights: dict, wanted: dict) -> None:
    tolerance = TOLERANCES[find_strategy(name).exact_dtype]
    for key, value in wanted.items():
        torch.testing.assert_close(weights[key], value, **tolerance)


def variants(*, lossy: bool) -> list:
    """Each strategy with each option at each value that is not its default."""
    found = []
    for name in ON_CPU:
        for option, rule in STRATEGIES[name]["options"].items():
            values = rule.get("enum", [])
            if rule.get("type") == "boolean":
                values = [True, False]
            kind = STRATEGIES[name]["approximate"]
            approximate = {o: kind[o] for o in kind if o == option}
            found += [
                case(name, {option: value})
                for value in values
                if value != rule["default"]
                and is_lossy({option: value}, approximate, {option: rule}) == lossy
                and runs_on_cpu(name, {option: value})
            ]
    return found


def runs_on_cpu(name: str, options: dict[str, object]) -> bool:
    facts = STRATEGIES[name]
    said = {"device": "cpu", "backend": "gloo", "warmup": 2}
    said |= defaults_of(name) | options
    return all(
        fits(said, condition["then"])
        for condition in facts["conditions"]
        if fits(said, condition["if"])
    )


def most_ranks(name: str) -> int:
    return 1 if STRATEGIES[name]["needs"]["ranks"] == "one" else 2


# Ways to cut a batch, or to share a model out to four ranks in two groups of two.
MORE = [
    *(("pipeline", {"microbatches": count}) for count in (2, 32)),
    *(
        ("pipeline", {"schedule": name, "microbatches": count})
        for name in ("gpipe", "interleaved")
        for count in (1, 32)
    ),
    ("pipeline", {"schedule": "zero-bubble", "virtual_stages": 1}),
    ("pipeline", {"schedule": "zbv", "microbatches": 1}),
    ("pipeline", {"balance": "parameters"}),
    ("rpc_pmp", {"balance": "2,3"}),
    ("rpc_pmp", {"split_size": 5}),  # The last micro-batch is smaller.
    ("rpc_pmp", {"split_size": 64}),
    *(
        (name, {"accumulation": count, "bucket_mb": size})
        for name in ("ddp", "zero1", "ddp_dp")
        for count, size in ((4, 25), (2, 0.0005))
    ),
    ("mesh", {"copy": 2}),
    ("fsdp", {"shard_ranks": 2}),
    ("fsdp", {"shard_ranks": 2, "reshard_after_forward": False}),
]


@pytest.mark.parametrize(("name", "options"), [*variants(lossy=False), *MORE])
def test_its_options_change_nothing_of_what_it_learns(
    name, options, reference, tmp_path
):
    in_groups = {"copy", "shard_ranks"} & options.keys()
    ranks = 4 if in_groups else most_ranks(name)
    reports = run(tmp_path, name, ranks, options=options)
    assert_same(name, reports[0]["weights"], reference["weights"])
    if in_groups:
        assert {report["samples"] for report in reports} == {SAMPLES * 6 // ranks}


@pytest.mark.parametrize(("name", "options"), variants(lossy=True))
def test_its_lossy_options_change_a_little(name, options, reference, tmp_path):
    reports = run(tmp_path, name, most_ranks(name), options=options)
    known = [report["loss"] for report in reports if report["loss"] is not None]
    loss = torch.stack(known).mean(dim=0)
    torch.testing.assert_close(loss, reference["loss"], rtol=0.02, atol=0)
    weights = reports[0]["weights"]
    assert any(not value.equal(weights[k]) for k, value in reference["weights"].items())


def test_outer_steps_are_nesterovs(tmp_path):
    """Of DiLoCo, beside two models in one process that are averaged by hand."""
    lr, momentum = 0.7, 0.9
    options = {"period": 2, "outer_lr": lr, "outer_momentum": momentum}
    found = run(tmp_path, "local_sgd", 2, options=options)[0]["weights"]
    torch.manual_seed(0)
    models = [small_model().double()]
    models.append(copy.deepcopy(models[0]))
    optimizers = [make_optimizer(model.parameters()) for model in models]
    shares = [batches(rank, 2, torch.float64) for rank in range(2)]
    shared = [weight.detach().clone() for weight in models[0].parameters()]
    velocities = [torch.zeros_like(weight) for weight in shared]
    for step in range(1, 2 + 6 + 1):
        for model, optimizer, share in zip(models, optimizers, shares, strict=True):
            images, labels = next(share)
            optimizer.zero_grad()
            (LOUD * nn.functional.cross_entropy(model(images), labels)).backward()
            optimizer.step()
        if step % 2 == 0:
            pairs = zip(*(model.parameters() for model in models), strict=True)
            for whole, velocity, pair in zip(shared, velocities, pairs, strict=True):
                moved = whole - (pair[0].detach() + pair[1].detach()) / 2
                velocity.mul_(momentum).add_(moved)
                whole.sub_(lr * (moved + momentum * velocity))
                for weight in pair:
                    weight.data.copy_(whole)
    for key, value in models[0].state_dict().items():
        torch.testing.assert_close(found[key], value, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    "name", [case(name) for name in ON_CPU if is_whole(name, most_ranks(name))]
)
def test_its_phases_close_to_the_window(name, tmp_path):
    shares = []
    # Work of others between two steps makes the window longer: the best of three.
    while len(shares) < 3 and max(shares, default=0.0) < 0.95:
        reports = run(tmp_path / str(len(shares)), name, most_ranks(name), steps=100)
        for report in reports:
            seconds = report["seconds"]
            assert seconds.shape == (100, len(phases_of(name)))
            assert bool((seconds >= 0).all())
            assert float(seconds.sum()) <= report["window_s"]
        shares.append(min(float(r["seconds"].sum()) / r["window_s"] for r in reports))
    assert max(shares) >= 0.95


def exposed(folder: Path, plant: str | None, delay: float, **options) -> float:
    """Median seconds of the communication phase on rank 0."""
    more = {"plant": plant, "delay": delay, "options": options}
    report = run(folder / f"{plant}-{delay}", "ddp", 2, steps=3, **more)[0]
    column = phases_of("ddp").index("communication")
    return float(report["seconds"][:, column].median())


@pytest.mark.alone
def test_a_planted_delay_is_found_as_exposed_communication(tmp_path):
    delay = 0.4
    without = exposed(tmp_path, "exposed", 0.0)
    with_delay = exposed(tmp_path, "exposed", delay)
    assert with_delay - without == pytest.approx(delay, rel=0.1)


def test_when_buckets_are_ready_is_found(tmp_path):
    """A planted model sleeps in backward before the gradients of its lowest layer."""
    sleep = 0.1
    reports = run(
        tmp_path,
        "ddp",
        2,
        plant="overlapped",
        delay=2 * sleep,
        options={"bucket_mb": 0.1},
    )
    weights = sum(value.nbytes for value in reports[0]["weights"].values())
    for report in reports:
        buckets = report["details"]["buckets"]
        ready = [bucket["ready_s"] for bucket in buckets]
        assert ready == sorted(ready)
        # In seconds. A busy machine makes it longer, never shorter.
        assert 0.9 * sleep < ready[-1] - ready[0] < 100 * sleep
        assert sum(bucket["bytes"] for bucket in buckets) == weights


@pytest.mark.alone
def test_the_part_of_a_delay_that_backward_hides_is_not_exposed(tmp_path):
    """Half of the delay passes while backward still computes."""
    delay = 0.8
    small = {"bucket_mb": 0.1}
    without = exposed(tmp_path, "overlapped", 0.0, **small)
    with_delay = exposed(tmp_path, "overlapped", delay, **small)
    assert with_delay - without == pytest.approx(delay / 2, rel=0.1)
