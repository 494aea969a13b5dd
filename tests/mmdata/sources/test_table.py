from __future__ import annotations

import base64
import json
import os

import pytest

from mmdata.errors import ConfigError, NotFound, StorageError

JPEG = b"\xff\xd8\xff\xe0" + bytes(60)
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(60))
WAV = b"RIFF\x10\0\0\0WAVEfmt "


def lines(rows) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def fields(samples):
    return [sample.fields for sample in samples]


def uris(samples):
    return [[ref.uri for ref in sample.media] for sample in samples]


# --- the corpus's own tables


def test_captions_of_the_corpus(corpora, rows_of):
    table = corpora / "text" / "captions.jsonl"
    samples = rows_of("table", table, text="caption", base=str(corpora), partition=16)
    expected = [json.loads(line) for line in table.read_text().splitlines()]
    assert [sample.fields["txt"] for sample in samples] == [row["caption"] for row in expected]
    assert uris(samples) == [[f"{corpora}/{row['image']}"] for row in expected]
    assert [sample.fields["json"]["alt"] for sample in samples] == [row["alt"] for row in expected]
    assert [sample.key for sample in samples] == [f"captions-{row:08d}" for row in range(80)]
    assert all(sample.media[0].stamp and sample.error is None for sample in samples)


def test_llava_conversations_of_the_corpus(corpora, rows_of):
    table = corpora / "text" / "llava.json"
    samples = rows_of("table", table, key="id", messages="conversations", base=str(corpora), partition=10)
    expected = json.loads(table.read_text())
    assert [sample.key for sample in samples] == [row["id"] for row in expected]
    assert all(sample.error is None for sample in samples)
    for sample, row in zip(samples, expected, strict=True):
        assert len(sample.media) == len(row.get("images", [row["image"]] if "image" in row else []))
        assert len(sample.fields["json"]["messages"]) == len(row["conversations"])
        assert "conversations" not in sample.fields["json"]


def test_other_tables_of_the_corpus(corpora, rows_of):
    base = str(corpora)
    audio = rows_of("table", corpora / "text" / "transcripts.jsonl", text="text", base=base)
    assert len(audio) == 40 and {sample.media[0].kind for sample in audio} == {"audio"}
    video = rows_of(
        "table", corpora / "text" / "video_labels.jsonl", media={"video": "video"}, label="label", base=base
    )
    assert len(video) == 10 and video[0].fields["label.txt"] == "again" and video[0].media[0].field == "mkv"
    image = rows_of("table", corpora / "text" / "image_labels.csv", media={"image": "file"}, label="label", base=base)
    assert len(image) == 100 and image[5].fields == {"label.txt": "Not sure", "json": {"dataset": "clothing"}}
    assert all(sample.media[0].stamp for sample in image)
    documents = rows_of("table", corpora / "text" / "interleaved.jsonl", text="title", base=base)
    assert len(documents) == 19 and documents[0].fields["json"]["segments"][0]["type"] == "text"


# --- what a cell may hold


def test_paths_start_from_the_table_or_the_base(tree, rows_of, tmp_path):
    root = tree({"t/a.jsonl": lines([{"image": "x.jpg"}, {"image": "/abs/y.png"}, {"image": "s3://b/z.webp"}])})
    table = root / "t" / "a.jsonl"
    elsewhere = ["/abs/y.png"], ["s3://b/z.webp"]
    expected = rows_of("table", table, media={"image": "image"})
    assert uris(expected[:2]) == [[f"{root}/t/x.jpg"], elsewhere[0]]
    assert uris(rows_of("table", table, media={"image": "image"}, base=str(tmp_path / "b")))[0] == [
        f"{tmp_path}/b/x.jpg"
    ]
    assert [sample.media[0].field for sample in expected] == ["jpg", "png", "webp"]


def test_a_missing_file_keeps_its_place_without_a_stamp(tree, rows_of):
    root = tree({"a.jsonl": lines([{"image": "gone.jpg"}, {"image": "here.jpg"}]), "here.jpg": JPEG})
    gone, here = rows_of("table", root / "a.jsonl", media={"image": "image"})
    assert gone.error is None and (gone.media[0].stamp, gone.media[0].length) == ("", None)
    assert (here.media[0].stamp.split(":")[0], here.media[0].length) == ("64", 64)


