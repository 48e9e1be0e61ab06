"""What launchers really print when a rank dies (torch 2.13); paths are shortened."""

from __future__ import annotations

# Rank 1 of two sent itself SIGKILL.
TORCHRUN_KILLED = """\
W1120 13:48:15.278000 7434 torch/distributed/elastic/multiprocessing/api.py:1028] \
Sending process 7439 closing signal SIGTERM
E1120 13:48:15.279000 7434 torch/distributed/elastic/multiprocessing/api.py:1002] \
failed (exitcode: -9) local_rank: 1 (pid: 7440) of binary: /venv/bin/python
Traceback (most recent call last):
  File "/venv/torch/distributed/run.py", line 1032, in <module>
    main()
  File "/venv/torch/distributed/launcher/api.py", line 383, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n\
======================================================
rankbench.rank FAILED
------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-20_13:48:15
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 7439)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 7439
------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-20_13:48:15
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 7440)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 7440
======================================================
"""

# The same, started by rankbench.rank.world.spawn.
SPAWN_KILLED = """\
W1120 13:48:17.133000 7443 torch/multiprocessing/spawn.py:165] \
Terminating process 7446 via signal SIGTERM
rank 0 ended with exit code -15
rank 1 ended with exit code -9
"""

# The same, started by rankbench.rank.world.manual, which then ended rank 0.
MANUAL_KILLED = """\
rendezvous: env:// MASTER_ADDR=127.0.0.1 MASTER_PORT=41563
rank 1 ended with exit code -9
"""

# Rank 1 raised an exception outside the code that reports exceptions.
SPAWN_RAISED = """\
W1120 13:48:19.195000 7451 torch/multiprocessing/spawn.py:165] \
Terminating process 7454 via signal SIGTERM
Traceback (most recent call last):
  File "/venv/torch/multiprocessing/spawn.py", line 211, in join
    raise ProcessRaisedException(msg, error_index, failed_process.pid)
torch.multiprocessing.spawn.ProcessRaisedException: \n\

-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "/venv/torch/multiprocessing/spawn.py", line 87, in _wrap
    fn(i, *args)
RuntimeError: no luck

"""

# Rank 1 of two killed itself, or ended with exit code 3: Open MPI 4.1.4.
MPIRUN_KILLED = """\
rendezvous: MASTER_ADDR=127.0.0.1 MASTER_PORT=42465
--------------------------------------------------------------------------
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
--------------------------------------------------------------------------
--------------------------------------------------------------------------
mpirun noticed that process rank 1 with PID 0 on node vm exited on signal 9 (Killed).
--------------------------------------------------------------------------
"""
MPIRUN_FAILED = """\
rendezvous: MASTER_ADDR=127.0.0.1 MASTER_PORT=34883
--------------------------------------------------------------------------
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
--------------------------------------------------------------------------
--------------------------------------------------------------------------
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[24521,1],1]
  Exit code:    3
--------------------------------------------------------------------------
"""

# Rank 1 of two killed itself: Intel MPI 2021.18.
HYDRA_KILLED = """\
rendezvous: MASTER_ADDR=127.0.0.1 MASTER_PORT=39371

================================================================================\
===
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   RANK 0 PID 11423 RUNNING AT localhost
=   KILLED BY SIGNAL: 15 (Terminated)
================================================================================\
===

================================================================================\
===
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   RANK 1 PID 11424 RUNNING AT localhost
=   KILLED BY SIGNAL: 9 (Killed)
================================================================================\
===
"""

