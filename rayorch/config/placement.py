"""The `placement` section of the Cluster document: what score policies are told."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rayorch.config.fields import Accelerators, Items, Model
from rayorch.core.errors import SpecError
from rayorch.core.placement import PlacementKnobs, TaskClass, class_of
from rayorch.core.types import CPU, GPU, Resources

MOST_CLASSES = 1_000


class ClassText(Model):
    """Seats that are asked for again and again: what each takes, the models that will do (none: any), how often."""

    cpu: Annotated[float, Field(ge=0, le=1_000_000)] = 0.0
    gpu: Annotated[float, Field(ge=0, le=1_000)] = 0.0
    accelerators: Accelerators = ()
    weight: Annotated[int, Field(ge=1, le=1_000_000_000)] = 1

    def to_core(self, field: str) -> TaskClass:
        """The class. SpecError for more than one GPU that is no whole number, and for models without GPUs."""
        if self.gpu > 1 and self.gpu != int(self.gpu):
            raise SpecError(f"{field}.gpu", f"must be at most 1, or a whole number, got {self.gpu:g}")
        if self.accelerators and not self.gpu:
            raise SpecError(f"{field}.accelerators", "names models of GPUs, but the class has none")
        bundle = Resources.of({CPU: self.cpu, GPU: self.gpu}, field)
        return class_of(bundle, self.accelerators, self.weight)


class PlacementSection(Model):
    """`classes`: what is typically asked for; without any it is learned. `seed`: of random placement."""

    classes: Items[ClassText] = ()
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] | None = None

    def to_core(self, field: str) -> PlacementKnobs | None:
        """The knobs; None where nothing is given. SpecError for a class that is given twice, or too many."""
        if not self.classes and self.seed is None:
            return None
        if len(self.classes) > MOST_CLASSES:
            raise SpecError(f"{field}.classes", f"has {len(self.classes)} classes, at most {MOST_CLASSES} are taken")
        found, known = list[TaskClass](), set[tuple[object, ...]]()
        for n, text in enumerate(self.classes):
            task = text.to_core(f"{field}.classes[{n}]")
            kind = (task.cpu, task.each, task.count, task.models)
            if kind in known:
                raise SpecError(f"{field}.classes[{n}]", "is a class that is given before")
            known.add(kind)
            found.append(task)
        return PlacementKnobs(tuple(found), self.seed or 0)