def test_many_media_a_row(tree, rows_of):
    rows = [
        {"images": ["a.jpg", "b.png"], "audio": "c.flac"},
        {"images": ["a.jpg"], "audio": None},
        {"images": [], "audio": ""},
        {"images": [None, "b.png"], "audio": "speech.mp4"},
    ]
    root = tree({"a.jsonl": lines(rows)})
    samples = rows_of("table", root / "a.jsonl", text="caption", media={"image": "images", "audio": "audio"})
    assert [[(ref.field, ref.kind) for ref in sample.media] for sample in samples] == [
        [("0.jpg", "image"), ("1.png", "image"), ("flac", "audio")],
        [("jpg", "image")],
        [],
        [("png", "image"), ("mp4", "audio")],
    ]


def test_two_columns_of_a_kind_and_clashing_names(tree, rows_of):
    rows = [{"before": "a.jpg", "after": "b.jpg", "sound": "x.mp4", "film": "y.mp4"}]
    root = tree({"a.jsonl": lines(rows)})
    (pair,) = rows_of("table", root / "a.jsonl", media={"image": ["before", "after"]})
    assert [(ref.field, ref.uri[-5:]) for ref in pair.media] == [("0.jpg", "a.jpg"), ("1.jpg", "b.jpg")]
    (clash,) = rows_of("table", root / "a.jsonl", media={"audio": "sound", "video": "film"})
    assert [(ref.field, ref.kind) for ref in clash.media] == [("0.mp4", "audio"), ("1.mp4", "video")]


def test_embedded_bytes_of_every_spelling_are_spooled(tree, rows_of, media_bytes, tmp_path):
    coded = base64.b64encode(PNG).decode()
    rows = [
        {"image": coded},
        {"image": f"data:image/webp;base64,{coded}"},
        {"image": {"bytes": coded, "path": "x.tiff"}},
        {"image": {"bytes": None, "path": "x.jpg"}},
        {"image": [base64.urlsafe_b64encode(PNG).decode().rstrip("="), "y.jpg"]},
        {"image": "data:,hello"},
        {"image": json.dumps(["p.jpg", "q.jpg"])},
    ]
    root = tree({"a.jsonl": lines(rows), "x.jpg": JPEG, "y.jpg": JPEG, "p.jpg": JPEG, "q.jpg": JPEG})
    samples = rows_of("table", root / "a.jsonl", media={"image": "image"})
    assert [[ref.field for ref in sample.media] for sample in samples] == [
        ["png"],
        ["webp"],
        ["tiff"],
        ["jpg"],
        ["0.png", "1.jpg"],
        ["jpg"],
        ["0.jpg", "1.jpg"],
    ]
    found = [media_bytes(sample) for sample in samples]
    assert found == [[PNG], [PNG], [PNG], [JPEG], [PNG, JPEG], [b"hello"], [JPEG, JPEG]]
    spooled = samples[0].media[0].uri
    assert spooled.startswith(str(tmp_path / "spool")) and samples[1].media[0].uri == spooled
    assert len({sample.media[0].stamp for sample in samples[:3]}) == 1  # equal bytes, equal stamp


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (7, "7 is no image"),
        ({"array": [0.1]}, "array"),
        ({"bytes": "###"}, "not base64"),
        ("data:image/png;base64", "no comma"),
        ("data:image/png;base64,@@@", "not base64"),
        ("a\0b.jpg", "NUL"),
    ],
)
def test_a_cell_that_is_no_medium_costs_its_row_only(tree, rows_of, media_bytes, value, says):
    rows = [{"image": base64.b64encode(PNG).decode()}, {"image": value}, {"image": base64.b64encode(JPEG).decode()}]
    root = tree({"a.jsonl": lines(rows)})
    first, bad, last = rows_of("table", root / "a.jsonl", media={"image": "image"})
    assert bad.error is not None and bad.error[0] == "InvalidSample"
    assert says in bad.error[1] and f"{root}/a.jsonl, line 2" in bad.error[1]
    assert media_bytes(first) == [PNG] and media_bytes(last) == [JPEG]


def test_the_spool_is_written_once_and_again_when_the_table_changes(tree, opened, read_all, media_bytes):
    root = tree({"a.jsonl": lines([{"image": base64.b64encode(PNG).decode()}])})
    source = opened("table", root / "a.jsonl", media={"image": "image"})
    (first,) = read_all(source)
    spooled = first.media[0].uri
    before = os.stat(spooled)
    (again,) = read_all(source)
    assert (
        again == first
        and os.stat(spooled).st_ino == before.st_ino
        and os.stat(spooled).st_mtime_ns == before.st_mtime_ns
    )
    (root / "a.jsonl").write_text(lines([{"image": base64.b64encode(JPEG + JPEG).decode()}]))
    (changed,) = read_all(source)
    assert media_bytes(changed) == [JPEG + JPEG]
    with open(spooled, "ab") as file:  # a spool that was tampered with is made anew
        file.write(b"tail")
    assert media_bytes(read_all(source)[0]) == [JPEG + JPEG]
    assert os.path.getsize(spooled) == 2 * len(JPEG)


