"""What communication libraries print of how they send: short, with made-up hosts.

The forms are those of the versions named; of UCX 1.13, Open MPI 4.1 and Gloo they are
what those printed for two ranks on one host, of the others what their sources say and
what users have shown of them.
"""

from __future__ import annotations

# Two hosts, InfiniBand, NCCL 2.10: bus ids, and shared memory by its old name.
NCCL_2_10 = """\
node1:101:101 [0] NCCL INFO Bootstrap : Using ib0:192.0.2.1<0>
node1:101:101 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using \
internal implementation
node1:101:101 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB ; \
OOB ib0:192.0.2.1<0>
node1:101:101 [0] NCCL INFO Using network IB
NCCL version 2.10.3+cuda11.3
node1:101:140 [0] NCCL INFO Channel 00/02 :    0   1   2   3
node1:101:140 [0] NCCL INFO Channel 00 : 2[c7000] -> 0[87000] [receive] via \
NET/IB/1/GDRDMA
node1:101:140 [0] NCCL INFO Channel 00 : 0[87000] -> 1[8d000] via direct shared memory
node1:101:140 [0] NCCL INFO Channel 01 : 0[87000] -> 2[c7000] [send] via NET/IB/0
node1:101:140 [0] NCCL INFO Connected all rings
"""

# Two hosts over RoCE without the kernel module for GPUDirect RDMA, NCCL 2.21.
NCCL_2_21_NO_MODULE = """\
node1:102:127 [0] NCCL INFO NET/Plugin: Using internal network plugin.
node1:102:127 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; \
OOB eth0:192.0.2.1<0>
node1:102:127 [0] NCCL INFO Using non-device net plugin version 0
node1:102:127 [0] NCCL INFO Using network IB
node1:102:127 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'
node1:102:127 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 1 'mlx5_1'
node1:102:127 [0] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM/read
node1:102:127 [0] NCCL INFO Channel 01 : 0[0] -> 1[1] via SHM/direct/direct
node1:102:127 [0] NCCL INFO Channel 00/0 : 15[7] -> 0[0] [receive] via NET/IB/0
node1:102:127 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/1(3)/Shared
"""

# One host, two GPUs, NCCL 2.29.
NCCL_2_29_ONE_HOST = """\
node1:103:103 [0] NCCL INFO Bootstrap: Using lo:127.0.0.1<0>
node1:103:103 [0] NCCL INFO NCCL version 2.29.7+cuda13.0
node1:103:131 [0] NCCL INFO NET/Socket : Using [0]lo:127.0.0.1<0>
node1:103:131 [0] NCCL INFO Using network Socket
node1:103:131 [0] NCCL INFO Channel 00/24 : 0 1
node1:103:131 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
node1:103:131 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM
node1:103:131 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1
"""

# The other rank of the launch does not print the version.
NCCL_2_29_OTHER_RANK = """\
node1:104:131 [1] NCCL INFO NET/Socket : Using [0]lo:127.0.0.1<0>
node1:104:131 [1] NCCL INFO Using network Socket
node1:104:131 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM
"""

# Two hosts over TCP, NCCL 2.29.
NCCL_2_29_SOCKET = """\
node1:105:131 [0] NCCL INFO NET/IB : No device found.
node1:105:131 [0] NCCL INFO NET/Socket : Using [0]eth0:192.0.2.1<0> \
[1]eth1:2001:db8::1<0>
node1:105:131 [0] NCCL INFO Using network Socket
node1:105:131 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0
node1:105:131 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
"""

# A network plugin whose name has a space, and the path of a Grace host over PCI.
NCCL_PLUGIN = """\
node1:106:131 [0] NCCL INFO NCCL version 2.26.2+cuda12.8
node1:106:131 [0] NCCL INFO Using network AWS Libfabric
node1:106:131 [0] NCCL INFO NET/AWS Libfabric : GPU Direct RDMA Enabled for HCA 0 \
'rdmap79s0-rdm'
node1:106:131 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via \
NET/AWS Libfabric/0/GDRDMA(PCI)/Shared
"""

# A launch whose log level is warnings, or not set.
NCCL_WARN = "NCCL version 2.29.7+cuda13.0\nnode1:107:107 [0] NCCL WARN out of luck\n"

# UCX 1.13 under Open MPI 4.1, two ranks on one host, the default protocols.
UCX_1_13 = """\
[1795191853.036919] [node1:8513 :0]     ucp_context.c:1849 UCX  INFO  Version 1.13.1 \
(loaded from /lib/x86_64-linux-gnu/libucp.so.0)
[1795191853.046255] [node1:8513 :0]          parser.c:1916 UCX  INFO  UCX_* env \
variable: UCX_LOG_LEVEL=info
[1795191853.075367] [node1:8513 :0]      ucp_worker.c:1763 UCX  INFO    ep_cfg[0]: \
tag(self/memory0 cma/memory)
[1795191853.075652] [node1:8513 :0]      ucp_worker.c:1763 UCX  INFO    ep_cfg[1]: \
tag(sysv/memory cma/memory)
"""

