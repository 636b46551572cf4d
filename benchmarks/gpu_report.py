"""The results of `benchmarks.gpu` as a table and a figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TARGETS = {"train-mlp": 2.5, "train-attention": 1.8, "evaluate-mlp": 2.5, "evaluate-attention": 2.5}
"""Ratios owed to the compiled baseline on one H200."""


def collect(folder: Path, names: list[str]) -> dict[str, Any]:
    """Results by job, and all of them in one file."""
    found = {
        name: json.loads((folder / f"{name}.json").read_text())
        for name in names
        if (folder / f"{name}.json").exists()
    }
    (folder / "gpu.json").write_text(json.dumps(found, indent=1))
    return found


def table(results: dict[str, Any]) -> str:
    """What was measured, one line a job."""
    lines = []
    for name, document in results.items():
        found = document["result"]
        if name == "ceilings":
            rates = (
                f"{found['flops_per_second'] / 1e12:.1f} TFLOP/s, {found['bytes_per_second'] / 1e12:.2f} TB/s"
            )
            lines.append(f"{name:28} {found['device']}, torch {found['torch']}: {rates}")
        elif name == "checks":
            passed = [check["passed"] for check in found.get("checks", ())]
            text = f"{sum(passed)} of {len(passed)} passed, {len(found.get('broken', ()))} broke off"
            lines.append(f"{name:28} {found.get('skipped') or text}")
        elif name == "confident":
            exact = found["exact"]
            lines.append(
                f"{name:28} {found['ratio']:.2f} times faster, exact {100 * exact['confident']:.2f} % (every step: "
                f"{100 * exact['fixed']:.2f} %), {found['mean_steps']:.2f} steps, {found['puzzles']} puzzles"
            )
        else:
            low, high = found["ratio_quartiles"]
            target = TARGETS.get(name.rpartition("-")[0]) if name.endswith(("compiled", "whole")) else None
            rest = f"  {100 * found['share']:.0f} % of the ceiling"
            if "memory" in found:
                rest += f"  {found['memory'] / 1e9:.1f} GB (baseline {found['baseline_memory'] / 1e9:.1f})"
            if "full_test_minutes" in found:
                rest += f"  422,786 puzzles in {found['full_test_minutes']:.1f} min at this rate"
            owed = f" owed {target}" if target else ""
            lines.append(
                f"{name:28} {found['rows_per_second']:9.1f} rows/s, baseline {found['baseline_rows_per_second']:9.1f}"
                f"  ratio {found['ratio']:.2f} ({low:.2f}-{high:.2f}){owed}{rest}"
            )
    return "\n".join(lines)


def draw(results: dict[str, Any], path: Path) -> None:
    """Ratios with their quartiles as bars."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    bars = {name: d["result"] for name, d in results.items() if name.startswith(("train-", "evaluate-"))}
    if not bars:
        return
    figure, axis = plt.subplots(figsize=(7, 0.45 * len(bars) + 1.2), layout="constrained")
    for place, found in enumerate(bars.values()):
        low, high = found["ratio_quartiles"]
        ratio = found["ratio"]
        error = [[max(0.0, ratio - low)], [max(0.0, high - ratio)]]
        axis.barh(place, ratio, xerr=error, color="#4477aa", error_kw={"elinewidth": 1})
        axis.text(0.02, place, f"{ratio:.2f}", va="center", color="white", fontsize=8)
    for place, name in enumerate(bars):
        target = TARGETS.get(name.rpartition("-")[0]) if name.endswith(("compiled", "whole")) else None
        if target:
            axis.plot([target, target], [place - 0.4, place + 0.4], color="#cc3311")
    axis.set_yticks(range(len(bars)), list(bars))
    axis.invert_yaxis()
    axis.axvline(1, color="grey", linewidth=0.8)
    axis.set_xlabel("rows/s of ours / rows/s of the other way (bars: median and quartiles; red: owed)")
    if "ceilings" in results:
        axis.set_title(results["ceilings"]["result"]["device"], fontsize=9)
    figure.savefig(path, dpi=120)
    plt.close(figure)
