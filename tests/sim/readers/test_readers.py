"""Each form in its published columns: what becomes a job, what is refused and where, what is another file."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayorch.core.errors import SpecError
from rayorch.core.resources import UNIT, Resources
from rayorch.core.types import QueueId, QueueSpec
from rayorch.sim.readers import FORMS, alibaba, gavel, helios, open_trace, openb, pai, recognise, swf, tiresias
from rayorch.sim.readers.rows import members_of, on_nodes, share
from rayorch.sim.trace.model import Ask, Trace, TraceJob

THROUGHPUTS = json.dumps(
    {"v100": {"('LM', 1)": {"null": 2.0, "('LM', 1)": [1.5, 1.0]}, "('LM', 4)": {"null": 8.0}}, "k80": {}}
)

PHILLY = """timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:02:00,66.0,1,66.0,11cb48
2017-10-09 07:01:00,2951.0,12,35412.0,6214e9
yesterday,1,1,1,a
2017-10-09 07:01:00,-5,1,1,a
2017-10-09 07:01:00,5,0,1,a
2017-10-09 07:01:00,5,1
"""

PHILLY_JSON = json.dumps(
    [
        {
            "status": "Killed",
            "vc": "ee9e8c",
            "jobid": "application_1",
            "attempts": [
                {
                    "start_time": "2017-10-07 01:12:00",
                    "end_time": "2017-10-07 01:13:00",
                    "detail": [{"ip": "m47", "gpus": ["gpu0", "gpu1"]}, {"ip": "m48", "gpus": ["gpu0", "gpu1"]}],
                },
                {
                    "start_time": "2017-10-07 01:13:30",
                    "end_time": "2017-10-07 01:14:00",
                    "detail": [{"ip": "m47", "gpus": ["gpu0", "gpu1"]}, {"ip": "m49", "gpus": ["gpu0", "gpu1"]}],
                },
            ],
            "submitted_time": "2017-10-07 01:11:30",
            "user": "ce2f4c",
        },
        {
            "status": "Pass",
            "vc": "a",
            "jobid": "b",
            "attempts": [],
            "submitted_time": "2017-10-07 01:11:30",
            "user": "u",
        },
        {"status": "Pass"},
        7,
    ]
)

OPENB = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
openb-pod-0000,12000,16384,1,1000,,LS,Running,0,12537496,0
openb-pod-0001,6000,12288,1,460,V100M16|V100M32|V100M32,BE,Failed,100,400,150
openb-pod-0002,6000,12288,2,1000,,BE,Pending,100,400,
openb-pod-0003,6000,12288,0,0,,Burstable,Succeeded,100,400,150
openb-pod-0004,6000,12288,1,0,,BE,Pending,100,400,
openb-pod-0005,6000,12288,1,500,,BE,Pending,100,50,
openb-pod-0001,6000,12288,1,500,,BE,Pending,100,150,
"""

SWF = """; Computer: a cluster
; UnixStartTime: 0
  1   10  5  100  8 -1 -1  -1  200 -1 1 3 1 7 2 -1 -1 -1
  2    4 -1   30  4 -1 -1   6   -1 -1 5 -1 1 -1 -1 -1 -1 -1
  3    4 -1   -1  4 -1 -1   6   -1 -1 5 -1 1 -1 -1 -1 -1 -1
  4    4 -1   30  4 -1 -1
  5    4 -1   30 -1 -1 -1  -1   -1 -1 0 -1 1 -1 -1 -1 -1 -1
"""

TIRESIAS = """job_id,num_gpu,submit_time,iterations,model_name,duration,interval
0,1,0,606,vgg19,164,30
1,8,30,133,vgg11,147,23
2,two,53,157,inception4,127,26
"""

