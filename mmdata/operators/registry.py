"""The registry of operators: typed arguments, decorators that register them, look-up with near misses, and `Context`,
the only source of random draws. Knows no recipe file, no shard, and imports no media library.

A statistic is a function or an `Arguments` class with `measure`; a transform is an `ImageTransform`,
`VideoTransform`, `AudioTransform` or `TextTransform`. Packages add their own through the entry-point group
`tessera.operators`: each entry names a module (or a function, which is called) that registers operators with the
decorators of this file.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from pydantic import model_validator

from mmdata.errors import ConfigError
from mmdata.recipe.base import (
    MODALITIES,
    Operator,
    OperatorModality,
    Role,
    Section,
    find_operators,
    register_operator,
)
from mmdata.recipe.words import suggest

if TYPE_CHECKING:
    import numpy as np

    from mmdata.recipe.model import Recipe
    from mmdata.schema import MediaInfo

ENTRY_POINTS = "tessera.operators"
"""Entry-point group in which other packages name modules with operators."""


@dataclass(frozen=True, slots=True)
class Context:
    """Everything beside the media that a transform may look at. The same context always gives the same result."""

    seed: int
    """The recipe's seed."""
    leaf: str
    """Name of the leaf dataset."""
    pass_: int
    """Which pass over the data; 0 in a build."""
    key: str
    """Key of the sample."""
    target: tuple[int, int] | None = None
    """Width and height of the sample's bucket in pixels; None without picture buckets."""
    frames: int | None = None
    """Frames of the sample's bucket; None without."""
    duration: float | None = None
    """Seconds of the sample's bucket (its upper edge); None without."""
    alpha: str = "white"
    """How transparency is shown, and the colour of padding: `white`, `black` or `drop`."""
    occurrence: int = 0
    """How many operators of the same name stand before this one in the chain, so that two of them draw differently."""

    def rng(self, operator: str) -> np.random.Generator:
        """A generator keyed by (seed, leaf, pass, key, operator, occurrence): Philox with a 128-bit BLAKE2b key.

        Calls with the same operator start the same sequence again: call once per use.
        """
        import numpy as np

        parts = (str(self.seed), self.leaf, str(self.pass_), self.key, operator, str(self.occurrence))
        digest = hashlib.blake2b(digest_size=16)
        for part in parts:
            encoded = part.encode("utf-8", "surrogatepass")
            digest.update(len(encoded).to_bytes(8, "little") + encoded)
        return np.random.Generator(np.random.Philox(key=int.from_bytes(digest.digest(), "little")))

    def draw(self, operator: str) -> float:
        """One uniform number in [0, 1): the first of `rng(operator)`."""
        return float(self.rng(operator).random())


class Arguments(Section):
    """Base of all operator arguments: the mapping a recipe writes, `op` naming the operator. Strict and frozen.

    Fields are documented by the docstring under each: it becomes the description in the JSON Schema. Sequences are
    tuples.
    """

    operator: ClassVar[Operator]
    """Set by the decorator: name, modality and columns."""

    op: str = ""
    """Name of the operator."""

    def prepare(self) -> None:
        """Called once before a job: raises ConfigError when a package or file that the operator needs is not there."""

    def needs_bucket(self) -> bool:
        """Whether these arguments mean nothing without buckets of the modality: then a recipe without is refused."""
        return False

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        registered = cls.__dict__.get("operator")
        if registered is None or not isinstance(data, Mapping):
            return data
        given = data.get("op", registered.name)
        if given != registered.name:
            raise ValueError(f"arguments of '{registered.name}' given to '{given}'")
        return {**data, "op": registered.name}


class ImageTransform(Arguments):
    """Changes a decoded picture (`PIL.Image.Image`, upright, RGB or L)."""

    def apply(self, media: Any, context: Context) -> Any:
        """The changed picture; `media` itself may be returned."""
        raise NotImplementedError(f"{type(self).__name__}.apply")

    def is_noop(self, info: MediaInfo, context: Context) -> bool:
        """Whether `apply` would change nothing about a picture of this (upright) geometry: then bytes are copied."""
        return False