# The same with tables of protocols (UCX_PROTO_ENABLE=y).
UCX_1_13_TABLES = """\
[1795191784.979705] [node1:8026 :0]     ucp_context.c:1849 UCX  INFO  Version 1.13.1 \
(loaded from /lib/x86_64-linux-gnu/libucp.so.0)
[1795191784.992724] [node1:8026 :0]   +-----------------+----------------------------+
[1795191784.992743] [node1:8026 :0]   | 0x55923d84e460 ep_cfg[1] | tagged message by \
ucp_tag_send*() from host memory      |
[1795191784.992760] [node1:8026 :0]   +-----------------+----------------+-----------+
[1795191784.992776] [node1:8026 :0]   |           0..92 | eager short    | sysv/memory |
[1795191784.992808] [node1:8026 :0]   |        6238..inf | (?) rendezvous zero-copy \
read from remote | cma/memory  |
[1795191785.003412] [node1:8026 :0]   |                0 | no data fetch  |           |
"""

# UCX 1.18 with CUDA over InfiniBand: small messages straight from the GPU.
UCX_1_18_GPU = """\
[1721319203.001000] [node1:143:0]     ucp_context.c:2137 UCX  INFO  Version 1.18.0 \
(loaded from /opt/ucx/lib/libucp.so.0)
[1721319203.002000] [node1:143:0]      ucp_worker.c:1903 UCX  INFO    ucp_context_0 \
inter-node cfg#2 tag(rc_mlx5/mlx5_0:1/path0 cuda_ipc/cuda) ka(ud_mlx5/mlx5_1:1)
[1721319203.003000] [node1:143:0]   +----------------------------+-------------------+
[1721319203.003100] [node1:143:0]   | ucp_context_0 inter-node cfg#2 | tagged message \
by ucp_tag_send* from cuda/GPU0  |
[1721319203.003200] [node1:143:0]   +----------------------------+------+------------+
[1721319203.003300] [node1:143:0]   |                  0..8246 | eager zero-copy \
copy-out | rc_mlx5/mlx5_0:1/path0 |
[1721319203.003400] [node1:143:0]   |              8247..inf | (?) rendezvous pipeline \
cuda_copy, fenced write to remote, cuda | rc_mlx5/mlx5_0:1/path0 |
"""

# The same with GPUDirect RDMA turned off.
UCX_1_18_STAGED = UCX_1_18_GPU.replace("eager zero-copy copy-out", "eager copy-in")

# Open MPI 4.1, two ranks on one host, at verbosity 10.
OPENMPI_OB1 = """\
[node1:07932] select: initializing btl component vader
[node1:07932] select: init of component vader returned success
[node1:07932] mca: base: components_open: found loaded component monitoring
[node1:07932] select: component v not in the include list
[node1:07932] select: initializing pml component ob1
[node1:07932] select: init returned priority 20
[node1:07932] selected ob1 best priority 20
[node1:07932] select: component ob1 selected
[node1:07932] mca: bml: Using vader btl for send to [[29190,1],1] on node node1
[node1:07932] mca: bml: Using tcp btl for send to [[29190,1],2] on node node2
[node1:07932] mca: bml: Using self btl for send to [[29190,1],0] on node node1
"""
OPENMPI_UCX = """\
[node1:08513] select: initializing pml component ucx
[node1:08513] select: init returned priority 51
[node1:08513] selected ucx best priority 51
[node1:08513] select: component ucx selected
"""
OPENMPI_CM = """\
[node1:08600] mca:base:select:(  mtl) Selected component [ofi]
[node1:08600] select: initializing mtl component ofi
[node1:08600] select: init returned success
[node1:08600] select: component ofi selected
[node1:08600] select: init returned priority 25
[node1:08600] selected cm best priority 25
[node1:08600] select: component cm selected
"""

# Gloo in torch 2.13 with GLOO_LOG_LEVEL=INFO.
GLOO = """\
[I1120 16:22:30.360678 socket.cpp:955] [c10d] The client socket has connected
[/build/third_party/gloo/gloo/transport/tcp/context.cc:243] INFO Rank 1 is connected \
to 1. Expected number of connected peers is: 1
"""

# oneCCL 2021.15 over libfabric's tcp, rank 0.
CCL = """\
2025:11:26-12:43:48:(4016) |CCL_INFO| libfabric version: 1.21.0-impi
2025:11:26-12:43:48:(4016) |CCL_INFO| provider: tcp
2025:11:26-12:43:48:(4016) |CCL_INFO|   nic: { name tcp:eth0, state unknown, speed \
1.25 GB/s }
2025:11:26-12:43:48:(4016) |CCL_INFO| atl-ofi:
{
  prov_count: 1
}
2025:11:26-12:43:48:(4016) |CCL_INFO| atl attrs:
{
  in: { shm: 0, hmem: 0, sync_coll: 0, extra_ep: 0, ep_count: 4, mnic_type: none }
  out: { shm: 0, hmem: 0, mnic_type: none, mnic_count: 1, tag_bits: 64 }
}
2025:11:26-12:43:48:(4016) |CCL_INFO| library version: Gold-2021.15.2 2025-05-12
"""

# The other ranks of the launch print no more than this.
CCL_OTHER_RANK = """\
2025:11:26-12:43:48:(4017) |CCL_INFO| fi_version: 1.10
2025:11:26-12:43:48:(4017) |CCL_INFO| found 1 nic(s) according to all filters
"""