HELIOS = """job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1,uX,vcJ,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:42:01,2020-06-09 19:42:01,3600,60
2,uV,vcb,16,32,2,FAILED,2020-06-09 18:41:00,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0
3,uz,vcD,1,1,1,CANCELLED,2020-06-09 18:41:28,,2020-06-17 14:15:21,675233,0
4,uz,vcD,0,12,3,COMPLETED,2020-06-09 18:41:28,2020-06-09 18:41:28,2020-06-09 18:41:38,10,0
5,uz,vcD,1,1,1,RUNNING,2020-06-09 18:41:28,2020-06-09 18:41:28,None,10,0
"""

SEREN = (
    "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time\n"
    "5778432,u5907,1,8,128,Other,FAILED,2023-03-01 00:18:22+08:00,2023-03-01 00:18:54+08:00,"
    "2023-03-01 00:20:51+08:00,117,32,936.0\n"
)

KALOS = (
    "job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,start_time,end_time,"
    "fail_time,stop_time,duration,queue,gpu_time\n"
    "dlc1,uf794,8,64,960,1000,100.0,Pretrain,CANCELLED,2023-05-17 11:00:58+00:00,2023-05-17 11:01:08+00:00,"
    "2023-05-17 11:01:16+00:00,2023-05-17 11:01:16+00:00,,18,10.0,1152.0\n"
)

PAI_TASKS = """4f057,tensorflow,1.0,Terminated,1739162.0,1739200.0,600.0,29.296875,50.0,MISC
4f058,worker,4.0,Failed,1739170.0,1739180.0,400.0,10,100.0,V100
4f058,ps,2.0,Failed,1739170.0,1739180.0,400.0,10,,
4f059,worker,1.0,Waiting,1739170.0,,400.0,10,100.0,V100
4f060,worker,1.0,Terminated,1739170.0,1739180.0,,,,
"""
PAI_JOBS = """4f057,8cb3,58540f,Terminated,1739100.0,1739200.0
4f058,8cb4,58540e,Failed,1739160.0,1739180.0
"""

PAI_SIMULATED = """job_id,user,num_gpu,num_cpu,num_inst,submit_time,duration,gpu_type,group
1,a,0.5,6,2,10,100,V100,g
2,a,1,4,1,5,0,MISC,
3,a,x,4,1,5,0,MISC,
"""

DLRM = (
    "instance_sn,role,app_name,cpu_request,cpu_limit,gpu_request,gpu_limit,rdma_request,rdma_limit,memory_request,"
    "memory_limit,disk_request,disk_limit,max_instance_per_node,creation_time,scheduled_time,deletion_time\n"
    "instance_0,HN,app_0,12,12,1,1,25,25,120.0,120.0,640.0,800.0,8,,,\n"
    "instance_1,CN,app_1,64,64,0,0,1,1,320.0,320.0,255.0,300.0,-1,1000.0,1010.0,5000.0\n"
    "instance_2,CN,app_1,64,64,0,0,1,1,320.0,320.0,255.0,300.0,-1,6000.0,6010.0,5000.0\n"
)

SPOT = """job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type
239255,13,A10,20,1,1,0,2764799,HP
437260,57,A100-SXM4-80GB,15,1,16,9589663,41060,Spot
437261,57,A100-SXM4-80GB,15,1,0,9589663,41060,Spot
"""

POLLUX = """name,time,application,num_replicas,batch_size
cifar10-0,107,cifar10,6,2048
gpt-1,110,gpt,6,320
"""

GAVEL_OLD = (
    "LM\tcd %s && python3 main.py\t--steps\t1\t1000\t6.000000\t1\nOther\tx\t-n\t1\t10\t7.0\t1\nLM\tx\t-n\t1\t10\t7.0\n"
)
GAVEL_NEW = "LM\tpython3 main.py\tdir\t--steps\t0\t1600\t4\t2.0\t-1.0\t6.5\n"

