"""`agreement`: equal computations agree at the start."""

from trm.analysis.kinds.agreement import Agreement, agreement_sentence


def test_runs_agree_or_do_not() -> None:
    first = Agreement("CPU", {}, {})
    same = Agreement("plain", {"loss": 0.0}, {"loss": 0.0})
    near = Agreement("XLA", {"loss": 1e-6}, {"loss": 0.02})
    far = Agreement("CUDA", {"loss": 0.1}, {"loss": 0.2})
    text = agreement_sentence([first, same, near, far])
    assert "plain is bit-identical to CPU" in text
    assert "XLA agrees with CPU. Its loss differs by" in text
    assert "CUDA does not agree with CPU" in text
