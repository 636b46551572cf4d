"""Slices, hosts and the packing of jobs."""

import pytest
from snakemake_interface_common.exceptions import WorkflowError

from snakemake_executor_plugin_tpu.allocation import hosts_wanted, libtpu_variables, slice_of


@pytest.mark.parametrize(
    ("name", "chips", "hosts"), [("v4-16", 8, 2), ("v3-8", 4, 1), ("v6e-1", 1, 1), ("v5p-128", 64, 16)]
)
def test_slices(name, chips, hosts):
    """Those of studies are in tests/study/test_hardware.py."""
    found = slice_of(name)
    assert (found.chips, found.hosts, found.chips_per_host) == (chips, hosts, chips // hosts)


@pytest.mark.parametrize("name", ["v4-7", "v4-4", "v4-20", "v9-8", "", "v4", "v4-0", "v5litepod-3"])
def test_slices_that_do_not_exist_are_refused(name):
    with pytest.raises(WorkflowError):
        slice_of(name)


def test_a_job_gets_one_host_or_all():
    assert [hosts_wanted(wanted, 8) for wanted in (None, 1, "1", 8, "all")] == [1, 1, 1, 8, 8]
    with pytest.raises(WorkflowError, match="a job gets 1 host, or all 8"):
        hosts_wanted(3, 8)


def test_only_one_host_of_many_hides_the_others_from_libtpu():
    assert libtpu_variables(8, slice_of("v4-64")) == {} == libtpu_variables(1, slice_of("v4-8"))
    assert libtpu_variables(1, slice_of("v4-64"))["TPU_CHIPS_PER_PROCESS_BOUNDS"] == "2,2,1"
    for slice, host in (("v4-64", "v4-8"), ("v3-32", "v3-8"), ("v5litepod-16", "v5litepod-4")):
        assert libtpu_variables(1, slice_of(slice))["TPU_ACCELERATOR_TYPE"] == host