# The same by horovodrun --gloo; with --mpi, mpirun prints the message.
HOROVODRUN_KILLED = """\
rendezvous: MASTER_ADDR=127.0.0.1 MASTER_PORT=35877
[1]<stderr>:Killed
Process 1 exit with status code 137.
Terminating remaining workers after failure of Process 1.
[0]<stderr>:Terminated
Traceback (most recent call last):
  File "/venv/horovod/runner/launch.py", line 837, in run_commandline
    _run(args)
  File "/venv/horovod/runner/gloo_run.py", line 284, in launch_gloo
    raise RuntimeError('Horovod detected that one or more processes exited with \
non-zero '
RuntimeError: Horovod detected that one or more processes exited with non-zero \
status, thus causing the job to be terminated. The first process to do so was:
Process name: 1
Exit code: 137

"""
HOROVODRUN_FAILED = """\
rendezvous: MASTER_ADDR=127.0.0.1 MASTER_PORT=43055
Process 1 exit with status code 3.
Terminating remaining workers after failure of Process 1.
[0]<stderr>:Terminated
Process 0 exit with status code 143.
"""

# DeepSpeed 0.19.8 says how a rank ended, but not which.
DEEPSPEED_KILLED = """\
[2026-11-20 16:35:57,276] [INFO] [launch.py:245:main] process 13466 spawned with \
command: ['/venv/bin/python', '-u', '-m', 'rankbench.rank', 'launch.json']
[2026-11-20 16:35:57,279] [INFO] [launch.py:245:main] process 13467 spawned with \
command: ['/venv/bin/python', '-u', '-m', 'rankbench.rank', 'launch.json']
[2026-11-20 16:35:59,280] [INFO] [launch.py:253:sigkill_handler] Killing subprocess \
13466
[2026-11-20 16:35:59,283] [INFO] [launch.py:253:sigkill_handler] Killing subprocess \
13467
[2026-11-20 16:35:59,283] [ERROR] [launch.py:259:sigkill_handler] \
['/venv/bin/python', '-u', '-m', 'rankbench.rank', 'launch.json'] exits with return \
code = -9
"""

# Rank 0 found its port in use.
PORT_TAKEN = (
    "The server socket has failed to listen on any local network address. port: 35403, "
    "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
)

# Output of srun in Slurm 22.05 about its tasks. Rank 1 sent itself SIGKILL.
SRUN_KILLED = """\
srun: error: node2: task 1: Killed
srun: launch/slurm: _step_signal: Terminating StepId=1.0
slurmstepd-node1: error: *** STEP 1.0 ON node1 CANCELLED AT 2026-11-21T17:47:11 ***
srun: error: node1: task 0: Exited with exit code 1
"""

# Three ranks ended themselves; one followed an invalid pointer.
SRUN_FAILED = """\
srun: error: node1: tasks 0-1: Exited with exit code 97
srun: error: node2: task 3: Exited with exit code 97
srun: error: node2: task 2: Segmentation fault (core dumped)
"""

# The message if control groups limit the memory.
SRUN_OUT_OF_MEMORY = """\
slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0. Some of your processes \
may have been killed by the cgroup out-of-memory handler.
srun: error: node2: task 1: Out Of Memory
"""

# The message if Slurm checks the memory from time to time.
SRUN_MEMORY_LIMIT = """\
slurmstepd-node1: error: StepId=7.0 exceeded memory limit (312492032 > 104857600), \
being killed
slurmstepd-node1: error: *** STEP 7.0 ON node1 CANCELLED AT 2026-11-21T17:47:11 ***
"""

SRUN_TIME_LIMIT = """\
slurmstepd-node1: error: *** STEP 7.0 ON node1 CANCELLED AT 2026-11-21T17:47:11 DUE TO \
TIME LIMIT ***
"""

SRUN_LOST_HOST = """\
srun: error: Node failure on node2
srun: Job step aborted: Waiting up to 7 seconds for job step to finish.
"""

SRUN_NOT_STARTED = """\
srun: error: Task launch for StepId=7.0 failed on node node2: Unable to contact slurmd
srun: error: Application launch failed: Unable to contact slurmd
srun: Job step aborted
"""

# Only the first host has the image.
SRUN_NO_IMAGE = """\
FATAL:   could not open image /tmp/mpi.sif: stat /tmp/mpi.sif: no such file or directory
srun: error: node2: task 1: Exited with exit code 255
srun: launch/slurm: _step_signal: Terminating StepId=7.0
srun: error: node1: task 0: Killed
"""
