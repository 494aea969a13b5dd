"""Registering, finding and restoring operators; draws that depend on nothing but the sample's position."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from mmdata.errors import ConfigError
from mmdata.operators import registry
from mmdata.operators.registry import (
    Arguments,
    AudioTransform,
    Context,
    ImageTransform,
    VideoTransform,
    statistic,
    transform,
)
from mmdata.recipe import base
from mmdata.recipe.model import Recipe
from mmdata.schema import MediaInfo


@pytest.fixture(autouse=True)
def _own_table() -> Iterator[None]:
    """Operators that a test registers are gone after it."""
    registry.load_builtin()
    before = dict(base._operators)
    yield
    base._operators.clear()
    base._operators.update(before)


def half(media: Any) -> dict[str, float]:
    return {"half": 0.5}


class Turn(ImageTransform):
    """Turns."""

    degrees: int = 90
    """Quarter turns in degrees."""
    steps: tuple[float, ...] = ()

    def apply(self, media: Any, context: Context) -> Any:
        return media


def context(**changes: Any) -> Context:
    return Context(**{"seed": 1, "leaf": "data", "pass_": 0, "key": "a/b", **changes})


def test_a_transform_is_found_by_role_modality_and_name() -> None:
    transform("turn", "image")(Turn)
    found = registry.get("transform", "image", "turn")
    assert found.model is Turn
    assert Turn.operator == found
    assert "turn" in registry.names("transform", "image")
    assert "turn" not in registry.names("statistic", "image")


def test_arguments_come_from_plain_data_and_know_their_name() -> None:
    transform("turn", "image")(Turn)
    turn = Turn.parse({"op": "turn", "degrees": 180, "steps": [1, 0.5]})
    assert turn == Turn(degrees=180, steps=(1.0, 0.5))
    assert turn.plain() == {"op": "turn", "degrees": 180, "steps": [1.0, 0.5]}
    assert pickle.loads(pickle.dumps(turn)) == turn


@pytest.mark.parametrize(
    "wrong", [{"degrees": "90"}, {"degrees": True}, {"degrees": 90.0}, {"degres": 90}, {"op": "x"}]
)
def test_arguments_are_strict(wrong: dict[str, Any]) -> None:
    transform("turn", "image")(Turn)
    with pytest.raises(ValidationError):
        Turn.parse(wrong)


def test_arguments_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        Turn().degrees = 3  # type: ignore[misc]


def test_an_unknown_name_gets_the_nearest_right_one() -> None:
    transform("turn", "image")(Turn)
    with pytest.raises(ConfigError, match="unknown image transform 'tunr'; did you mean 'turn'"):
        registry.get("transform", "image", "tunr")


def test_a_name_of_another_modality_is_said_to_be_one() -> None:
    transform("turn", "image")(Turn)
    with pytest.raises(ConfigError, match="'turn' is a transform for image, not for audio"):
        registry.get("transform", "audio", "turn")


def test_a_function_is_a_statistic_of_every_modality_it_names() -> None:
    statistic("half", ("image", "video"), {"half": pa.float32()})(half)
    requested = [registry.get("statistic", "image", "half").model()]
    for modality in ("image", "video"):
        (found,) = registry.statistics_for(requested, modality)  # type: ignore[arg-type]
        assert found.measure(None) == {"half": 0.5}
    assert registry.statistics_for(requested, "audio") == []


def test_a_statistic_of_a_function_survives_pickling() -> None:
    statistic("half", "image", {"half": pa.float32()})(half)
    model = registry.get("statistic", "image", "half").model
    assert pickle.loads(pickle.dumps(model())).measure(None) == {"half": 0.5}


def test_statistics_land_in_catalog_columns() -> None:
    statistic("half", "image", {"half": pa.float32()})(half)
    registry.load_builtin()
    requested = [base.find_operators(name=name)[0].model() for name in ("half", "text_length")]
    assert registry.statistic_columns(requested) == {"stat.half": pa.float32(), "text_chars": pa.int32()}


def test_a_name_is_registered_once() -> None:
    transform("turn", "image")(Turn)
    transform("turn", "image")(Turn)

    class Other(Turn):
        pass

    with pytest.raises(ValueError, match="registered by"):
        transform("turn", "image")(Other)


def test_one_statistic_takes_the_same_arguments_in_every_modality() -> None:
    class Plain(Arguments):
        def measure(self, media: Any) -> dict[str, Any]:
            return {}

    class More(Plain):
        window: int = 3

    statistic("sharp", "image", {})(Plain)
    with pytest.raises(ValueError, match="same arguments for video and image"):
        statistic("sharp", "video", {})(More)


@pytest.mark.parametrize("modality", ["audio", "video"])
def test_a_transform_without_its_methods_is_refused_at_once(modality: Any) -> None:
    class Bare(Arguments):
        pass

    with pytest.raises(TypeError, match="lacks the method"):
        transform("bare", modality)(Bare)


def test_base_transforms_change_nothing() -> None:
    class Sound(AudioTransform):
        pass

    class Clip(VideoTransform):
        pass

    info = MediaInfo(width=64, height=48)
    frame = np.zeros((48, 64, 3), np.uint8)
    clip = Clip()
    assert clip.select(np.arange(3.0), info, context()) is None
    assert clip.frame(frame, context()) is frame
    assert clip.size(info, context()) == (64, 48)
    assert not clip.is_noop(info, context()) and not Sound().is_noop(info, context())
    with pytest.raises(NotImplementedError):
        Sound().apply(None, context())


def test_draws_depend_on_every_part_of_the_position_and_on_nothing_else() -> None:
    base_draw = context().draw("flip")
    assert base_draw == context(target=(64, 64), frames=3, alpha="black").draw("flip")
    others = [
        context(seed=2).draw("flip"),
        context(leaf="other").draw("flip"),
        context(pass_=1).draw("flip"),
        context(key="a/c").draw("flip"),
        context(occurrence=1).draw("flip"),
        context().draw("crop"),
        context(leaf="dat", key="aa/b").draw("flip"),
    ]
    assert len({base_draw, *others}) == 8


def test_draws_are_uniform_over_keys() -> None:
    draws = np.array([context(key=f"sample-{number}").draw("flip") for number in range(4000)])
    # Kolmogorov-Smirnov distance of 4000 uniform draws stays under 1.63 / sqrt(n) with probability 0.99.
    distance = np.abs(np.sort(draws) - (np.arange(4000) + 0.5) / 4000).max()
    assert distance < 1.63 / np.sqrt(4000)


def test_draws_are_the_same_in_every_process() -> None:
    code = "from mmdata.operators.registry import Context; print(repr(Context(1, 'data', 0, 'a/b').draw('flip')))"
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        shown = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        assert float(shown.stdout) == context().draw("flip")


def test_prepare_names_the_operator_that_lacks_something() -> None:
    class Needs(ImageTransform):
        def prepare(self) -> None:
            raise ConfigError("needs: the package x is not installed")

    transform("needs", "image")(Needs)
    recipe = Recipe.parse(
        {
            "source": [{"type": "folder", "path": "in"}],
            "output": {"path": "out"},
            "transforms": {"image": [{"op": "needs"}]},
        }
    )
    with pytest.raises(ConfigError, match=r"transforms\.image\.0: needs: the package x"):
        registry.prepare(recipe)


class _Entry:
    """An entry point, as `importlib.metadata` gives it."""

    name, value = "extra", "extra.operators"

    def __init__(self, load: Any) -> None:
        self.load = load


def test_plugins_register_through_the_entry_point_group(monkeypatch: pytest.MonkeyPatch) -> None:
    def plug_in() -> None:
        transform("turn", "image")(Turn)

    asked = []

    def entry_points(group: str) -> list[_Entry]:
        asked.append(group)
        return [_Entry(lambda: plug_in)]

    monkeypatch.setattr(registry, "_loaded", False)
    monkeypatch.setattr(registry.importlib.metadata, "entry_points", entry_points)
    registry.load_builtin()
    assert asked == ["tessera.operators"]
    assert registry.get("transform", "image", "turn").model is Turn


def test_a_plugin_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise ModuleNotFoundError("No module named 'extra'")

    monkeypatch.setattr(registry, "_loaded", False)
    monkeypatch.setattr(registry.importlib.metadata, "entry_points", lambda group: [_Entry(broken)])
    with pytest.raises(
        ConfigError, match=r"plug-in 'extra' \(extra\.operators\) cannot be loaded: ModuleNotFoundError"
    ):
        registry.load_builtin()