SACCT = """JobID|JobName|User|Account|Partition|Submit|Start|End|State|NNodes|AllocTRES|ReqTRES
10|train|ann|lab|gpu|@00:00:00|@00:01:00|@01:01:00|COMPLETED|2|billing=16,cpu=16,gres/gpu:a100=8,gres/gpu=8,mem=128G,node=2|cpu=16
10.batch|batch||lab||@00:01:00|@00:01:00|@01:01:00|COMPLETED|1|cpu=8|
10.0|python||lab||@00:01:00|@00:01:00|@01:01:00|COMPLETED|2|cpu=16|
11_3|sweep|bob|lab|gpu|@00:00:30|@00:02:00|@00:02:30|CANCELLED by 1000|1|cpu=1,gres/gpu=1,mem=512M,node=1|
11_[4-9%2]|sweep|bob|lab|gpu|@00:00:30|Unknown|Unknown|PENDING|1||cpu=1,mem=4000M,node=1
12|cpu|bob|lab|cpu|@00:00:30|@00:02:00|@00:02:30|OUT_OF_ME+|1|cpu=3,mem=3G,node=1|
13|again|bob|lab|gpu|@00:00:40|@00:02:00|@00:02:30|PREEMPTED|1|cpu=1,gres/gpu=1,node=1|
13|again|bob|lab|gpu|@00:00:40|@00:03:00|@00:05:00|TIMEOUT|1|cpu=1,gres/gpu=1,node=1|
14|still|bob|lab|gpu|@00:00:40|@00:03:00|Unknown|RUNNING|1|cpu=1,gres/gpu=1,node=1|
""".replace("@", "2026-01-01T")

SAMPLES = {
    "philly": PHILLY,
    "philly-json": PHILLY_JSON,
    "openb": OPENB,
    "pai": PAI_TASKS,
    "pai-simulator": PAI_SIMULATED,
    "dlrm": DLRM,
    "spot-gpu": SPOT,
    "helios": HELIOS,
    "acme": SEREN,
    "pollux": POLLUX,
    "tiresias": TIRESIAS,
    "gavel": GAVEL_OLD,
    "swf": SWF,
    "sacct": SACCT,
}


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str, name: str = "trace") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def _gpus(job: TraceJob) -> tuple[int, float]:
    return job.ask.members, job.ask.each.gpu_units / UNIT


def _refusals(trace: Trace) -> list[tuple[int, str]]:
    return [(row.line, row.reason) for row in trace.refused]


# ---------------------------------------------------------------- forms


def test_philly_as_a_table(file: Callable[..., Path]) -> None:
    trace = open_trace(file(PHILLY))
    first, second = trace.jobs
    assert (first.submit_s, second.submit_s) == (0.0, 60.0)  # by time, from the first submission
    assert first == TraceJob("philly-3", 0.0, 2951.0, Ask(12, Resources.of({"GPU": 1})), queue="6214e9", line=3)
    assert [line for line, _ in _refusals(trace)] == [4, 5, 6, 7]
    assert "not a time: 'yesterday'" in trace.refused[0].reason
    assert trace.refused[3].reason == "has 3 cells, expected 5"
    assert _gpus(open_trace(file(PHILLY), per_node=8).jobs[0]) == (2, 6.0)


def test_philly_as_it_was_published(file: Callable[..., Path]) -> None:
    trace = open_trace(file(PHILLY_JSON))
    (job,) = trace.jobs
    assert (job.duration_s, job.started_s, job.ended_s, job.status) == (90.0, 30.0, 150.0, "cancelled")
    assert (_gpus(job), job.queue, job.user) == ((2, 2.0), "ee9e8c", "ce2f4c")
    assert [line for line, _ in _refusals(trace)] == [2, 3, 4]


def test_openb(file: Callable[..., Path]) -> None:
    nodes = file("sn,cpu_milli,memory_mib,gpu,model\nb,64000,262144,2,P100\na,32000,262144,0,\n", "nodes")
    trace = open_trace(file(OPENB), nodes=nodes)
    whole, part, two, cpu = trace.jobs
    assert (whole.duration_s, whole.priority, whole.name) == (12537496.0, 2, "LS")
    assert (_gpus(part), part.ask.models, part.duration_s) == ((1, 0.46), ("V100M16", "V100M32"), 250.0)
    assert part.status == "failed" and part.ask.each.units("CPU") == 6 * UNIT
    assert part.ask.each.units("memory") == 12288 * 2**20 * UNIT
    assert (_gpus(two), two.duration_s, two.started_s) == ((1, 2.0), 300.0, None)
    assert _gpus(cpu) == (1, 0.0)
    assert [line for line, _ in _refusals(trace)] == [6, 7, 8]
    assert [(n.id, n.model, n.total.gpu_units) for n in trace.nodes] == [("a", "", 0), ("b", "P100", 2 * UNIT)]


