"""Conversations: brings the common dialects to one form and checks their placeholders against the sample's media.

The one form is OpenAI's: a list of `{"role", "content"}`, where content is a string or a list of parts,
`{"type": "text", "text": …}` or `{"type": "image" | "video" | "audio"}`. The n-th part of a kind stands for the
sample's n-th medium of that kind. Knows no source.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from mmdata.errors import InvalidSample

PLACEHOLDERS = ("image", "video", "audio")
"""Kinds of media that a conversation can refer to: `<image>` in a text, or a part of that type."""

COLUMNS = ("messages", "conversations")
"""Names under which conversations are looked for."""

TAGS: Mapping[str, str] = {kind: f"<{kind}>" for kind in PLACEHOLDERS}
"""Kind to the text that stands for one medium of it, as LLaVA writes them."""

_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "system": "system",
    "developer": "developer",
    "tool": "tool",
    "function": "tool",
    "function_call": "assistant",
    "observation": "tool",
}

_PART_KINDS = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "video": "video",
    "video_url": "video",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
}


def normalise(conversation: Any, tags: Mapping[Any, str] = TAGS) -> tuple[list[dict[str, Any]], dict[str, list[Any]]]:
    """The one form of `conversation`, and by kind the media that its parts carry themselves (paths, URLs, data).

    Takes OpenAI messages (`role`, `content`), LLaVA and ShareGPT turns (`from`, `value`), and either as JSON text.
    The `tags` in a text become parts; everything else of the text stays as it is. Other keys of a message (`name`,
    `tool_calls`, …) are kept. Raises InvalidSample that names the message.
    """
    if isinstance(conversation, str):
        try:
            conversation = json.loads(conversation)
        except ValueError as error:
            raise InvalidSample(f"the conversation is not valid JSON: {error}") from error
    if not isinstance(conversation, (list, tuple)) or not conversation:
        raise InvalidSample(f"a conversation is a list of messages, not {_short(conversation)}")
    reader = _Reader(tags)
    return [reader.message(message, number) for number, message in enumerate(conversation)], reader.carried


def count_placeholders(messages: list[dict[str, Any]]) -> Counter[str]:
    """Parts of each kind of media in normalised messages."""
    counts: Counter[str] = Counter()
    for message in messages:
        if isinstance(message["content"], list):
            counts.update(part["type"] for part in message["content"] if part["type"] in PLACEHOLDERS)
    return counts


def check_placeholders(messages: list[dict[str, Any]], media: Mapping[Any, int]) -> None:
    """Raises InvalidSample that gives both counts when a kind has more or fewer placeholders than media."""
    counts = count_placeholders(messages)
    wrong = [
        f"{counts[kind]} {kind} placeholder{'s' if counts[kind] != 1 else ''} but {media.get(kind, 0)} {kind}"
        f"{'s' if media.get(kind, 0) != 1 and kind != 'audio' else ''}"
        for kind in PLACEHOLDERS
        if counts[kind] != media.get(kind, 0)
    ]
    if wrong:
        raise InvalidSample(f"the conversation has {', '.join(wrong)}; it must name each medium once")


def looks_like_conversation(value: Any) -> bool:
    """True for a non-empty list of objects that each have `role` or `from`."""
    return (
        isinstance(value, (list, tuple))
        and bool(value)
        and all(isinstance(message, dict) and ("role" in message or "from" in message) for message in value)
    )


def normalise_fields(
    fields: dict[str, Any], media: Mapping[Any, int], tags: Mapping[Any, str] = TAGS
) -> dict[str, Any]:
    """`fields` of a sample whose `json` may hold a conversation: brought to the one form under `messages`, and checked.

    `media` counts the sample's media by kind. Anything under those names that is not a conversation is left alone.
    Raises InvalidSample.
    """
    described = fields.get("json")
    if not isinstance(described, dict):
        return fields
    column = next((name for name in COLUMNS if looks_like_conversation(described.get(name))), None)
    if column is None:
        return fields
    messages, _ = normalise(described[column], tags)
    check_placeholders(messages, media)
    return {**fields, "json": with_messages(described, messages)}


def with_messages(described: Mapping[str, Any], messages: list[dict[str, Any]]) -> dict[str, Any]:
    """`described` with the normalised `messages` in place of the conversation it came with."""
    kept = {name: value for name, value in described.items() if name not in COLUMNS}
    return {**kept, "messages": messages}


class _Reader:
    """Reads the messages of one conversation, and gathers the media that their parts carry."""

    def __init__(self, tags: Mapping[Any, str]) -> None:
        self.carried: dict[str, list[Any]] = {kind: [] for kind in PLACEHOLDERS}
        self._kinds = {tag: kind for kind, tag in tags.items()}
        # Longest first, so that a tag that begins with another one is found.
        longest = sorted(self._kinds, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest)) or r"(?!)")

    def message(self, message: Any, number: int) -> dict[str, Any]:
        if not isinstance(message, dict):
            raise InvalidSample(f"message {number} of the conversation is {_short(message)}, not an object")
        role = message.get("role") if message.get("role") is not None else message.get("from")
        if not isinstance(role, str) or role.lower() not in _ROLES:
            known = ", ".join(sorted(set(_ROLES)))
            raise InvalidSample(f"message {number} of the conversation has the role {_short(role)}; known: {known}")
        content = message.get("content") if message.get("content") is not None else message.get("value")
        others = {
            name: value
            for name, value in message.items()
            if name not in ("role", "from", "content", "value") and value is not None
        }
        return {"role": _ROLES[role.lower()], "content": self._content(content, number), **others}

    def _content(self, content: Any, number: int) -> str | list[dict[str, Any]]:
        if content is None:
            return ""
        if isinstance(content, str):
            parts = self._split(content)
            return content if all(part["type"] == "text" for part in parts) else parts
        if isinstance(content, dict):
            content = [content]
        if not isinstance(content, (list, tuple)):
            raise InvalidSample(f"the content of message {number} is {_short(content)}, not a text or a list of parts")
        return [part for given in content for part in self._parts(given, number)]

    def _parts(self, part: Any, number: int) -> list[dict[str, Any]]:
        if isinstance(part, str):
            return self._split(part)
        if not isinstance(part, dict):
            raise InvalidSample(f"a part of message {number} is {_short(part)}, not a text or an object")
        name = part.get("type")
        if name is None:
            name = next((known for known in ("text", *_PART_KINDS) if part.get(known) is not None), None)
        if name in ("text", "input_text", "output_text"):
            text = part.get("text")
            if not isinstance(text, str):
                raise InvalidSample(f"a text part of message {number} has no text")
            return self._split(text)
        kind = _PART_KINDS.get(name) if isinstance(name, str) else None
        if kind is None:
            known = ", ".join(["text", *_PART_KINDS])
            raise InvalidSample(f"a part of message {number} has the type {_short(name)}; known: {known}")
        value = _carried(part, str(name), kind)
        if value is not None:
            self.carried[kind].append(value)
        return [{"type": kind}]

    def _split(self, text: str) -> list[dict[str, Any]]:
        """`text` cut at its placeholders: text parts, never empty, and media parts, in order."""
        parts: list[dict[str, Any]] = []
        end = 0
        for tag in self._pattern.finditer(text):
            if tag.start() > end:
                parts.append({"type": "text", "text": text[end : tag.start()]})
            parts.append({"type": self._kinds[tag.group()]})
            end = tag.end()
        if end < len(text) or not parts:
            parts.append({"type": "text", "text": text[end:]})
        return parts


def _carried(part: dict[str, Any], name: str, kind: str) -> Any:
    """The path, URL or data that a media part holds, in any of the usual spellings, or None."""
    for key in (name, kind, "url", "path", "file", "data"):
        value = part.get(key)
        if isinstance(value, dict) and "bytes" not in value:
            value = next((value[inner] for inner in ("url", "path", "data") if value.get(inner) is not None), None)
        if value is not None and not isinstance(value, (int, float)):
            return value
    return None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
