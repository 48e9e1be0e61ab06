"""Random kills while an experiment runs; it is run again until all is measured."""

from __future__ import annotations

import random
import subprocess
from dataclasses import dataclass, field

import faulty_strategies as faulty
from lanes import LOGIN_SHELL, RANK, SRUN, SUPERVISOR, TORCHRUN, Lane
from pretend_cluster import is_running
from pretend_host import Host
from trials import ALLOCATIONS, Unexpected

LAUNCHES = 20
KILLS = 10  # for each experiment
PAUSE = (1.0, 14.0)  # seconds before a kill
LOOK = 0.2  # seconds between two looks for a victim
MOST_RUNS = 30
EXPERIMENT = """
name: {name}
model: lenet
launches: 5
warmup: 0
steps: 12
gate: false
evaluate: false
time_limit: 120
allocation: {allocation}
blocks:
  - strategy: victim
    topology: 2x1
    launcher: [{launchers}]
  - strategy: victim
    topology: 1x1
"""
CAUSES = {"site", "user", "host"}


@dataclass
class Kills:
    """One experiment of 20 launches.

    killed: what was killed, in order; lost: launches that had to be repeated; failed:
    launches that count as failed, since a rank or a launcher was killed.
    """

    launchers = "srun, torchrun, manual"
    # Patterns of what is killed on a host, and beside the hosts.
    on_hosts = {
        "a rank": RANK,
        "a launcher": f"({TORCHRUN}|{SRUN})",
        "a supervisor": SUPERVISOR,
        "the Snakemake of a job": "-m snakemake ",
        "slurmd": "",
    }
    at_login = {"Snakemake": "-m snakemake ", "the login shell": LOGIN_SHELL}

    lane: Lane
    name: str
    seed: int
    killed: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    runs: int = 0
    lost: int = 0
    failed: int = 0

    def go(self) -> list[str]:
        """Run and kill; processes, jobs, locks and folders that were left.

        Raises:
            Unexpected: a launch was lost, measured twice, or has no type.
        """
        chance = random.Random(self.seed)
        self.lane.write_site()
        self.lane.project.add_strategy("victim", faulty.SLOW)
        text = EXPERIMENT.format(
            name=self.name,
            allocation=chance.choice(ALLOCATIONS),
            launchers=self.launchers,
        )
        self.lane.project.experiment(text, f"{self.name}.yaml")
        while self._run(chance):
            if self.runs == MOST_RUNS:
                raise Unexpected(f"not complete after {MOST_RUNS} runs")
        left = self.lane.left()
        self._check()
        return left + self.lane.folders()

    def _run(self, chance: random.Random) -> bool:
        """Run once, and kill meanwhile; whether something is still missing."""
        self.runs += 1
        run = self.lane.run_in_a_shell(self.name)
        while len(self.killed) < KILLS and self._lasts(run, chance.uniform(*PAUSE)):
            self.lane.wake()
            self._kill(chance, run)
        # Whoever is responsible for the cluster starts a slurmd again some time later.
        self._lasts(run, chance.uniform(*PAUSE))
        self.lane.wake()
        said = self.lane.wait_for(run, 400)
        self.said.append(said[-700:])
        return run.returncode != 0 or "Nothing to be done" not in said

    def _lasts(self, run: subprocess.Popen[str], seconds: float) -> bool:
        """Whether a run lasts longer than that."""
        try:
            run.wait(seconds)
        except subprocess.TimeoutExpired:
            return True
        return False

    def _kill(self, chance: random.Random, run: subprocess.Popen[str]) -> None:
        """Kill one at random, as soon as it is there."""
        victim = chance.choice([*self.on_hosts, *self.at_login])
        hosts = chance.sample(self.lane.hosts, 2)
        while self._lasts(run, LOOK):
            if any(self._kills(victim, host, run) for host in hosts):
                self.killed.append(victim)
                return

    def _kills(self, victim: str, host: Host, run: subprocess.Popen[str]) -> bool:
        """Kill a victim, on this host if it is on one; whether there was one."""
        if victim == "slurmd":
            if not is_running(host):
                return False
            host.do("pkill", "-KILL", "--exact", "slurmd")
            return True
        if victim in self.at_login:
            return self.lane.kill_at_login(run, self.at_login[victim])
        found = self.lane.find(host, self.on_hosts[victim])
        if found:
            host.do("sh", "-c", f"kill -KILL {found[0]} || true")
        return bool(found)

    def _check(self) -> None:
        """Each launch is measured once, or its record says why not."""
        begun = self.lane.launches(self.name)
        records = self.lane.records(self.name)
        if len(begun) != sum(map(len, records.values())):
            raise Unexpected(f"{len(begun)} launches, but fewer records")
        for cell, found in records.items():
            counts = [record for record in found if record["cause"] not in CAUSES]
            given_up = [record["status"] for record in counts[:2]]
            if len(counts) != 5 and "ok" in given_up:
                states = [(record["status"], record["reason"]) for record in found]
                raise Unexpected(f"{cell}: {states}")
            for record in found:
                if record["status"] != "ok" and not record["reason"]:
                    raise Unexpected(f"{cell}: no reason for {record['status']}")
            self.lost += len(found) - len(counts)
            self.failed += sum(record["status"] != "ok" for record in counts)
