"""The configuration of a pretend cluster's Slurm, as text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

# The reason for each line that a plain cluster lacks, or has with another value.
TEMPLATE = """\
ClusterName=pretend
SlurmctldHost={machine}({address})
# Not Slurm's own: clusters do not meet, nor a real Slurm of this machine.
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={state}/munge/socket
CryptoType=crypto/munge
StateSaveLocation={state}/controller
SlurmctldPidFile={state}/controller/pid
SlurmctldLogFile={state}/log/slurmctld
SlurmdSpoolDir={state}/%n/spool
SlurmdPidFile={state}/%n/slurmd.pid
SlurmdLogFile={state}/log/slurmd-%n

# Control groups limit memory at most: a job's processes are found by their parents.
ProctrackType=proctrack/linuxproc
{memory_limit}
PropagateResourceLimits=NONE
MpiDefault=none

# More CPUs and memory may be declared than there are.
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu

# Soon: a batch job starts, a silent host is down, a host that is back works. But a busy
# machine may keep any of these programs waiting for a while.
SchedulerParameters=batch_sched_delay=0
MessageTimeout=30
SlurmdTimeout=60
InactiveLimit=60
ReturnToService=2

# Tests ask for jobs that ended minutes ago.
MinJobAge=3600

NodeName=DEFAULT CPUs={cpus} RealMemory={memory_mib} State=UNKNOWN{gres}
{nodes}
PartitionName=DEFAULT MaxTime=INFINITE DefMemPerCPU={memory_per_cpu} State=UP
PartitionName=pretend Nodes=ALL Default=YES OverSubscribe=NO
"""

WITH_GROUPS = "TaskPlugin=task/cgroup"
# As on most clusters: tasks are bound to cores of their job, which has no others.
WITH_CORES = "TaskPlugin=task/cgroup,task/affinity"
# Slurm checks the memory of jobs once a second, and kills a job above its limit as a
# whole.
WITHOUT_GROUPS = """\
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill"""
# Without `bind_cores`, every host keeps the cores that it was given: Slurm counts the
# cores of each from the first of the machine.
CGROUP_CONF = """\
CgroupPlugin=cgroup/v1
ConstrainRAMSpace=yes
ConstrainCores={cores}
"""


def slurm_conf(
    *,
    state: Path,
    machine: str,
    address: str,
    port: int,
    hosts: Mapping[str, str],
    cpus: int,
    memory_mib: int,
    groups: bool,
    bind_cores: bool = False,
    gpus: str = "",
) -> str:
    """slurm.conf of a cluster whose controller listens at `address` of `machine`.

    hosts: address by name. cpus, memory_mib: of every host. groups: whether control
    groups limit memory, by CGROUP_CONF. bind_cores: whether they limit cores as well.
    gpus: the type of the two GPUs that Slurm counts on each host; there are none.
    """
    limits = {
        (True, True): WITH_CORES,
        (True, False): WITH_GROUPS,
        (False, False): WITHOUT_GROUPS,
    }
    nodes = (f"NodeName={name} NodeAddr={where}" for name, where in hosts.items())
    return TEMPLATE.format(
        state=state,
        machine=machine,
        address=address,
        port=port,
        nodes="\n".join(nodes),
        cpus=cpus,
        memory_mib=memory_mib,
        memory_per_cpu=memory_mib // cpus,
        memory_limit=limits[groups, groups and bind_cores],
        gres=f" Gres=gpu:{gpus}:2" if gpus else "",
    )