def test_only_partitions_with_embedded_bytes_have_a_spool_file(tree, rows_of, tmp_path):
    root = tree({"a.jsonl": lines([{"image": "x.jpg"}])})
    rows_of("table", root / "a.jsonl", media={"image": "image"})
    assert not (tmp_path / "spool").exists()


def test_the_position_of_embedded_bytes_does_not_depend_on_partitions(tree, rows_of, media_bytes):
    images = [PNG + bytes([number]) * number for number in range(30)]
    root = tree({"a.jsonl": lines({"image": base64.b64encode(image).decode()} for image in images)})
    for partition in (1, 7, 100):
        samples = rows_of("table", root / "a.jsonl", media={"image": "image"}, partition=partition)
        assert [media_bytes(sample)[0] for sample in samples] == images


# --- columns


def test_columns_become_members(tree, rows_of):
    rows = [{"id": 7, "image": "a.jpg", "text": "Größe 你好", "label": 3, "scene": "s1", "extra": {"x": [1, None]}}]
    root = tree({"a.jsonl": lines(rows)})
    (sample,) = rows_of(
        "table", root / "a.jsonl", key="id", media={"image": "image"}, text="text", label="label", group="scene"
    )
    assert sample.key == "7" and sample.group == "s1" and sample.row == 0
    assert sample.fields == {"txt": "Größe 你好", "cls": 3, "json": {"scene": "s1", "extra": {"x": [1, None]}}}
    (chosen,) = rows_of("table", root / "a.jsonl", text="text", fields=["extra"], key_prefix="set/")
    assert chosen.key == "set/a-00000000" and chosen.fields["json"] == {"extra": {"x": [1, None]}}


def test_nulls_are_absent_members(tree, rows_of):
    root = tree({"a.jsonl": lines([{"image": None, "text": None, "label": None}, {}])})
    samples = rows_of("table", root / "a.jsonl", media={"image": "image"}, text="text", label="label")
    assert fields(samples) == [{}, {}] and uris(samples) == [[], []]


def test_of_several_captions_the_first_is_txt_and_all_stay(tree, rows_of):
    root = tree({"a.jsonl": lines([{"captions": ["", "one", "two"]}, {"captions": []}, {"captions": {"a": 1}}])})
    first, none, bad = rows_of("table", root / "a.jsonl", text="captions")
    assert first.fields == {"txt": "one", "json": {"captions": ["", "one", "two"]}}
    assert "txt" not in none.fields and bad.error is not None and "'captions' holds dict" in bad.error[1]


def test_keys_are_escaped_and_bad_ones_reported(tree, rows_of):
    ids = ["a.b/c.d", 5, "/lead", None, "", "x/../y", "a\nb", 5, "5"]
    root = tree({"a.jsonl": lines({"id": one, "text": "t"} for one in ids)})
    samples = rows_of("table", root / "a.jsonl", key="id", text="text")
    assert [sample.key for sample in samples] == [
        "a.b/c%2Ed",
        "5",
        "lead",
        "a-00000003",
        "a-00000004",
        "a-00000005",
        "a-00000006",
        "5%3A7",
        "5%3A8",
    ]
    says = [sample.error and sample.error[1].partition("line")[2] for sample in samples]
    assert says[:3] == [None, None, None]
    assert "the key is empty" in says[3] and "the key is empty" in says[4]
    assert "'..'" in says[5] and "control character" in says[6]
    assert "'5' is that of row 1 already" in says[7] and says[8] is not None


def test_a_column_that_is_not_there_is_refused_with_the_nearest(tree, opened, read_all):
    root = tree({"a.jsonl": lines([{"image": "a.jpg", "caption": "x"}]), "a.csv": "image,caption\na.jpg,x\n"})
    for name in ("a.jsonl", "a.csv"):
        with pytest.raises(ConfigError, match=r"has no column 'captoin'; did you mean 'caption'\?"):
            read_all(opened("table", root / name, media={"image": "image"}, text="captoin"))
        with pytest.raises(ConfigError, match="has no column 'zzz'"):
            read_all(opened("table", root / name, media={"image": "zzz"}))


