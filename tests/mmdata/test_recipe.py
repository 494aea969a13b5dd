"""Recipes: loading, `--set`, defaults, fingerprints, and one message with line and suggestion for every mistake."""

# ruff: noqa: E501 (the table of mutations has a line for each)

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mmdata.cli import run
from mmdata.errors import ConfigError
from mmdata.operators import registry
from mmdata.recipe import Limits, Recipe, StorageOptions, dump, from_mapping, load, tree
from mmdata.recipe.model import BUILD_PARTS, MEASURE_PARTS, SCAN_PARTS
from mmdata.storage import StorageSettings

GOOD = """\
version: 1
name: demo
seed: 3
source:
  - type: folder
    path: media
    exclude: ["**/draft/*"]
  - {type: table, path: rows.jsonl, media: {image: image}, text: caption, key_prefix: t/}
  - {type: webdataset, path: "x-{000..009}.tar", key_prefix: w/}
scan:
  check: decode
  statistics: [brightness, text_length]
  partition: 100
filters:
  - width >= 256 and duration < 30
  - {name: bright, keep: stat.brightness > 10}
transforms:
  image:
    - {op: resize, mode: cover}
    - op: flip
      probability: 0.5
  text:
    - {op: template, text: "a photo: {txt}"}
buckets:
  image:
    count: 8
    pixels: 512*512
    multiple_of: 32
    max_aspect: 2.0
    max_crop: 0.3
  audio:
    edges: [5s, 10, 30]
packing:
  budget: 8192
  length: text_chars
splits: {val: 0.05, test: 0.05, by: key}
output:
  path: out
  format: webdataset
  max_bytes: 256MiB
  order: shuffle
encode:
  image: {format: jpeg, quality: 90}
  video: {codec: h264}
limits:
  max_bad: 0.1
  cpu: 60s
  wall: 5m
  memory: 2GiB
decode: {alpha: white}
storage: {retries: 8, endpoint: "https://store.example"}
workers: 0
"""


@pytest.fixture(scope="module", autouse=True)
def _operators() -> None:
    registry.load_builtin()


def write(folder: Path, text: str = GOOD) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path: Path, *overrides: str) -> str:
    """The message with which the recipe is refused, without the folder of the file."""
    with pytest.raises(ConfigError) as caught:
        load(path, overrides)
    assert caught.value.exit_code == 2
    return str(caught.value).replace(f"{path.parent}/", "")


def test_a_recipe_is_loaded_with_quantities_in_base_units(tmp_path: Path) -> None:
    recipe = load(write(tmp_path))
    assert recipe.output.max_bytes == 268_435_456
    assert recipe.buckets.image is not None and recipe.buckets.image.pixels == 262_144
    assert recipe.buckets.audio is not None and recipe.buckets.audio.edges == (5.0, 10.0, 30.0)
    assert (recipe.limits.wall, recipe.limits.memory) == (300.0, 2_147_483_648)
    assert [rule.name for rule in recipe.filters] == ["width >= 256 and duration < 30", "bright"]
    resize, flip = recipe.transforms.image
    assert (resize.op, flip.probability) == ("resize", 0.5)  # type: ignore[attr-defined]


def test_relative_paths_start_at_the_folder_of_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    path = write(tmp_path)
    monkeypatch.chdir(elsewhere)
    recipe = load(os.path.relpath(path), ["catalog=cat"])
    assert recipe.source[0].path == str(tmp_path / "media")
    assert recipe.source[2].path == (str(tmp_path / "x-{000..009}.tar"),)
    assert recipe.output.path == str(tmp_path / "out")
    assert recipe.catalog == str(elsewhere / "cat")


def test_the_catalog_stands_beside_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path)
    assert load(path).catalog == str(tmp_path / "out.catalog")
    assert load(path, ["output.path=s3://bucket/data/"]).catalog == "s3://bucket/data.catalog"


def test_urls_stay_as_they_are(tmp_path: Path) -> None:
    recipe = load(write(tmp_path), ["source.1.base=s3://bucket/media", "output.path=gs://bucket/out"])
    assert recipe.source[1].base == "s3://bucket/media"  # type: ignore[union-attr]
    assert recipe.output.path == "gs://bucket/out"


