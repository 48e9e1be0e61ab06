"""Makes the plan: resolves every cell of an experiment against a site."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rankbench.cell import OF_PLACE, REFERENCE, Cell
from rankbench.matrix.candidate import make_candidate
from rankbench.matrix.catalog import Catalog
from rankbench.matrix.experiment import EACH, Experiment
from rankbench.matrix.feasible import find_obstacle, marks_of, peak_of_step
from rankbench.matrix.site import Site, use_hosts
from rankbench.plan import Plan, PlannedCell, PredictedCell
from rankbench.schedulers import SCHEDULERS
from rankbench.schema import in_file

# Values of `order`.
ROUNDS = "rounds"
# Values of `allocation`.
CELL, TOPOLOGY, EXPERIMENT = "cell", "topology", "experiment"


def make_plan(
    experiment: Experiment,
    site: Site,
    catalog: Catalog,
    *,
    code: Callable[[Cell | None], str],
    source: str,
    images: Mapping[str, dict[str, Any]] | None = None,
    estimates: Mapping[str, Mapping[str, Any]] | None = None,
) -> Plan:
    """Make the plan: resolve every cell against the site.

    Args:
        experiment: the checked experiment.
        site: the machine.
        catalog: the variants that exist.
        code: SHA-256 of the rank-side code that a cell uses; None: of all of it.
        source: name of the experiment file in the plan.
        images: name -> facts about the image.
        estimates: hash of a cell -> what an estimate of its memory has found.

    Raises:
        ValueError: cells cannot share jobs here as the experiment wants, or it names
            a host that the site does not list.
    """
    values = experiment.values
    with in_file(experiment.source, override=experiment.override):
        wanted = values["hosts"]
        site = use_hosts(site, None if wanted == EACH else wanted)
        _check_sharing(values, site, experiment.cells.values())
    own = experiment.own.facts()
    catalog = catalog.with_own(own).with_images(values["images"])
    planned = {}
    for cell_id, cell in experiment.cells.items():
        digest = cell.hash()
        candidate = make_candidate(cell, site, catalog, (estimates or {}).get(digest))
        planned[cell_id] = PlannedCell(
            id=cell_id,
            hash=digest,
            code=code(cell),
            cell=cell,
            shape=candidate.shape,
            infeasible=experiment.hosts.get(cell.hosts or "")
            or find_obstacle(candidate),
            marks=marks_of(candidate),
            image=candidate.image,
            estimated_mib=peak_of_step(candidate.estimate),
        )
    header = {
        "name": experiment.name,
        "file": source,
        "sha256": experiment.sha256,
        "override": experiment.override,
        "study": experiment.study,
        **experiment.options,
    }
    used = {cell.image for cell in planned.values() if cell.infeasible is None}
    taken = {name: facts for name, facts in (images or {}).items() if name in used}
    return Plan(
        experiment=header,
        site={**site},
        code={"rank": code(None)},
        images=taken,
        cells=planned,
        predicted=plan_predicted(experiment.cells, values["predict"], site, catalog),
        own=own,
    )


def _check_sharing(
    values: Mapping[str, Any], site: Site, cells: Iterable[Cell]
) -> None:
    """Check that the keys of an experiment about jobs fit each other and the site.

    Args:
        values: of the experiment.
        site: the machine.
        cells: of the experiment.

    Raises:
        ValueError: they do not; the message names the key and what to do.
    """
    allocation = values["allocation"]
    has_queue = SCHEDULERS[site["scheduler"]].has_queue
    queues = {tuple(cell.queue.items()) for cell in cells}
    for name, value in sorted(itertools.chain(*queues)):
        if not has_queue:
            raise ValueError(
                f"{name}: {value}: this site has no Slurm (scheduler: "
                f"{site['scheduler']}): remove the key"
            )
    if not has_queue and allocation != CELL:
        raise ValueError(
            f"allocation: {allocation} needs a cluster, and this site has no Slurm "
            f"(scheduler: {site['scheduler']}): remove the key; launches of all cells "
            "take turns anyway"
        )
    if values["budget"] is not None and len(queues) > 1:
        raise ValueError(
            "budget ends the rounds of all cells at the same time, and jobs of several "
            "partitions or hosts do not wait for each other: remove it, or name one"
        )
    in_rounds = values["order"] == ROUNDS
    together = in_rounds and (allocation == EXPERIMENT or not has_queue)
    if values["budget"] is not None and not together:
        remedy = "allocation: experiment" if in_rounds else "order: rounds"
        raise ValueError(
            f"budget ends the rounds of all cells at the same time: it needs {remedy}"
        )


def plan_predicted(
    cells: Mapping[str, Cell],
    topologies: Sequence[str],
    site: Site,
    catalog: Catalog,
) -> list[PredictedCell]:
    """Each of these topologies for each series of cells that differ in topology alone.

    Cells that are measured anyway, and those of `single`, are left out.

    Args:
        cells: by id, in the order of the plan.
        topologies: as in a cell.
    """
    series: dict[str, str] = {}
    for name, cell in cells.items():
        if cell.strategy != REFERENCE:
            series[cell.apart_from(OF_PLACE)] = name
    measured = {(cell.apart_from(OF_PLACE), cell.topology) for cell in cells.values()}
    found = []
    for key, name in series.items():
        for topology in dict.fromkeys(topologies):
            if (key, topology) not in measured:
                like = cells[name]
                cell = replace(like, topology=topology, oversubscribe=False)
                candidate = make_candidate(cell, site, catalog)
                planned = PredictedCell(
                    id=name.replace(f".{like.topology}.", f".{topology}.", 1),
                    cell=cell,
                    shape=candidate.shape,
                    infeasible=find_obstacle(candidate, anywhere=True),
                )
                found.append(planned)
    return found
