from __future__ import annotations

import json

import pytest

from mmdata.errors import InvalidSample
from mmdata.sources.messages import check_placeholders, count_placeholders, normalise, normalise_fields


def test_llava_turns_become_openai_messages_with_parts_in_order():
    messages, carried = normalise(
        [
            {"from": "system", "value": "Be brief."},
            {"from": "human", "value": "<image>\nWhat differs from <image>?"},
            {"from": "gpt", "value": "The hat."},
        ]
    )
    assert messages == [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "image"},
                {"type": "text", "text": "\nWhat differs from "},
                {"type": "image"},
                {"type": "text", "text": "?"},
            ],
        },
        {"role": "assistant", "content": "The hat."},
    ]
    assert not any(carried.values())
    check_placeholders(messages, {"image": 2})


def test_openai_parts_in_their_usual_spellings():
    messages, carried = normalise(
        [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look"},
                    {"type": "image", "image": "a.jpg"},
                    {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
                    {"type": "video", "video": "v.mp4", "text": None},
                    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
                    {"type": "image"},
                ],
            },
            {"role": "assistant", "content": None, "tool_calls": [{"id": 1}]},
        ]
    )
    kinds = [part["type"] for part in messages[0]["content"]]
    assert kinds == ["text", "image", "image", "video", "audio", "image"]
    assert all(set(part) == {"type"} for part in messages[0]["content"][1:])  # no paths, no embedded data
    assert carried == {"image": ["a.jpg", "https://x/y.png"], "video": ["v.mp4"], "audio": ["AAAA"]}
    assert messages[1] == {"role": "assistant", "content": "", "tool_calls": [{"id": 1}]}
    assert count_placeholders(messages) == {"image": 3, "video": 1, "audio": 1}


def test_normalising_twice_changes_nothing():
    once, _ = normalise([{"from": "human", "value": "<audio>a<video>"}, {"from": "gpt", "value": "<b>"}])
    assert normalise(once)[0] == once


def test_other_placeholders():
    messages, _ = normalise([{"role": "user", "content": "<|img|> and <image>"}], {"image": "<|img|>"})
    assert messages[0]["content"] == [{"type": "image"}, {"type": "text", "text": " and <image>"}]


def test_a_conversation_may_be_json_text():
    assert normalise(json.dumps([{"role": "user", "content": "hi"}]))[0] == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("media", "says"),
    [
        ({"image": 1}, "2 image placeholders but 1 image;"),
        ({"image": 3}, "2 image placeholders but 3 images;"),
        ({}, "2 image placeholders but 0 images;"),
        ({"image": 2, "audio": 1}, "0 audio placeholders but 1 audio;"),
    ],
)
def test_a_mismatch_names_both_counts(media, says):
    messages, _ = normalise([{"from": "human", "value": "<image><image>"}])
    with pytest.raises(InvalidSample) as raised:
        check_placeholders(messages, media)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("conversation", "says"),
    [
        ("{bad", "not valid JSON"),
        ([], "a list of messages"),
        ({"role": "user"}, "a list of messages"),
        (5, "a list of messages"),
        (["hi"], "message 0"),
        ([{"role": "user", "content": "a"}, {"role": "wizard", "content": "b"}], "message 1.*wizard"),
        ([{"content": "a"}], "role None"),
        ([{"role": "user", "content": 7}], "content of message 0"),
        ([{"role": "user", "content": [{"type": "hologram"}]}], "hologram"),
        ([{"role": "user", "content": [{"type": "text"}]}], "no text"),
        ([{"role": "user", "content": [7]}], "part of message 0"),
    ],
)
def test_a_malformed_conversation_is_refused_with_the_message_number(conversation, says):
    with pytest.raises(InvalidSample, match=says):
        normalise(conversation)


def test_fields_without_a_conversation_are_left_alone():
    for json_value in ([1], "x", {"messages": "none"}, {"conversations": []}, {"messages": [{"id": 1}]}):
        assert normalise_fields({"json": json_value}, {}) == {"json": json_value}


def test_fields_with_a_conversation_are_checked_and_keep_the_rest():
    fields = {"txt": "t", "json": {"id": 5, "conversations": [{"from": "human", "value": "<image>hi"}]}}
    message = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "hi"}]}
    assert normalise_fields(fields, {"image": 1}) == {"txt": "t", "json": {"id": 5, "messages": [message]}}
    with pytest.raises(InvalidSample, match="1 image placeholder but 0 images"):
        normalise_fields(fields, {})