def test_set_changes_adds_and_removes(tmp_path: Path) -> None:
    recipe = load(
        write(tmp_path),
        [
            "output.max_bytes=1MB",
            "transforms.image.1.probability=0.25",
            "transforms.image.2=orient",
            "buckets.video.frames=[1, 9]",
            "filters=[height > 3]",
            "packing=null",
            "name=a-b",
        ],
    )
    assert recipe.output.max_bytes == 1_000_000
    assert [step.op for step in recipe.transforms.image] == ["resize", "flip", "orient"]  # type: ignore[attr-defined]
    assert recipe.transforms.image[1].probability == 0.25  # type: ignore[attr-defined]
    assert recipe.buckets.video is not None and recipe.buckets.video.frames == (1, 9)
    assert [rule.keep for rule in recipe.filters] == ["height > 3"]
    assert recipe.packing is None and recipe.name == "a-b"


def test_sections_that_are_commented_out_are_as_if_absent(tmp_path: Path) -> None:
    text = "source: [{type: folder, path: media}]\noutput: {path: out}\nfilters:\n#  - x\nscan:\nbuckets:\n  image:\n"
    recipe = load(write(tmp_path, text))
    assert recipe.filters == () and recipe.buckets.image is None and recipe.scan.check == "decode"


def test_a_resolved_recipe_round_trips_with_every_default(tmp_path: Path) -> None:
    recipe = load(write(tmp_path))
    written = tmp_path / "resolved.yaml"
    written.write_text(dump(recipe), encoding="utf-8")
    again = load(written)
    assert again == recipe
    assert dump(again) == dump(recipe)
    assert recipe.resolved()["limits"]["max_item"] == 1024**3
    assert recipe.resolved()["storage"]["timeout"] == 60.0
    assert pickle.loads(pickle.dumps(recipe)) == recipe


def test_the_same_settings_give_the_same_fingerprint_however_they_are_written(tmp_path: Path) -> None:
    one = load(write(tmp_path))
    changed = (
        GOOD.replace("256MiB", "268435456").replace("5m", "300").replace("seed: 3\n", "").replace("512*512", "262144")
    )
    two = load(write(tmp_path, changed + "seed: 3\n"))
    assert one.fingerprint() == two.fingerprint()
    assert one.fingerprint("scan", "seed") == two.fingerprint("seed", "scan")
    assert re.fullmatch("[0-9a-f]{32}", one.fingerprint())
    with pytest.raises(KeyError):
        one.fingerprint("scna")


DIGESTS = [
    ("", True),
    ("scan.digest=false", False),
    ("scan.check=header", False),
    ("scan.check=header scan.digest=true", True),
    ("scan.check=header splits.val=0.1", True),
    ("scan.check=header splits.test=0.1", True),
]


@pytest.mark.parametrize(("overrides", "digests"), DIGESTS)
def test_digests_are_computed_where_bytes_are_read_or_splits_need_them(
    tmp_path: Path, overrides: str, digests: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, "version: 1\nname: a\nsource: [{type: folder, path: media}]\noutput: {path: out}\n")
    assert load(path, overrides.split()).digests is digests
    header, without = load(path, ["scan.check=header"]), load(path, ["scan.check=header", "scan.digest=false"])
    assert header.scan_fingerprint() == without.scan_fingerprint()


@pytest.mark.parametrize(
    ("override", "scan", "build"),
    [
        ("output.path=elsewhere", False, False),
        ("workers=3", False, False),
        ("catalog=c", False, False),
        ("limits.max_bad=7", False, False),
        ("storage.retries=1", False, False),
        ("output.max_samples=7", False, True),
        ("filters=[]", False, True),
        ("splits.val=0.1", False, True),
        ("seed=4", True, True),
        ("transforms.text=[]", True, True),
        ("transforms.image=[]", False, True),
        ("scan.digest=false", True, True),
        ("encode.image.quality=80", False, True),
        ("scan.statistics=[brightness]", True, True),
        ("decode.alpha=black", True, True),
        ("limits.max_pixels=1000000", True, True),
        ("source.0.path=other", True, False),
        ("scan.partition=5", True, True),
    ],
)
def test_fingerprints_change_with_what_decides_the_result(
    tmp_path: Path, override: str, scan: bool, build: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, GOOD.replace("  - {name: bright, keep: stat.brightness > 10}\n", ""))
    before, after = load(path), load(path, [override])
    assert (before.scan_fingerprint() != after.scan_fingerprint()) is scan
    assert (before.build_fingerprint() != after.build_fingerprint()) is build