def test_openb_without_times_never_leaves(file: Callable[..., Path]) -> None:
    trace = open_trace(file("name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1000,1,1,1000\nb,1000,1,1,1000\n"))
    assert [(j.submit_s, j.duration_s) for j in trace.jobs] == [(0.0, math.inf), (1.0, math.inf)]
    with pytest.raises(SpecError, match="line 2"):
        openb.read_nodes(file("sn,cpu_milli,memory_mib,gpu,model\nb,64000,262144,two,P100\n", "nodes"))


def test_swf(file: Callable[..., Path]) -> None:
    trace = open_trace(file(SWF))
    second, first = trace.jobs
    assert (first.id, first.submit_s, first.duration_s, _gpus(first)) == ("1", 10.0, 100.0, (8, 1.0))
    assert (first.started_s, first.ended_s, first.status, first.user, first.name, first.queue) == (
        15.0,
        115.0,
        "succeeded",
        "u3",
        "app7",
        "q2",
    )
    assert (second.queue, second.user, second.status, second.started_s) == ("all", "", "cancelled", None)
    assert _gpus(second) == (6, 1.0)  # what was asked for goes before what was used
    assert [line for line, _ in _refusals(trace)] == [5, 6, 7]
    on_cpus = swf.read(file(SWF), processor="CPU", per_node=4).jobs[1]
    assert (on_cpus.ask.members, on_cpus.ask.each) == (2, Resources.of({"CPU": 4}))


def test_equal_times_keep_the_order_of_the_file(file: Callable[..., Path]) -> None:
    rows = [f"{n} 5 -1 1 1 -1 -1 1 -1 -1 1 1 1 1 1 -1 -1 -1" for n in (7, 3, 9, 1)]
    assert [job.id for job in open_trace(file("\n".join(rows))).jobs] == ["7", "3", "9", "1"]


def test_tiresias(file: Callable[..., Path]) -> None:
    trace = open_trace(file(TIRESIAS))
    assert [(j.id, j.submit_s, j.duration_s, j.steps, j.name) for j in trace.jobs] == [
        ("0", 0.0, 164.0, 606, "vgg19"),
        ("1", 30.0, 147.0, 133, "vgg11"),
    ]
    assert _refusals(trace) == [(4, "num_gpu is not a number: 'two'")]
    times, refused = tiresias.read_service_times(file("duration\n121\n122\nx\n"))
    assert times == (121.0, 122.0) and [row.line for row in refused] == [4]


def test_helios(file: Callable[..., Path]) -> None:
    quotas = file("date,vcJ,vcb,total\n2020-08-31,8,8,16\n2020-09-01,64,96,160\n", "quotas")
    trace = open_trace(file(HELIOS), quotas=quotas)
    big, small, cpu = trace.jobs
    assert (big.submit_s, big.started_s, big.duration_s, big.status) == (0.0, 27.0, 249.0, "failed")
    assert (_gpus(big), big.ask.each.units("CPU") / UNIT) == ((2, 8.0), 16.0)
    assert (small.queue, small.user, small.duration_s) == ("vcJ", "uX", 3600.0)
    assert (_gpus(cpu), cpu.ask.each.units("CPU") / UNIT) == ((3, 0.0), 4.0)
    assert [line for line, _ in _refusals(trace)] == [4, 6]
    assert trace.queues == (
        QueueSpec(QueueId("vcJ"), deserved=Resources.of({"GPU": 64})),
        QueueSpec(QueueId("vcb"), deserved=Resources.of({"GPU": 96})),
    )
    assert helios.read_quotas(quotas) == trace.queues


