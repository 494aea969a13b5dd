"""Names: joining, relating and matching local paths and URLs."""

from __future__ import annotations

import pytest

from mmdata.errors import StorageError
from mmdata.storage.urls import expand_braces, glob_regex, join, locate, parent, relative


@pytest.mark.parametrize(
    ("url", "parts", "expected"),
    [
        ("a", ("b", "c.jpg"), "a/b/c.jpg"),
        ("/a/t", ("../images/x.jpg",), "/a/images/x.jpg"),
        ("s3://b/t", ("../images/x y#.jpg",), "s3://b/images/x y#.jpg"),
        ("s3://b", ("k",), "s3://b/k"),
        ("s3://b/t/", ("k",), "s3://b/t/k"),
        ("memory://m", ("k",), "memory://m/k"),
        ("https://h/d", ("a.tar",), "https://h/d/a.tar"),
        ("s3://b/t", ("https://h/x.jpg",), "https://h/x.jpg"),
        ("s3://b/t", ("/local/x.jpg",), "/local/x.jpg"),
    ],
)
def test_join(url: str, parts: tuple[str, ...], expected: str) -> None:
    assert join(url, *parts) == expected


def test_join_never_leaves_the_bucket() -> None:
    with pytest.raises(StorageError, match=r"\.\./\.\./other"):
        join("s3://b/t", "../../other/x")


def test_relative() -> None:
    assert relative("s3://b/t/x/y.jpg", "s3://b/t/") == "x/y.jpg"
    assert relative("s3://b/t/x", "s3://b") == "t/x"
    assert relative("d/x", "./d") == "x"
    for url, base in (("s3://b/tt", "s3://b/t"), ("s3://c/t/x", "s3://b/t"), ("d", "d")):
        with pytest.raises(StorageError):
            relative(url, base)


def test_parent() -> None:
    assert [parent(u) for u in ("s3://b/t/x", "s3://b/t", "s3://b", "/a", "/", "a", ".", "a/b/")] == [
        "s3://b/t", "s3://b/", None, "/", None, ".", None, "a"
    ]  # fmt: skip


def test_braces() -> None:
    assert list(expand_braces("x-{08..11}.{a,b}"))[:3] == ["x-08.a", "x-08.b", "x-09.a"]
    assert list(expand_braces("{a}{}")) == ["{a}{}"]
    with pytest.raises(StorageError, match="partner"):
        list(expand_braces("x-{0..3"))


@pytest.mark.parametrize(
    ("pattern", "matches", "differs"),
    [
        ("*.jpg", ["a.jpg"], ["a/b.jpg", ".a.jpg", "a.jpgx", "ajpg"]),
        ("**/*.jpg", ["a.jpg", "a/b/c.jpg"], ["a/.h/c.jpg", "a.png"]),
        ("a/**", ["a/b", "a/b/c"], ["a", "b/a/c"]),
        ("**/x/**/y", ["x/y", "a/x/b/c/y"], ["x/yy", "xx/y"]),
        ("[a-c]?.{jpg,png}", ["bz.png"], ["dz.png", "b.png", "b/.png"]),
        ("[!a].t", ["b.t"], ["a.t", "/.t"]),
        ("a[.t", ["a[.t"], ["a.t"]),
        ("[]]", ["]"], ["["]),
        ("a+b(c)|d", ["a+b(c)|d"], ["aab(c)"]),
    ],
)
def test_glob_regex(pattern: str, matches: list[str], differs: list[str]) -> None:
    assert all(glob_regex(pattern).fullmatch(text) for text in matches)
    assert not any(glob_regex(pattern).fullmatch(text) for text in differs)


@pytest.mark.parametrize("host", ["[bad", "exa mple", "h:port", "u@", ":80", "<a>", "a%b", "h:99999"])
def test_what_is_no_host_is_refused_before_a_request(host: str) -> None:
    with pytest.raises(StorageError, match="is no host name"):
        locate(f"https://{host}/x.jpg")


@pytest.mark.parametrize(
    "host", ["h", "h:8000", "127.0.0.1", "[::1]:80", "user:word@h", "a_b.example", "b\u00fccher.de"]
)
def test_hosts(host: str) -> None:
    assert locate(f"https://{host}/x y.jpg").root == f"https://{host}"


@pytest.mark.parametrize("url", ["s3://b/../x.jpg", "gs://b/a/./x.jpg", "az://c/a/.."])
def test_a_key_that_no_object_can_have_is_refused_before_a_request(url: str) -> None:
    with pytest.raises(StorageError, match="no object can have"):
        locate(url)
    assert locate("s3://b/a..b/.c").path == "a..b/.c"