def test_rows_can_be_reused_when_only_the_sources_change(tmp_path: Path) -> None:
    path = write(tmp_path)
    before, more, other = load(path), load(path, ["source.0.path=x"]), load(path, ["decode.alpha=drop"])
    assert before.measure_fingerprint() == more.measure_fingerprint()
    assert before.scan_fingerprint() != more.scan_fingerprint()
    assert before.measure_fingerprint() != other.measure_fingerprint()


def test_the_seed_matters_to_a_scan_only_where_texts_are_transformed(tmp_path: Path) -> None:
    path = write(tmp_path)
    plain = [load(path, ["transforms.text=[]", f"seed={seed}"]).scan_fingerprint() for seed in (1, 2)]
    assert plain[0] == plain[1]


def test_a_limit_is_a_count_or_a_share() -> None:
    assert Limits(max_bad=3).allows(3, 4) and not Limits(max_bad=3).allows(4, 10**6)
    assert Limits(max_bad=0.1).allows(10, 100) and not Limits(max_bad=0.1).allows(11, 100)
    assert Limits(max_bad=0).allows(0, 0) and not Limits(max_bad=0).allows(1, 100)
    assert Limits(max_bad=1.0).allows(5, 5)


def test_storage_options_are_those_of_the_storage_room() -> None:
    assert StorageSettings(**StorageOptions(retries=2, timeout=3).arguments()) == StorageSettings(
        retries=2, timeout_s=3
    )
    assert StorageSettings(**StorageOptions().arguments()) == StorageSettings()


def test_every_setting_is_in_a_fingerprint_or_known_to_be_in_none() -> None:
    named = {part.split(".")[0] for part in (*SCAN_PARTS, *MEASURE_PARTS, *BUILD_PARTS)}
    assert set(Recipe.model_fields) - named == {"catalog", "workers"}


