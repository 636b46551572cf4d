"""What the ends of launches say about hosts and jobs."""

from snakemake_executor_plugin_tpu.health import Health
from snakemake_executor_plugin_tpu.logs import plain, reason_of
from snakemake_executor_plugin_tpu.records import JobRecord, is_newer
from snakemake_executor_plugin_tpu.slice import describe_beat

HOSTS = [("pod", host) for host in range(4)]
BUDGETS = 50, 3


def test_a_host_is_set_aside_for_jobs_of_different_names_that_fail_only_there():
    said = []
    health = Health(said.append)
    assert not health.note("a", HOSTS[0], True, 4)
    assert health.usable("a", HOSTS) == set(HOSTS[1:])  # its retry goes elsewhere
    assert not health.note("a", HOSTS[1], True, 4)  # the job is to blame: it fails on another host as well
    assert not health.note("b", HOSTS[0], True, 4)
    assert health.note("c", HOSTS[0], True, 4)
    health.set_aside(HOSTS[0], "b and c failed there")
    assert health.usable("d", HOSTS) == set(HOSTS[1:])
    assert not health.note("e", HOSTS[0], False, 4)
    health.restore(HOSTS[0])
    assert health.usable("d", HOSTS) == set(HOSTS)
    assert len(said) == 2


def test_a_straggler_is_three_times_slower_than_the_median_of_two_like_it_elsewhere():
    health = Health(lambda sentence: None)
    speeds = [("a", 1, 30.0), ("b", 0, 1.0), ("c", 2, 9.0), ("d", 0, 7.0), ("b", 0, 6.0)]
    said = [health.note_speed("train 60", job, HOSTS[host], speed, 4) for job, host, speed in speeds]
    assert said == ["", "", "", "", "3 times slower than 2 jobs like it on other hosts"]
    assert health.note_speed("train 90", "e", HOSTS[0], 0.01, 4) == ""  # jobs of another length
    assert health.note_speed("train 60", "b", HOSTS[0], 6.0, 1) == ""  # no host can be spared


def test_most_hosts_are_never_set_aside():
    health = Health(lambda sentence: None)
    for host in HOSTS:
        for job in "xy":
            if health.note(f"{job}{host[1]}", host, True, 4):
                health.set_aside(host, "")
    assert len(health.aside) == 2
    health.forget("pod")
    assert health.usable("z", HOSTS) == set(HOSTS)


def test_a_job_fails_after_losses_without_progress_only():
    record = JobRecord()
    for step in range(10):
        record.report(str(step))
        assert record.count_loss("preempted", *BUDGETS) is None
    for _ in range(3):
        assert record.count_loss("hung", *BUDGETS) is None
    said = "relaunched 3 times in a row without a newer checkpoint (the last: 9)"
    assert said in record.count_loss("hung", *BUDGETS)


def test_slices_that_live_too_briefly_prove_nothing_against_a_job():
    record = JobRecord()
    assert not any(record.count_loss("preempted", *BUDGETS, proves=False) for _ in range(50))
    assert "lost 51 launches to preemption" in record.count_loss("preempted", *BUDGETS, proves=False)


def test_a_record_survives_the_bucket():
    record = JobRecord(3, "launched", "abc", [0, 2], progress="12", losses=["preempted"])
    assert JobRecord.of({**record.document(), "by": "somebody", "unknown": 1}) == record


def test_progress_is_a_larger_number_or_another_text():
    newer, same = (("2", "1"), ("1", None), ("b", "a")), (("1", "2"), (None, "1"), ("a", "a"))
    assert all(is_newer(*pair) for pair in newer)
    assert not any(is_newer(*pair) for pair in same)


def test_the_reason_of_a_failure_is_the_line_of_the_job():
    snakemake = ["[Sat Nov 28 07:51:03 2026]", "Error in rule train:", "    jobid: 0", ""]
    assert reason_of(["step 1", "ValueError: no chips", *snakemake]) == "ValueError: no chips"
    assert reason_of(snakemake) == "jobid: 0"
    assert reason_of([]) == ""


def test_no_control_character_of_a_job_reaches_the_terminal():
    every = "".join(map(chr, range(0x300)))
    shown = plain(f"\x1b[31m{every}\x1b]0;title\x07\x1b[2")
    assert all(each in "\t\n" or 32 <= ord(each) < 127 or ord(each) >= 160 for each in shown)


def test_a_job_without_a_controller_is_said_to_be_unattended():
    beat = {"job": ["train", 2], "progress": "6", "status": "12 GiB"}
    assert describe_beat(beat, 5.0) == "train (launch 2, progress 6, 12 GiB)"
    assert describe_beat(beat, 40.0) == "train (launch 2, progress 6, 12 GiB, unattended for 40 s)"
