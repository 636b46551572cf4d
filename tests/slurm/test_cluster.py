"""The test cluster beside other programs."""

from pathlib import Path

from tests.slurm.cluster import reserve_ports


def test_no_two_clusters_and_no_program_that_connects_get_the_same_ports():
    reserved = [reserve_ports(7) for _ in range(3)]
    ports = {port for _, ports in reserved for port in ports}
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert len(ports) == 21
    assert low < 3_000 or not any(low <= port <= high for port in ports)
    for kept, _ in reserved:
        kept.close()