# Each mutation: what is replaced in GOOD, by what, on which line the message must be, and what it must say.
MUTATIONS: dict[str, tuple[str, str, int, str]] = {
    # words that are nearly right
    "section": ("filters:", "filtres:", 14, "unknown key 'filtres'; did you mean 'filters'?"),
    "key": ("  partition: 100", "  partion: 100", 13, "scan: unknown key 'partion'; did you mean 'partition'?"),
    "source key": ("exclude:", "exlude:", 7, "source.0: unknown key 'exlude'; did you mean 'exclude'?"),
    "required key": ("    path: media", "    pth: media", 6, "source.0: unknown key 'pth'; did you mean 'path'?"),
    "source type": ("type: folder", "type: foldr", 5, "source.0: unknown type 'foldr'; did you mean 'folder'?"),
    "type key": ("type: webdataset", "tpye: webdataset", 9, "source.2: missing key 'type'"),
    "choice": ("check: decode", "check: decod", 11, "scan.check: unknown value 'decod'; did you mean 'decode'?"),
    "format": ("format: webdataset", "format: tar", 39, "output.format: unknown value 'tar'; use one of: webdataset, arrow"),
    "image format": ("format: jpeg", "format: jpg", 43, "encode.image.format: unknown value 'jpg'; did you mean 'jpeg'?"),
    "codec": ("codec: h264", "codec: h265", 44, "encode.video.codec: unknown value 'h265'; did you mean 'h264'?"),
    "operator": ("op: resize", "op: resise", 19, "transforms.image.0.op: unknown image transform 'resise'; did you mean 'resize'?"),
    "argument": ("      probability: 0.5", "      probabilty: 0.5", 21, "transforms.image.1: unknown key 'probabilty'; did you mean 'probability'?"),
    "argument's choice": ("mode: cover", "mode: covr", 19, "transforms.image.0.mode: unknown value 'covr'; did you mean 'cover'?"),
    "statistic": ("[brightness,", "[brightnes,", 12, "scan.statistics.0: unknown statistic 'brightnes'; did you mean 'brightness'?"),
    "column": ("width >= 256", "widht >= 256", 15, "filters.0: unknown column 'widht'; did you mean 'width'?"),
    "statistic's column": ("keep: stat.brightness", "keep: brightness", 16, "filters.1: unknown column 'brightness'; did you mean 'stat.brightness'?"),
    "unit": ("256MiB", "256MiX", 40, "output.max_bytes: unknown unit 'MiX'; did you mean 'MiB'?"),
    "filter key": ("{name: bright, keep:", "{name: bright, kep:", 16, "filters.1: unknown key 'kep'; did you mean 'keep'?"),
    "op key": ("{op: resize, mode", "{opp: resize, mode", 19, "transforms.image.0: a transform needs the key 'op' with its name (found 'opp'); did you mean 'op'?"),
    "length": ("length: text_chars", "length: text_char", 35, "packing.length: unknown column 'text_char'; did you mean 'text_chars'?"),
    "section of another": ("workers: 0", "max_bad: 0", 52, "unknown key 'max_bad'; it belongs in 'limits'"),
    "scheme": ("  path: out", "  path: s4://out", 38, "output.path: 's4://' cannot be written; did you mean 's3'?"),
    "written twice": ("seed: 3", "name: again", 3, "the key 'name' is already written on line 2"),
    # wrong types
    "text for number": ("seed: 3", "seed: three", 3, "seed: expected a whole number, found text 'three'"),
    "quoted number": ("budget: 8192", 'budget: "8192"', 34, "packing.budget: expected a whole number, found text '8192'; remove the quotes"),
    "fraction for count": ("count: 8", "count: 8.5", 26, "buckets.image.count: expected a whole number, found 8.5"),
    "bool for number": ("max_aspect: 2.0", "max_aspect: true", 29, "buckets.image.max_aspect: expected a number, found true"),
    "yes for true": ("  order: shuffle", "  energon: yes", 41, "output.energon: expected true or false, found text 'yes'; write true"),
    "text for list": ('exclude: ["**/draft/*"]', "exclude: draft", 7, "source.0.exclude: expected a list, found text 'draft'; start the line with '- '"),
    "list for mapping": ("splits: {val: 0.05, test: 0.05, by: key}", "splits: [0.05]", 36, "splits: expected a mapping of keys to values, found a list of 1"),
    "nothing for text": ("  path: out", "  path:", 38, "output.path: expected text, found nothing"),
    "number for name": ("name: demo", "name: 12", 2, 'name: expected text, found 12; write "12" in quotes'),
    "mapping for edges": ("edges: [5s, 10, 30]", "edges: atuo", 32, "buckets.audio.edges: expected 'auto' or a list, found text 'atuo'; did you mean 'auto'?"),
    # impossible values
    "negative size": ("memory: 2GiB", "memory: -2GiB", 49, "limits.memory: must not be negative, found -2GiB"),
    "count of nothing": ("count: 8", "count: 0", 26, "buckets.image.count: must be at least 1, found 0"),
    "multiple of nothing": ("multiple_of: 32", "multiple_of: 0", 28, "buckets.image.multiple_of: must be at least 1, found 0"),
    "splits over one": ("val: 0.05", "val: 0.97", 36, "splits: the splits take 1.02 of the samples: nothing is left for train"),
    "share over one": ("max_bad: 0.1", "max_bad: 1.5", 46, "limits.max_bad: a share is at most 1.0, found 1.5; write a count without a decimal point"),
    "edges that fall": ("[5s, 10, 30]", "[5s, 30, 10]", 32, "buckets.audio.edges: edges must increase, but 10 follows 30"),
    "wall under cpu": ("wall: 5m", "wall: 5s", 45, "limits: wall (5 s) must not be less than cpu (60 s)"),
    "quality over 100": ("quality: 90", "quality: 900", 43, "encode.image.quality: must be at most 100, found 900"),
    "operator of another modality": ("- {op: template", "- {op: flip", 23, "transforms.text.0.op: 'flip' is a transform for image and a transform for video, not a transform for text"),
    "statistic as transform": ("op: template", "op: text_length", 23, "'text_length' is a statistic for text, not a transform for text"),
    "unmeasured length": ("length: text_chars", "length: text_tokens", 35, "nothing measures the column 'text_tokens'; add {op: text_tokens, tokenizer: FOLDER} to scan.statistics"),
    "length that is text": ("length: text_chars", "length: label", 35, "packing.length: the column 'label' is string, not a number"),
    "output in source": ("  path: out", "  path: media/out", 38, "lies inside the source folder"),
    "no version 2": ("version: 1", "version: 2", 1, "version: expected 1, found 2"),
    "pixels under multiple": ("pixels: 512*512", "pixels: 16*16", 25, "buckets.image: no shape has at most 256 pixels"),
    "crop of everything": ("max_crop: 0.3", "max_crop: 1", 30, "buckets.image.max_crop: must be less than 1, found 1"),
    "energon of arrow": ("format: webdataset", "format: arrow\n  energon: true", 37, "output: energon reads WebDataset shards only"),
    "statistic twice": ("[brightness, text_length]", "[brightness, brightness]", 12, "the statistic 'brightness' is already listed at scan.statistics.0"),
    "filter name twice": ("{name: bright,", "{name: width >= 256 and duration < 30,", 16, "is taken by filters.0; give each filter its own"),
    "negative seed": ("seed: 3", "seed: -3", 3, "seed: must be at least 0, found -3"),
    "endpoint without scheme": ('"https://store.example"', "store.example", 51, "storage.endpoint: expected a URL that starts with http://"),
    "tab": ("  image:\n    - {op: resize", "\timage:\n    - {op: resize", 18, "a tab is used for indentation"),
    "bad template": ('"a photo: {txt}"', '"a photo: {txt"', 23, "transforms.text.0.text: not a template"),
    "empty source": ("source:\n", "source: []\nother:\n", 4, "source: must not be empty; list at least 1 item"),
    "name with a slash": ("name: demo", "name: a/b", 2, "name: a name has letters, digits, '_' and '-' only, found 'a/b'"),
    "expression": ("width >= 256 and duration < 30", "width >= and", 15, "filters.0: 'width >= and': not an expression at character 10"),
    "function": ("width >= 256", "lenn(label) >= 256", 15, "there is no function 'lenn'; did you mean 'len'?"),
    "types": ("width >= 256", "label >= 256", 15, "filters.0: 'label >= 256 and duration < 30'"),
}  # fmt: skip