def test_acme(file: Callable[..., Path]) -> None:
    (job,) = open_trace(file(SEREN)).jobs
    assert (job.submit_s, job.started_s, job.duration_s, _gpus(job), job.status) == (
        0.0,
        32.0,
        117.0,
        (1, 8.0),
        "failed",
    )
    (job,) = open_trace(file(KALOS)).jobs
    assert (job.duration_s, _gpus(job), job.name) == (8.0, (8, 8.0), "Pretrain")  # not the 18 s since submission
    assert job.ask.each.units("memory") == 1000 * 2**30 * UNIT


def test_pai(file: Callable[..., Path]) -> None:
    trace = open_trace(file(PAI_TASKS), jobs=file(PAI_JOBS, "jobs"))
    half, worker, ps = trace.jobs
    assert (half.id, half.user, half.started_s, half.submit_s) == ("4f057.tensorflow", "58540f", 62.0, 0.0)
    assert (_gpus(half), half.ask.models, half.ask.each.units("CPU") / UNIT) == ((1, 0.5), (), 6.0)
    assert (_gpus(worker), worker.ask.models, worker.status) == ((4, 1.0), ("V100",), "failed")
    assert _gpus(ps) == (2, 0.0)
    assert _refusals(trace) == [(4, "had not ended, so that how long it runs is not known"), (5, "asks for nothing")]
    with_header = ",".join(pai.TASK_COLUMNS) + "\n" + PAI_TASKS
    assert [job.id for job in open_trace(file(with_header)).jobs] == [job.id for job in trace.jobs]


def test_the_table_of_pais_simulator(file: Callable[..., Path]) -> None:
    trace = open_trace(file(PAI_SIMULATED))
    assert [(j.id, j.submit_s, j.duration_s, _gpus(j), j.ask.models) for j in trace.jobs] == [
        ("2", 0.0, 0.0, (1, 1.0), ()),
        ("1", 5.0, 100.0, (2, 0.5), ("V100",)),
    ]
    assert [line for line, _ in _refusals(trace)] == [4]


def test_dlrm(file: Callable[..., Path]) -> None:
    trace = open_trace(file(DLRM), rdma=True)
    before, inside = trace.jobs
    assert (before.submit_s, before.duration_s, before.ended_s, _gpus(before)) == (0.0, 6010.0, None, (1, 1.0))
    assert (inside.submit_s, inside.duration_s, inside.name, inside.priority) == (1000.0, 3990.0, "app_1", 2)
    assert before.ask.each.units("rdma") == UNIT // 4
    assert [line for line, _ in _refusals(trace)] == [4]
    assert not open_trace(file(DLRM)).jobs[0].ask.each.units("rdma")


def test_jobs_on_spot_gpus(file: Callable[..., Path]) -> None:
    nodes = file("node_name,gpu_model,gpu_capacity_num,cpu_num\n0,A10,4,192\n", "nodes")
    trace = open_trace(file(SPOT), nodes=nodes)
    high, spot = trace.jobs
    assert (high.priority, spot.priority, spot.queue, _gpus(spot)) == (1, 0, "org57", (16, 1.0))
    assert spot.ask.models == ("A100-SXM4-80GB",) and trace.nodes[0].model == "A10"
    assert [line for line, _ in _refusals(trace)] == [4]
    with pytest.raises(SpecError, match="line 2"):
        alibaba.read_spot_nodes(file("node_name,gpu_model,gpu_capacity_num,cpu_num\n0,A10,x,192\n"))
    with pytest.raises(SpecError, match="line 3 has 3 cells"):
        alibaba.read_spot_nodes(file("node_name,gpu_model,gpu_capacity_num,cpu_num\n0,A10,1,192\n1,A10,1\n"))


