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

# The same, started by rankbench.rank.spawn.
SPAWN_KILLED = """\
W1120 13:48:17.133000 7443 torch/multiprocessing/spawn.py:165] \
Terminating process 7446 via signal SIGTERM
rank 0 ended with exit code -15
rank 1 ended with exit code -9
"""

# The same, started by rankbench.rank.manual: rank 0 was ended for it.
MANUAL_KILLED = """\
rendezvous: env:// MASTER_ADDR=127.0.0.1 MASTER_PORT=41563
rank 1 ended with exit code -9
"""

# Rank 1 raised an exception outside of what it reports itself.
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

# Rank 0 found the port taken that was chosen for it.
PORT_TAKEN = (
    "The server socket has failed to listen on any local network address. port: 35403, "
    "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
)