def mutate(old: str, new: str) -> str:
    assert GOOD.count(old) >= 1, old
    return GOOD.replace(old, new, 1)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutated_recipe_is_refused_with_line_and_suggestion(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new, line, message = MUTATIONS[name]
    path = write(tmp_path, mutate(old, new))
    lines = refusal(path).splitlines()
    told = [text for text in lines if text.startswith(f"recipe.yaml:{line}: ")]
    assert any(message in text for text in told), lines
    assert not any("pydantic" in text or "type=" in text or "Input should" in text for text in lines)
    assert run(["build", str(path)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.removeprefix("mmdata: ").replace(f"{tmp_path}/", "").splitlines() == lines
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", [name for name in MUTATIONS if name not in ("empty source", "type key")])
def test_one_mistake_is_one_line(tmp_path: Path, name: str) -> None:
    old, new, _, _ = MUTATIONS[name]
    assert len(refusal(write(tmp_path, mutate(old, new))).splitlines()) == 1


def test_several_mistakes_are_told_together_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = GOOD.replace("seed: 3", "sed: 3").replace("count: 8", "count: 0").replace("check: decode", "check: no")
    lines = refusal(write(tmp_path, text), "output.formt=arrow").splitlines()
    assert [line.split(": ")[0] for line in lines] == [
        "recipe.yaml:3",
        "recipe.yaml:11",
        "recipe.yaml:26",
        "--set output.formt=arrow",
    ]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("output.formt=arrow", "--set output.formt=arrow: output: unknown key 'formt'; did you mean 'format'?"),
        ("output.max_bytes=1MiX", "unknown unit 'MiX'; did you mean 'MiB'?"),
        ("transforms.image.0.mode=covr", "--set transforms.image.0.mode=covr: transforms.image.0.mode: unknown value"),
        ("source.7.path=x", "'source' has 3 items, there is no '7' in it"),
        ("source.first.path=x", "'source' is a list: use source.0 to source.N"),
        ("name.x=1", "'name' is text 'demo', there is no 'x' in it"),
        ("seed", "expected KEY=VALUE"),
        ("=3", "expected KEY=VALUE"),
        ("seed=[", "--set seed=[: not valid YAML"),
        ("filters.0=widht > 3", "--set filters.0=widht > 3: filters.0: unknown column 'widht'; did you mean 'width'?"),
        ("splits.val=2", "--set splits.val=2: splits.val: must be at most 1, found 2"),
    ],
)
def test_a_wrong_set_argument_is_named(tmp_path: Path, override: str, message: str) -> None:
    assert message in refusal(write(tmp_path), override)


def test_files_that_are_no_recipe_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert "did you mean" in refusal(tmp_path / "recip.yaml") and "recipe.yaml" in refusal(tmp_path / "recip.yaml")
    with pytest.raises(ConfigError, match=r"this is a folder.*recipe\.yaml"):
        load(tmp_path)
    path.write_bytes(b"a: \xff\xfe")
    assert "not UTF-8 text" in refusal(path)
    assert "the recipe is empty" in refusal(write(tmp_path, "# nothing\n"))
    assert "expected a mapping of keys" in refusal(write(tmp_path, "- a\n"))
    assert "expected a mapping of keys" in refusal(write(tmp_path, "just text\n"))
    missing = refusal(write(tmp_path, "name: x\n")).splitlines()
    assert missing == ["recipe.yaml:1: missing key 'source'", "recipe.yaml:1: missing key 'output'"]


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert load(path).name == "demo"


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "auto", "5s", "a", "1x1", "-1", "🦊"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["op", "type", "path", "x"]), inner),
    max_leaves=6,
)


