"""Command lines: every rule of ``ninfer_core.options``, on plugins made for the purpose."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core import options
from ninfer_core.api import Option, boolean, choice, floating, hookimpl, integer, string
from ninfer_core.errors import OptionError, PluginConflict, StartupError, UnknownChoice
from ninfer_core.plugins import Plugins, load

DECLARED = [
    Option(flag="--width", metavar="N", parse=integer(1, 256), default=8, help="a width, in tokens"),
    Option(flag="--ratio", metavar="F", parse=floating(0, 1), default_text="the model's own", help="a ratio"),
    Option(flag="--shade", metavar="NAME", parse=choice("light", "dark"), help="a shade: light or dark"),
    Option(flag="--echo", parse=boolean, metavar="on|off", default=True, help="say it again"),
    Option(flag="--fast", help="be fast", aliases=("--quick",)),
    Option(flag="--tag", metavar="T", parse=string, repeatable=True, help="a tag"),
    Option(flag="--least", metavar="N", parse=integer(-5, 5), help="a small number"),
    Option(flag="--toys", metavar="A,B", parse=options.names, choices_from="commands", help="which toys"),
    Option(flag="--server-only", help="not for run", hidden_in=("run",)),
]


def module(declared: list[Option]) -> ModuleType:
    made = ModuleType("toy")

    @hookimpl
    def ninfer_options() -> list[Option]:
        return declared

    made.__dict__.update(NINFER_API=1, ninfer_options=ninfer_options)
    return made


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return load(only=(), modules=[("toy", module(DECLARED))])


def values(plugins: Plugins, *argv: str, command: str = "serve") -> options.OptionValues:
    return options.parse(argv, plugins, command)[1]


def refused(plugins: Plugins, *argv: str) -> str:
    with pytest.raises(OptionError) as refusal:
        options.parse(argv, plugins, "serve")
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


def test_defaults_are_filled_in_and_not_counted_as_given(plugins):
    found = values(plugins)
    assert (found["width"], found["ratio"], found["shade"], found["fast"], found["tag"]) == (8, None, None, False, ())
    assert found.given == frozenset()


def test_both_spellings_of_a_value_are_the_same(plugins):
    for argv in (["--width", "9"], ["--width=9"]):
        found = values(plugins, *argv)
        assert found["width"] == 9
        assert found.given == {"width"}


def test_positionals_stand_anywhere_and_everything_after_two_dashes_is_one(plugins):
    found, parsed = options.parse(["a", "--width", "2", "-", "b", "--", "--fast", "-x"], plugins, "serve")
    assert found == ["a", "-", "b", "--fast", "-x"]
    assert parsed["width"] == 2
    assert parsed["fast"] is False


def test_an_alias_sets_the_option_it_stands_for(plugins):
    assert values(plugins, "--quick")["fast"] is True


def test_a_repeatable_option_keeps_its_answers_in_order(plugins):
    assert values(plugins, "--tag", "b", "--tag=a", "--tag", "b")["tag"] == ("b", "a", "b")


def test_a_negative_number_is_a_value(plugins):
    assert values(plugins, "--least", "-3")["least"] == -3


def test_an_empty_value_can_be_written_and_is_judged_by_the_option(plugins):
    assert "non-empty" in refused(plugins, "--tag=")


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["--widht", "9"], ["--widht", "did you mean --width"]),
        (["--wid=9"], ["--wid", "did you mean --width"]),
        (["--zzzzzz"], ["--zzzzzz", "--help lists"]),
        (["-w"], ["-w is not an option"]),
        (["--width", "0"], ["--width '0'", "a whole number from 1 to 256"]),
        (["--width=1e3"], ["--width '1e3'", "a whole number from 1 to 256"]),
        (["--ratio", "nan"], ["--ratio 'nan'", "a number from 0 to 1"]),
        (["--shade", "drak"], ["--shade 'drak'", "one of light, dark"]),
        (["--echo", "yes"], ["--echo 'yes'", "on or off"]),
        (["--width"], ["--width needs a value"]),
        (["--width", "--fast"], ["--width needs a value before --fast", "--width=VALUE"]),
        (["--fast=on"], ["--fast takes no value", "'on'"]),
        (["--width", "1", "--width", "2"], ["--width is given twice ('1', then '2')"]),
        (["--fast", "--quick"], ["--fast is given twice"]),
        (["--plugins", "a,,b"], ["--plugins 'a,,b'", "commas between"]),
    ],
    ids=lambda value: " ".join(value) if value and value[0].startswith("-") else "",
)
def test_a_bad_line_is_refused_with_flag_value_and_way_out(plugins, argv, parts):
    message = refused(plugins, *argv)
    for part in parts:
        assert part in message


def test_an_unknown_choice_names_the_installed_ones_and_the_nearest(plugins):
    with pytest.raises(UnknownChoice) as refusal:
        values(plugins, "--toys", "plugins,plugons")
    assert "did you mean 'plugins'" in str(refusal.value)


def test_an_option_is_unknown_where_it_is_hidden(plugins):
    assert values(plugins, "--server-only")["server_only"] is True
    with pytest.raises(OptionError, match="not an option of ninfer run"):
        values(plugins, "--server-only", command="run")
    assert "server_only" not in values(plugins, command="run")


def test_a_command_without_a_model_offers_only_its_own_and_the_common_options(plugins):
    own = [Option(flag="--json", help="as JSON")]
    _, found = options.parse(["--json"], plugins, "plugins", own=own)
    assert set(found) == {"json", "plugins", "no_plugin", "help", "version"}
    with pytest.raises(OptionError):
        options.parse(["--width", "1"], plugins, "plugins", own=own)


def test_two_options_of_one_spelling_name_both_owners():
    first, second = [Option(flag="--left", help="x")], [Option(flag="--right", aliases=("--left",), help="x")]
    plugins = load(only=(), modules=[("one", module(first)), ("two", module(second))])
    with pytest.raises(PluginConflict, match="'--left' is offered twice: by one and by two"):
        options.parse([], plugins, "serve")


def test_help_wins_over_mistakes_and_shows_every_option_under_its_owner(plugins):
    with pytest.raises(options.Shown) as shown:
        options.parse(["--nonsense", "--help"], plugins, "serve")
    page = shown.value.text
    assert page.startswith("Usage: ninfer-serve [MODEL] [options]")
    toy = page[page.index("Options of plugin toy:") :]
    for option in DECLARED:
        assert option.flag in toy
        assert option.help.split()[0] in toy
    assert "[default: the model's own]" in toy
    assert max(map(len, page.splitlines())) <= 120


def test_help_inside_a_text_after_two_dashes_is_text(plugins):
    assert options.parse(["--", "--help"], plugins, "serve")[0] == ["--help"]


def test_version_prints_one_line(plugins):
    with pytest.raises(options.Shown) as shown:
        options.parse(["--version"], plugins, "serve")
    assert shown.value.text.startswith("ninfer 0.")
    assert "\n" not in shown.value.text


def test_compose_reads_the_selection_before_anything_else_is_known():
    names = {record.name: record.status for record in options.compose(["x", "--later", "--plugins=gguf"]).records}
    assert names["gguf"] != "left out"
    assert names["llama"] == "left out"
    names = {r.name: r.status for r in options.compose(["--no-plugin", "gguf", "--no-plugin", "llama,openai"]).records}
    assert [name for name, status in names.items() if status == "left out"] == ["gguf", "llama", "openai"]


def test_compose_names_a_plugin_nobody_installed():
    with pytest.raises(UnknownChoice, match="did you mean 'gguf'"):
        options.compose(["--plugins", "ggfu"])
    with pytest.raises(OptionError, match="--plugins needs a value"):
        options.compose(["--plugins"])


def test_positionals_are_counted_in_words():
    assert options.exactly(["a"], "ninfer x", "A", "[B]") == ["a"]
    with pytest.raises(OptionError, match="ninfer x needs A: ninfer x A"):
        options.exactly([], "ninfer x", "A")
    with pytest.raises(OptionError, match="got 'c' beyond A"):
        options.exactly(["b", "c"], "ninfer x", "A")


WORDS = st.one_of(st.sampled_from([f for o in DECLARED for f in (o.flag, *o.aliases)]), st.text(max_size=6))


@given(argv=st.lists(st.one_of(WORDS, st.builds("{}={}".format, WORDS, st.text(max_size=4))), max_size=6))
def test_any_line_parses_or_is_refused_in_one_line(argv):
    plugins = PLUGINS
    try:
        positionals, found = options.parse(argv, plugins, "serve")
    except StartupError as refusal:
        assert str(refusal)
    except options.Shown as shown:
        assert shown.text
    else:
        assert set(positionals) <= set(argv)
        assert found.given <= set(found)


PLUGINS = load(only=(), modules=[("toy", module(DECLARED))])