def test_gavel(file: Callable[..., Path]) -> None:
    throughputs = file(THROUGHPUTS, "throughputs")
    trace = open_trace(file(GAVEL_OLD), throughputs=throughputs)
    (job,) = trace.jobs
    assert (job.submit_s, job.duration_s, job.steps, job.name, _gpus(job)) == (6.0, 500.0, 1000, "LM", (1, 1.0))
    assert [line for line, _ in _refusals(trace)] == [2, 3]
    (job,) = open_trace(file(GAVEL_NEW), throughputs=gavel.read_throughputs(throughputs), per_node=8).jobs
    assert (job.submit_s, job.duration_s, job.priority, _gpus(job)) == (6.5, 200.0, 1, (1, 4.0))
    grown = open_trace(file(GAVEL_OLD), throughputs=throughputs, elastic=True)
    assert (grown.jobs[0].ask.fewest, grown.jobs[0].ask.members, grown.jobs[0].ask.largest) == (1, 1, 4)
    assert grown.speed is not None  # 2 steps/s on one GPU, 8 on four
    assert [grown.speed.rate(grown.jobs[0], (gpus,)) for gpus in (1, 2, 4)] == [1.0, 2.0, 4.0]
    with pytest.raises(SpecError, match="exclude each other"):
        gavel.read(file(GAVEL_NEW), throughputs, per_node=8, elastic=True)
    with pytest.raises(SpecError, match="throughputs"):
        open_trace(file(GAVEL_NEW))
    with pytest.raises(SpecError, match="gpu"):
        gavel.read(file(GAVEL_NEW), throughputs, gpu="h100")
    for text in ("[]", '{"v100": {"LM": {}}}', '{"v100": {"(\'LM\', 1)": {"null": -1}}}', "{"):
        with pytest.raises(SpecError):
            gavel.read_throughputs(file(text, "wrong"))


def test_sacct(file: Callable[..., Path]) -> None:
    trace = open_trace(file(SACCT))
    train, entry, cpu, again = trace.jobs
    assert (train.id, train.duration_s, train.started_s, train.status) == ("10", 3600.0, 60.0, "succeeded")
    assert (_gpus(train), train.ask.models, train.ask.each.units("CPU") / UNIT) == ((2, 4.0), ("a100",), 8.0)
    assert train.ask.each.units("memory") == 64 * 2**30 * UNIT
    assert (entry.id, entry.status, entry.queue, entry.user) == ("11_3", "cancelled", "gpu", "bob")
    assert (cpu.status, cpu.ask.each.units("CPU") / UNIT) == ("failed", 3.0)
    assert (again.line, again.duration_s, again.status) == (9, 120.0, "failed")
    assert _refusals(trace) == [
        (6, "never started"),
        (8, "is an earlier record of a job that has another in line 9"),
        (10, "had not ended, so that how long it runs is not known"),
    ]
    assert {job.queue for job in open_trace(file(SACCT), queue_by="Account").jobs} == {"lab"}
    trailing = "\n".join(f"{line}|" for line in SACCT.splitlines())  # --parsable
    assert [replace(job, line=0) for job in open_trace(file(trailing)).jobs] == [replace(j, line=0) for j in trace.jobs]
    with pytest.raises(SpecError, match="queue_by"):
        open_trace(file(SACCT), queue_by="Nothing")
    with pytest.raises(SpecError, match="resources"):
        open_trace(file("JobID|Submit|Start|End|State\n1|2026-01-01|2026-01-01|2026-01-01|FAILED\n"))


# ---------------------------------------------------------------- shapes


@given(st.integers(0, 4096), st.integers(0, 16))
def test_members_add_up_and_fit_a_node(gpus: int, per_node: int) -> None:
    members, each = members_of(gpus, per_node)
    assert members >= 1 and members * each == gpus
    assert each <= max(1, per_node)


def test_members_are_the_nodes_where_gpus_divide() -> None:
    assert on_nodes(16, 2, 8) == (2, 8)
    assert on_nodes(12, 5, 8) == (2, 6)
    assert on_nodes(4, 8, 8) == (1, 4)