def test_a_json_column_may_be_missing_from_the_first_rows(tree, rows_of):
    root = tree({"a.jsonl": lines([{"text": "t"}] * 200 + [{"text": "u", "video": "v.mp4"}])})
    samples = rows_of("table", root / "a.jsonl", media={"video": "video"}, text="text")
    assert len(samples) == 201 and samples[-1].media[0].field == "mp4"


def test_media_columns_are_found_by_name_when_none_is_given(tree, rows_of):
    root = tree({"a.jsonl": lines([{"images": ["a.jpg"], "audios": ["b.wav"], "image": 17, "text": "t"}])})
    (sample,) = rows_of("table", root / "a.jsonl", text="text")
    assert [ref.kind for ref in sample.media] == ["image", "audio"]
    assert sample.fields["json"] == {"image": 17}


def test_animated_pictures_are_videos_on_request(tree, rows_of):
    rows = [{"image": "a.gif"}, {"image": "a.jpg"}, {"image": "a.mp4"}]
    root = tree({"a.jsonl": lines(rows)})
    samples = rows_of("table", root / "a.jsonl", media={"image": "image"}, animated="video")
    assert [sample.media[0].kind for sample in samples] == ["video", "image", "image"]


# --- conversations


def test_placeholders_are_checked_against_the_media(tree, rows_of):
    def turn(text):
        return [{"from": "human", "value": text}]

    rows = [
        {"images": ["a.jpg", "b.jpg"], "conversations": turn("<image><image>?")},
        {"images": ["a.jpg"], "conversations": turn("<image><image>?")},
        {"images": [], "conversations": turn("hello")},
        {"images": ["a.jpg"], "conversations": turn("hello")},
        {"images": ["a.jpg"], "conversations": None},
        {"images": ["a.jpg"], "conversations": "[broken"},
    ]
    root = tree({"a.jsonl": lines(rows)})
    samples = rows_of("table", root / "a.jsonl", messages="conversations", media={"image": "images"})
    errors = [sample.error and sample.error[1] for sample in samples]
    assert [error is None for error in errors] == [True, False, True, False, True, False]
    assert f"{root}/a.jsonl, line 2: the conversation has 2 image placeholders but 1 image;" in errors[1]
    assert "0 image placeholders but 1 image;" in errors[3]
    assert "not valid JSON" in errors[5]
    assert samples[1].media  # the quarantine can say which file


def test_media_inside_the_messages_are_the_samples_media(tree, rows_of, media_bytes):
    url = "data:image/png;base64," + base64.b64encode(PNG).decode()
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "image", "image": "a.jpg"}]
    root = tree({"a.jsonl": lines([{"messages": [{"role": "user", "content": content}]}]), "a.jpg": JPEG})
    (sample,) = rows_of("table", root / "a.jsonl", messages="messages")
    assert media_bytes(sample) == [PNG, JPEG]
    assert sample.fields["json"]["messages"][0]["content"] == [{"type": "image"}, {"type": "image"}]


# --- which files


def test_globs_lists_and_braces_keep_keys_apart(tree, rows_of, opened, read_all):
    one = lines([{"text": "t"}])
    root = tree(
        {"a/train.jsonl": one, "b/train.jsonl": one, "b/train.csv": "text\nt\n", "p-0.jsonl": one, "p-1.jsonl": one}
    )
    assert [sample.key for sample in rows_of("table", root / "*" / "train.jsonl", text="text")] == [
        "a/train-00000000",
        "b/train-00000000",
    ]
    assert [sample.key for sample in rows_of("table", root / "p-{0..1}.jsonl", text="text")] == [
        "p-0-00000000",
        "p-1-00000000",
    ]
    both = [root / "b" / "train.jsonl", root / "b" / "train.csv", root / "b" / "train.jsonl"]
    assert [sample.key for sample in rows_of("table", both, text="text")] == [
        "train-00000000",
        "train%2Ecsv-00000000",
    ]
    with pytest.raises(StorageError):
        read_all(opened("table", root / "none-*.jsonl", text="text"))
    with pytest.raises(NotFound):
        read_all(opened("table", root / "none.jsonl", text="text"))
    with pytest.raises(ConfigError, match="tells no table format"):
        read_all(opened("table", tree({"a.xls": b"x"}) / "a.xls", text="text"))
    with pytest.raises(ConfigError, match="commands"):
        read_all(opened("table", ["pipe:cat a.jsonl"], text="text"))


def test_a_file_whose_name_holds_brackets_is_itself(tree, rows_of):
    root = tree({"a[1].jsonl": lines([{"text": "t"}])})
    assert [sample.key for sample in rows_of("table", root / "a[1].jsonl", text="text")] == ["a[1]-00000000"]
