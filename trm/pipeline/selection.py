"""The selected experiments, and the figures and fits that they need."""

import fnmatch
from collections.abc import Callable
from functools import cached_property
from typing import Any

from trm.errors import UserError
from trm.pipeline.catalogue import Catalogue, Figure, Fit


class Selection:
    """The requested experiments and those that are complete already, with their figures and fits.

    Args:
        catalogue: the study's names.
        wanted: `report`, `study`, or names and patterns of experiments separated by commas.
        exists: whether a `results/...` file exists.
    """

    def __init__(self, catalogue: Catalogue, wanted: str, exists: Callable[[str], bool]):
        self._catalogue, self._exists = catalogue, exists
        self._study = catalogue.study
        self.wanted = self._parse(wanted)

    def _parse(self, text: str) -> list[str]:
        """Names of the requested experiments, in the study's order. UserError: an unknown name, or one that cannot run
        here, with what it needs."""
        study = self._study
        if text in ("report", "study"):
            return study.selected(text)
        names = set()
        for pattern in text.replace(",", " ").split():
            hits = [study.experiment(name) for name in fnmatch.filter(study.experiments, pattern)]
            hits = hits or [study.experiment(pattern)]
            runnable = [experiment.name for experiment in hits if not experiment.skip]
            if not runnable:
                raise UserError("; ".join(dict.fromkeys(study.why_skipped(hit.name) for hit in hits)))
            names.update(runnable)
        return [name for name in study.experiments if name in names]

    @cached_property
    def experiments(self) -> list[str]:
        """Requested experiments, and those whose results are complete."""
        return [
            name
            for name, experiment in self._study.experiments.items()
            if name in self.wanted or (not experiment.skip and self.is_done(name))
        ]

    def is_done(self, experiment: str) -> bool:
        return all(self._exists(f"results/runs/{name}") for name in self._catalogue.evaluations(experiment))

    @cached_property
    def figures(self) -> dict[str, Figure]:
        """Every figure of the scale by its stem, and every panel of one that can stand alone, which only its own target
        asks for. UserError: figures of two experiments have one name."""
        found = dict(self._whole)
        for figure in self._whole.values():
            for panel in figure.spec.alone():
                if panel.name not in found:
                    where = f"{self._catalogue.path}: figures"
                    one = self._catalogue.figure(panel.model_dump(mode="json"), "", where, found)
                    found |= {one.stem: one} if one else {}
        return found

    @cached_property
    def _whole(self) -> dict[str, Figure]:
        """The figures that the study lists. Figures over several experiments show those that are selected."""
        catalogue = self._catalogue
        found: dict[str, Figure] = {}
        owners: dict[str, str] = {}
        for name in self._study.experiments:
            for own in catalogue.figures_of(name):
                found[own.stem] = own
                if (other := owners.setdefault(own.stem.lower(), name)) != name:  # as macOS compares
                    raise UserError(
                        f"{catalogue.path}: experiments {other} and {name} both have a figure named {own.stem}; "
                        "give one another `name`"
                    )
        for raw in self._study.file.figures:
            self._refuse_unknown(raw)
            restricted = self._restrict(dict(raw))
            figure = restricted and catalogue.figure(restricted, "", f"{catalogue.path}: figures", found)
            if figure:
                found[figure.stem] = figure
        return found

    def _refuse_unknown(self, raw: dict[str, Any]) -> None:
        """Refuse an experiment that the study does not have, unless the figure is inherited (UserError)."""
        names = [panel.get("experiment") for panel in raw.get("panels", ())] + list(raw.get("sources", ()))
        if self._study.places.get(("figures",), "").startswith(f"{self._study.path}:"):
            for name in filter(None, names):
                self._study.experiment(name)

    def _restrict(self, raw: dict[str, Any]) -> dict[str, Any] | None:
        """A figure over several experiments without those that are not selected; None if none is left."""
        if "panels" in raw:
            raw["panels"] = [panel for panel in raw["panels"] if panel.get("experiment") in self.experiments]
            return raw if raw["panels"] else None
        if "sources" in raw:
            raw["sources"] = [name for name in raw["sources"] if name in self.experiments]
            return raw if raw["sources"] else None
        return raw

    @cached_property
    def shown(self) -> list[Figure]:
        """The figures of the report: those whose experiments are all selected."""
        return [
            figure
            for figure in self._whole.values()
            if all(name in self.experiments for name in figure.experiments)
        ]

    @cached_property
    def fits(self) -> dict[str, Fit]:
        """Every fit of the scale by its file stem."""
        return {fit.name: fit for figure in self.figures.values() for fit in figure.fits}

    def figure(self, stem: str) -> Figure:
        return self._catalogue.find(self.figures, stem, "figure")

    def fit(self, name: str) -> Fit:
        return self._catalogue.find(self.fits, name, "fit")

    def category(self, stem: str) -> str:
        """Section of `snakemake --report` that a figure belongs to."""
        figure = self.figures.get(stem)
        return figure.experiments[0] if figure and len(figure.experiments) == 1 else "Laws"

    @cached_property
    def targets(self) -> dict[str, list[str]]:
        """Experiment -> its figures, or its table if it has none; nothing for one that cannot run."""
        catalogue, found = self._catalogue, {}
        for name, experiment in self._study.experiments.items():
            figures = [figure.files[0] for figure in catalogue.figures_of(name)]
            found[name] = figures or ([] if experiment.skip else [catalogue.table_file(name)])
        return found
