"""Budgets in the forms that users write."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from jaxviz.analysis import budgets
from jaxviz.analysis.budgets import evenly, free_memory, least_budget, read_budget, read_size


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("512MiB", 512 * 2**20),
        ("1.5GB", 1.5e9),
        (" 2 kib ", 2048),
        ("16e9", 16e9),
        (".5 TB", 5e11),
        ("100", 100),
        ("7B", 7),
        (12, 12),
        (0.25, 0.25),
        (jnp.float32(3.0), 3),
    ],
)
def test_sizes(text, number):
    assert read_size(text) == number


@pytest.mark.parametrize("text", ["", "MiB", "5 XB", "-1", "1.2.3", "fast"])
def test_text_that_is_no_size_says_what_is(text):
    sign = ", and at least 0" if text == "-1" else ""
    with pytest.raises(
        ValueError, match=rf"memory must be a number of bytes, or a size such as '512MiB' or '1.5GB'{sign}; got"
    ):
        read_size(text, "memory")


@pytest.mark.parametrize("number", [-1, float("nan"), float("inf")])
def test_numbers_that_are_no_size(number):
    with pytest.raises(
        ValueError, match=r"a size must be a number of bytes, or a size such as .*, and at least 0; got"
    ):
        read_size(number)


@pytest.mark.parametrize("thing", [None, True, [1], jnp.ones(3)])
def test_things_that_are_no_size(thing):
    with pytest.raises(TypeError, match="a size must be a number of bytes, or a size such as"):
        read_size(thing)


def test_shares_and_bytes():
    assert read_budget(0.5, 1000) == 500
    assert read_budget("0.5", 1000) == 500
    assert read_budget("50%", 1000) == read_budget(" 50 % ", 1000) == 500
    assert read_budget("12.5%", 1000) == 125
    assert read_budget(1, 1000) == 1000
    assert read_budget("1B", 1000) == 1
    assert read_budget(1.5, 1000) == 1
    for text in ("fastest", "%", "-5%", "5%%"):
        sign = ", and at least 0" if text == "-5%" else ""
        with pytest.raises(ValueError, match=rf"a share such as 0.5 or '50%'{sign}; got"):
            read_budget(text, 1000)


@pytest.mark.parametrize("whole", [2, 3, 100, 1025, 3392, 2**20 + 1, 10**9])
def test_what_to_type_for_the_least_budget_is_no_less_and_not_all(whole):
    for least in {1, whole // 3, whole // 2, whole - 1} - {0}:
        ways = [eval(way.removeprefix("budget=")) for way in least_budget(least, whole).split(" or ")]
        assert all(least <= read_budget(way, whole) < whole for way in ways)
    assert least_budget(1728, 3392) == 'budget="1.7 KiB" or budget=0.51'


def device(monkeypatch, platform, stats):
    found = SimpleNamespace(platform=platform, memory_stats=lambda: stats)
    monkeypatch.setattr(budgets, "default_device", lambda: found)


def test_what_a_device_has_free(monkeypatch):
    device(monkeypatch, "gpu", {"bytes_limit": 1000, "bytes_in_use": 300})
    assert free_memory([]) == 700


def test_a_cpu_has_what_its_machine_has_left_and_arguments_take_their_own(monkeypatch):
    monkeypatch.setattr(budgets, "_machine_memory", lambda: 5000)
    x, key = jnp.ones((8, 8)), jax.random.key(0)
    shape = jax.ShapeDtypeStruct((1000,), "float32")
    assert free_memory([]) == 5000
    assert free_memory([x, x, shape, 2.0, key]) == 5000 + 256 + 8


def test_the_default_device():
    assert budgets.default_device() == jax.devices()[0]
    with jax.default_device(jax.devices()[-1]):
        assert budgets.default_device() == jax.devices()[-1]
    with jax.default_device("cpu"):
        assert budgets.default_device() == jax.devices("cpu")[0]


def test_the_machines_memory(tmp_path):
    info, limit, used = (tmp_path / n for n in ("meminfo", "memory.max", "memory.current"))
    info.write_text("MemTotal:       200 kB\nMemAvailable:   100 kB\n")
    limit.write_text("3000\n")
    used.write_text("1000\n")
    assert budgets._available(str(info)) == 100 * 1024
    assert budgets._left(str(limit), str(used)) == 2000
    limit.write_text("max\n")
    assert budgets._left(str(limit), str(used)) is None
    assert budgets._left(str(tmp_path / "none"), str(used)) is None
    assert budgets._machine_memory() > 0


def test_a_device_that_does_not_say_is_an_error(monkeypatch):
    device(monkeypatch, "tpu", None)
    with pytest.raises(ValueError, match="does not report its memory; give a size, such as memory='16GiB'"):
        free_memory([])
    device(monkeypatch, "cpu", None)
    monkeypatch.setattr(budgets, "_machine_memory", lambda: None)
    with pytest.raises(ValueError, match="does not report its memory"):
        free_memory([])


def test_budgets_are_spread_evenly_however_large():
    assert evenly(0, 100, 5) == [0, 25, 50, 75, 100]
    assert evenly(7, 7, 3) == [7, 7, 7]
    spread = evenly(3, 2**200, 4)
    assert spread[0] == 3
    assert spread[-1] == 2**200
    assert spread[1] == pytest.approx(2**200 / 3)
