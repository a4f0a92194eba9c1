"""Completion of the command line in bash, zsh and fish: a script for each, made from the commands' own options."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

SHELLS = ("bash", "zsh", "fish")
ABOUT = "print the script with which a shell completes the commands: bash, zsh or fish"
INSTALL = """to use it:
  bash   echo 'eval "$(jaxviz completion bash)"' >> ~/.bashrc
  zsh    echo 'eval "$(jaxviz completion zsh)"' >> ~/.zshrc
  fish   jaxviz completion fish > ~/.config/fish/completions/jaxviz.fish
"""

_FOR_ZSH = """(( $+functions[compdef] )) || { autoload -Uz compinit; compinit -i; }
autoload -U +X bashcompinit && bashcompinit
"""
"""Lets zsh take completions that are written for bash, also where nothing has started its own."""


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script for one of `SHELLS`; files are completed everywhere, as a command may take one."""
    commands = dict(_commands(parser))
    if shell == "fish":
        lines = ["complete -c jaxviz -n __fish_use_subcommand -f"]
        for name, (about, options) in commands.items():
            lines.append(f"complete -c jaxviz -n __fish_use_subcommand -a {name} -d {_quoted(about)}")
            seen = f"'__fish_seen_subcommand_from {name}'"
            lines += (f"complete -c jaxviz -n {seen} {_of_fish(o)} -d {_quoted(help)}" for o, help in options)
        return "\n".join(lines) + "\n"
    cases = "\n".join(
        f"    {name}) words='{' '.join(o for o, _ in options)}' ;;" for name, (_, options) in commands.items()
    )
    adapts = _FOR_ZSH if shell == "zsh" else ""
    return f"""{adapts}_jaxviz() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" words=''
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W '{" ".join(commands)} --help' -- "$word"))
    return
  fi
  case "$word" in -*)
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    return ;;
  esac
  COMPREPLY=($(compgen -f -- "$word"))
}}
complete -o filenames -F _jaxviz jaxviz
"""


def _commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, tuple[str, list[tuple[str, str]]]]]:
    """The commands, each with its help and its options."""
    chosen = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    about = {a.dest: a.help or "" for a in chosen._choices_actions}
    for name, command in chosen.choices.items():
        options = [(o, (a.help or "").replace("%%", "%")) for a in command._actions for o in a.option_strings]
        yield name, (about.get(name, ""), options)


def _of_fish(option: str) -> str:
    return f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"


def _quoted(text: str) -> str:
    return "'" + text.partition("\n")[0].replace("\\", "\\\\").replace("'", "\\'") + "'"