class AudioTransform(Arguments):
    """Changes decoded sound (`mmdata.media.audio.Audio`: float32 [channels, samples] and a rate in hertz)."""

    def apply(self, media: Any, context: Context) -> Any:
        """The changed sound; `media` itself may be returned."""
        raise NotImplementedError(f"{type(self).__name__}.apply")

    def is_noop(self, info: MediaInfo, context: Context) -> bool:
        """Whether `apply` would change nothing about sound of this rate, channels, duration: then bytes are copied."""
        return False

    def remaining(self, duration: np.ndarray) -> np.ndarray:
        """Seconds (float64 [N], NaN: not known) that `apply` leaves of recordings this long, as far as their length
        tells. Buckets are planned by it."""
        return duration


class VideoTransform(Arguments):
    """Changes a video in two parts, so that a chain streams: which frames (`select`), what each becomes (`frame`)."""

    def select(self, times: np.ndarray, info: MediaInfo, context: Context) -> np.ndarray | None:
        """Indices (int64, ascending) into `times` (float64 seconds of the frames still there), or None for all."""
        return None

    def frame(self, array: np.ndarray, context: Context) -> np.ndarray:
        """One upright frame, uint8 [height, width, 3], changed to the size that `size` says. The same for all frames of
        a sample: draw from `context.rng`, never from state."""
        return array

    def size(self, info: MediaInfo, context: Context) -> tuple[int, int]:
        """Width and height that `frame` gives for frames of `info.width` × `info.height`."""
        if info.width is None or info.height is None:
            raise ValueError("the video's size is not known")
        return info.width, info.height

    def is_noop(self, info: MediaInfo, context: Context) -> bool:
        """Whether neither frames nor pixels would change: then bytes are copied."""
        return False

    def remaining(self, frames: np.ndarray, duration: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Frames and seconds (float64 [N] each, NaN: not known) that `select` leaves of videos with so many, taken as
        evenly spaced. Buckets are planned by it."""
        return frames, duration


class TextTransform(Arguments):
    """Changes the members of a sample that are not media (`{"txt": "a cat", "json": {...}}`)."""

    def apply(self, fields: dict[str, Any], context: Context) -> dict[str, Any]:
        """New fields; the given ones stay as they are. Raises InvalidSample when the sample lacks what is needed."""
        raise NotImplementedError(f"{type(self).__name__}.apply")

    def adds(self) -> tuple[str, ...]:
        """Members that `apply` may add: Arrow shards have a column for each."""
        return ()


_METHODS: dict[tuple[Role, OperatorModality], tuple[str, ...]] = {
    ("transform", "image"): ("apply", "is_noop"),
    ("transform", "audio"): ("apply", "is_noop"),
    ("transform", "video"): ("select", "frame", "size", "is_noop"),
    ("transform", "text"): ("apply",),
    **{("statistic", modality): ("measure",) for modality in MODALITIES},
}

T = TypeVar("T", bound=Callable[..., Any])


def statistic(
    name: str, modality: OperatorModality | Sequence[OperatorModality], columns: Mapping[str, Any]
) -> Callable[[T], T]:
    """Register a statistic: a function `(media) -> {column: value}`, or an `Arguments` class with `measure(media)`.

    `columns` gives the name and Arrow type of each measured value. A name that is a catalog column (`text_chars`) fills
    that column, any other becomes `stat.NAME` (see `catalog_column`). Media: a PIL RGB image, a list of uint8
    [height, width, 3] frames, `Audio`, or a str. With several modalities the one class or function serves them all.
    """

    def register(target: T) -> T:
        model = target if isinstance(target, type) else _function_arguments(name, target)
        modalities = (modality,) if isinstance(modality, str) else tuple(modality)
        for each in modalities:
            _register(name, "statistic", each, cast("type[Arguments]", model), columns)
        return target

    return register


def transform(name: str, modality: OperatorModality) -> Callable[[T], T]:
    """Register an `Arguments` class as the transform `name` of recipes; see the four bases for the methods it needs."""

    def register(target: T) -> T:
        _register(name, "transform", modality, cast("type[Arguments]", target), {})
        return target

    return register


def _register(
    name: str, role: Role, modality: OperatorModality, model: type[Arguments], columns: Mapping[str, Any]
) -> None:
    if not issubclass(model, Arguments):
        raise TypeError(f"{role} '{name}': {model.__qualname__} must derive from Arguments")
    missing = [method for method in _METHODS[role, modality] if not callable(getattr(model, method, None))]
    if missing:
        raise TypeError(f"{role} '{name}' ({model.__qualname__}) lacks the method {missing[0]}()")
    operator = register_operator(name, role, modality, model, columns)
    model.operator = operator


def _function_arguments(name: str, function: Callable[..., Any]) -> type[Arguments]:
    """An `Arguments` class without arguments that measures by calling `function`; importable, so it can be pickled."""

    class Measured(Arguments):
        def measure(self, media: Any) -> dict[str, Any]:
            result: dict[str, Any] = function(media)
            return result

        def __reduce__(self) -> tuple[Any, ...]:
            return _restore, (function.__module__, name)

    Measured.__name__ = Measured.__qualname__ = f"{function.__qualname__}.arguments"
    Measured.__module__ = function.__module__
    Measured.__doc__ = function.__doc__
    return Measured


def _restore(module: str, name: str) -> Arguments:
    importlib.import_module(module)
    return cast("Arguments", find_operators("statistic", name=name)[0].model())


def load_builtin() -> None:
    """Import the operators of this package and every plug-in, so that recipes know them. Cheap when repeated.

    Operators live in modules named after their modality (`image.py`, `image_colour.py`).
    Raises ConfigError when a plug-in cannot be imported.
    """
    global _loaded
    if _loaded:
        return
    package = importlib.import_module("mmdata.operators")
    for module in sorted(found.name for found in pkgutil.iter_modules(package.__path__)):
        if module.split("_")[0] not in MODALITIES:
            continue
        importlib.import_module(f"mmdata.operators.{module}")
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            plugin = entry.load()
            if callable(plugin):
                plugin()
        except Exception as error:
            raise ConfigError(
                f"operator plug-in '{entry.name}' ({entry.value}) cannot be loaded: {type(error).__name__}: {error}; "
                f"mend it or uninstall its package"
            ) from error
    _loaded = True


_loaded = False


def names(role: Role, modality: OperatorModality | None = None) -> list[str]:
    """Names of the registered statistics or transforms, sorted; of all modalities when none is given."""
    return sorted({operator.name for operator in find_operators(role, modality)})


def get(role: Role, modality: OperatorModality, name: str) -> Operator:
    """The operator of that name. Raises ConfigError with the nearest right name."""
    found = find_operators(role, modality, name)
    if found:
        return found[0]
    elsewhere = [operator.modality for operator in find_operators(role, name=name)]
    if elsewhere:
        raise ConfigError(f"'{name}' is a {role} for {' and '.join(elsewhere)}, not for {modality}")
    raise ConfigError(f"unknown {modality} {role} '{name}'{suggest(name, names(role, modality))}")


def statistics_for(requested: Iterable[Section], modality: OperatorModality) -> list[Any]:
    """The requested statistics (`recipe.scan.statistics`) that apply to `modality`, ready for `.measure(media)`."""
    chosen = []
    for arguments in requested:
        for operator in find_operators("statistic", modality, getattr(arguments, "op", "")):
            same = isinstance(arguments, operator.model)
            chosen.append(arguments if same else operator.model.parse(arguments.plain()))
    return chosen


def prepare(recipe: Recipe) -> None:
    """Call `prepare` of every operator of the recipe. Raises ConfigError that names the operator's place."""
    chains = {"scan.statistics": recipe.scan.statistics}
    chains |= {f"transforms.{modality}": getattr(recipe.transforms, modality) for modality in MODALITIES}
    for place, chain in chains.items():
        for number, arguments in enumerate(chain):
            if isinstance(arguments, Arguments):
                try:
                    arguments.prepare()
                except ConfigError as error:
                    raise ConfigError(f"{place}.{number}: {error}") from error


def catalog_column(name: str) -> str:
    """The catalog column that a statistic's value `name` lands in: itself when the catalog has it, else `stat.NAME`."""
    from mmdata.schema import CATALOG

    return name if name in CATALOG.names else f"stat.{name}"


def statistic_columns(requested: Iterable[Section]) -> dict[str, Any]:
    """Catalog columns that the requested statistics fill, with their Arrow types, in the order of the requests.

    Raises ConfigError when two statistics fill one column with different types.
    """
    columns: dict[str, Any] = {}
    for arguments in requested:
        for operator in find_operators("statistic", name=getattr(arguments, "op", "")):
            for name, kind in operator.columns.items():
                column = catalog_column(name)
                if columns.setdefault(column, kind) != kind:
                    raise ConfigError(
                        f"statistic '{operator.name}' fills {column} with {kind}, another with {columns[column]}"
                    )
    return columns