def _all_places(data: Any, place: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    children = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [place, *(inner for key, child in children for inner in _all_places(child, (*place, key)))]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_in_any_place_is_accepted_or_refused_in_words(data: st.DataObject) -> None:
    document = tree.read(GOOD, "x").data
    place = data.draw(st.sampled_from(_all_places(document)[1:]))
    value = data.draw(ANYTHING)
    target = document
    for part in place[:-1]:
        target = target[part]
    target[place[-1]] = value
    try:
        recipe = from_mapping(document, folder="/data")
    except ConfigError as error:
        assert "Input should" not in str(error) and "pydantic" not in str(error)
        assert all(line.startswith("recipe:") for line in str(error).splitlines())
    else:
        assert from_mapping(recipe.resolved()) == recipe


def test_relative_tokenizer_folders_start_at_the_recipe_too(tmp_path: Path) -> None:
    text = (
        "source: [{type: folder, path: media}]\noutput: {path: out}\n"
        "scan: {statistics: [{op: text_tokens, tokenizer: words}]}\nfilters: [text_tokens < 5]\n"
    )
    (statistic,) = load(write(tmp_path, text)).scan.statistics
    assert statistic.tokenizer == str(tmp_path / "words")  # type: ignore[attr-defined]


def test_every_setting_has_a_description() -> None:
    def sections(model: Any, seen: set[Any]) -> set[Any]:
        seen.add(model)
        for kind in re.findall(r"mmdata\.recipe\.\w+\.(\w+)", str([f.annotation for f in model.model_fields.values()])):
            from mmdata import recipe

            found = getattr(recipe, kind, None)
            if isinstance(found, type) and found not in seen:
                sections(found, seen)
        return seen

    found = sections(Recipe, set())
    assert len(found) >= 20
    undescribed = [
        f"{model.__name__}.{name}"
        for model in found
        for name, info in model.model_fields.items()
        if not info.description and name != "op"
    ]
    assert undescribed == []


def test_dumps_are_read_alike_by_other_yaml_readers(tmp_path: Path) -> None:
    import yaml

    recipe = load(write(tmp_path), ["name=yes"])
    assert yaml.safe_load(dump(recipe)) == tree.read(dump(recipe), "x").data == recipe.resolved()