@given(st.floats(0, 1e6), st.integers(1, 512))
def test_a_share_is_not_less_than_its_part_and_can_be_counted(amount: float, members: int) -> None:
    part = share(amount, members)
    assert part * members >= amount - 1e-4
    assert Resources.of({"CPU": part}) is not None


# ---------------------------------------------------------------- recognising


@pytest.mark.parametrize("name", SAMPLES)
def test_every_form_is_recognised_packed_or_not(name: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(SAMPLES[name])
    assert recognise(path).name == name
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(SAMPLES[name].encode()))
    assert recognise(packed).name == name


def test_every_form_has_a_sample() -> None:
    assert {form.name for form in FORMS} == {*SAMPLES, "journal"}


def test_what_is_no_trace_is_refused_with_what_there_is(file: Callable[..., Path], tmp_path: Path) -> None:
    for text in ("", "hello\n", "a,b,c\n1,2,3\n", "{}"):
        with pytest.raises(SpecError, match="is no trace that is known"):
            open_trace(file(text))
    with pytest.raises(SpecError, match="not a file"):
        open_trace(tmp_path / "nowhere")
    with pytest.raises(SpecError, match="format"):
        open_trace(file(PHILLY), format="csv")
    with pytest.raises(SpecError, match="is no option of philly; there are per_node"):
        open_trace(file(PHILLY), nodes=8)
    for name, value in (("per_node", "8"), ("per_node", True), ("per_node", -1), ("per_node", None), ("running", 1)):
        with pytest.raises(SpecError, match=f"{name}: must be"):
            open_trace(file(PHILLY), "journal" if name == "running" else "philly", **{name: value})
    with pytest.raises(SpecError, match="nodes: must be a file, got 3"):
        open_trace(file(PHILLY), "openb", nodes=3)
    with pytest.raises(SpecError, match="no column job_id"):
        open_trace(file(PHILLY), format="tiresias")
    with pytest.raises(SpecError, match="line 2"):
        open_trace(file("timestamp,duration,num_gpus,gpu_time,cluster\nx,1,1,1,a\n"))
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(PHILLY.encode() * 50)[:-30])
    with pytest.raises(SpecError, match="can't be read"):
        open_trace(cut, format="philly")


# ---------------------------------------------------------------- garbage

GARBAGE = st.text(st.characters(exclude_categories=("Cs",)), max_size=40) | st.sampled_from(
    ["nan", "inf", "-1", "1e999", "", '"', "1e12", "2020-13-45 99:00:00", "0001-01-01 00:00:00+14:00", "9" * 400]
)


@settings(max_examples=120, deadline=None)
@given(name=st.sampled_from(sorted(SAMPLES)), data=st.data())
def test_no_row_makes_a_reader_raise(name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """One cell of one row is replaced: the other rows stay, and that row is a job, or is counted, or is one step."""
    folder = tmp_path_factory.mktemp("garbage")
    (folder / "throughputs").write_text(THROUGHPUTS)
    separator = {"gavel": "\t", "sacct": "|", "swf": " "}.get(name, ",")
    lines = SAMPLES[name].splitlines()
    if name in ("philly-json", "pollux"):
        return
    first = 0 if name in ("pai", "gavel") else 2 if name == "swf" else 1
    at = data.draw(st.integers(first, len(lines) - 1))
    cells = lines[at].split(separator)
    cells[data.draw(st.integers(0, len(cells) - 1))] = data.draw(GARBAGE)
    lines[at] = separator.join(cells).replace("\n", " ").replace("\r", " ")
    path = folder / "trace"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    options: dict[str, object] = {"throughputs": folder / "throughputs"} if name == "gavel" else {}
    try:
        trace = open_trace(path, format=name, **options)
    except SpecError as error:
        assert "has no job" in str(error)
        return
    assert all(math.isfinite(job.submit_s) and job.submit_s >= 0 and job.duration_s >= 0 for job in trace.jobs)
    assert [job.submit_s for job in trace.jobs] == sorted(job.submit_s for job in trace.jobs)
    seen = {job.line for job in trace.jobs} | {row.line for row in trace.refused}
    rows = {n for n, line in enumerate(lines, 1) if n > first and line.strip()}
    unseen = [lines[n - 1] for n in rows - seen]
    if name == "sacct":
        unseen = [line for line in unseen if "." not in line.split("|")[0]]
    if name == "swf":
        unseen = [line for line in unseen if not line.lstrip().startswith(";")]
    assert unseen == []


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=True) | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_entry_of_phillys_json_makes_its_reader_raise(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One value somewhere in a job is replaced: that job is read or counted, the other ones stay."""
    jobs = json.loads(PHILLY_JSON)[:1] * 2
    jobs = [json.loads(json.dumps(job)) | {"jobid": f"job{n}"} for n, job in enumerate(jobs)]
    place = jobs[0]
    path: list[object] = []
    while isinstance(place, dict | list) and place and (not path or data.draw(st.booleans())):
        path.append(data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else list(range(len(place))))))
        holder, place = place, place[path[-1]]
    holder[path[-1]] = data.draw(JSON)
    file = tmp_path_factory.mktemp("json") / "cluster_job_log"
    file.write_text(json.dumps(jobs))
    trace = open_trace(file)
    assert sorted([job.line for job in trace.jobs] + [row.line for row in trace.refused]) == [1, 2]
    assert "job1" in {job.id for job in trace.jobs} or path[-1] == "jobid"


@pytest.mark.parametrize(
    ("form", "content"),
    [
        ("philly-json", "[" * 100_000),
        ("philly", '{"a":' * 50_000),
        ("philly", '"' + "a" * 200_000),
        ("sacct", '"' + "|" * 200_000),
    ],
)
def test_what_is_too_deep_or_too_wide_to_read_is_refused(form: str, content: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(content)
    with pytest.raises(SpecError, match="is not"):
        open_trace(path, form)


def test_tables_of_throughputs_that_are_none_are_refused(tmp_path: Path) -> None:
    from rayorch.sim.models.throughput import load_throughput_models
    from rayorch.sim.readers import machines

    path = tmp_path / "table.json"
    for content in ("[" * 100_000, '{"a": 1}', "{"):
        path.write_text(content)
        for read in (load_throughput_models, gavel.read_throughputs, machines.read):
            with pytest.raises(SpecError):
                read(path)
    with pytest.raises(SpecError):
        load_throughput_models(tmp_path / "none")


def test_slurm_priorities_beyond_ours_keep_their_order(file: Callable[..., Path]) -> None:
    header = "JobID|Submit|Start|End|State|NCPUS|Priority"
    times = "2026-01-01T00:00:00|2026-01-01T00:00:00|2026-01-01T01:00:00|COMPLETED|1"
    rows = [f"{n}|{times}|{priority}" for n, priority in enumerate((0, 7, 2_000_000, 4_294_901_758))]
    found = open_trace(file("\n".join((header, *rows[:2])))).jobs
    assert [job.priority for job in found] == [0, 7]
    found = open_trace(file("\n".join((header, *rows)))).jobs
    assert [job.priority for job in found] == [0, 0, 465, 999_977]


def test_a_damaged_packed_file_is_an_error_and_a_byte_order_mark_is_none(tmp_path: Path) -> None:
    rows = "\n".join(f"2017-10-09 07:{n % 60:02d}:00,{n * 7919 % 4001},1,66.0,{n * 31 % 97:x}" for n in range(500))
    packed = gzip.compress(f"{PHILLY.splitlines()[0]}\n{rows}\n".encode())
    path = tmp_path / "trace.gz"
    for place in range(20, len(packed) - 20, len(packed) // 40):
        path.write_bytes(packed[:place] + b"\xff\x00\xff" + packed[place + 3 :])
        for form in (None, "philly", "philly-json"):
            with pytest.raises(SpecError):
                open_trace(path, form)
    plain = tmp_path / "trace.json"
    plain.write_bytes(b"\xef\xbb\xbf" + PHILLY_JSON.encode())
    assert len(open_trace(plain).jobs) == 1
