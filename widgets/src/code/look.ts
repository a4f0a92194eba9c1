/** The appearance of lines in a code pane: highlights, dimming and playback, variable hues, and role letters. */

import type { EditorState } from "@codemirror/state";
import { countBefore } from "../base/sorted";
import { nameClass } from "../model/rule";
import { litAs } from "../state/lit";
import type { Selection, State } from "../state/state";
import type { Look } from "./editor";
import type { Folding } from "./folding";
import { ROLE_LETTERS } from "./head";
import type { Lines } from "./lines";
import type { Token } from "./linetext";
import type { Line } from "./listing";
import { hueClass } from "./variable";

/** The values under the pointer, and their families of tangents and cotangents. */
interface Pointed {
  values: ReadonlySet<number>;
  families: ReadonlySet<number>;
}

export class Looks {
  private lit: { selection: Selection; lines: number[] } | null = null;

  constructor(
    private readonly state: State,
    private readonly lines: Lines,
    private readonly folding: Folding,
  ) {}

  /** The current appearance of each line. */
  now(editor: EditorState): (line: number) => Look | null {
    const { model } = this.state;
    const variables = [...this.state.pointed].filter((v) => v >= 0);
    const pointed = {
      values: new Set(variables.map((v) => model.value(v))),
      families: new Set(variables.map((v) => model.family(v))),
    };
    return (i) => (this.lines.isHidden(i) ? null : this.look(i, editor, pointed));
  }

  private look(i: number, editor: EditorState, pointed: Pointed): Look {
    const { state } = this;
    const line = this.lines.all[i]!;
    const { row } = line;
    const lit = state.player ? this.played(i) : row >= 0 ? litAs(state.selection, row) : this.litHeading(i);
    const role = line.kind === "equation" ? state.model.role(row) : "";
    const classes = [
      `jv-line jv-line-${line.kind}`,
      lit,
      lit === "" && !state.player && this.hidesLit(i, editor) && "hides-lit",
      !state.player && state.muted.has(role) && "is-dimmed",
      row >= 0 && !state.player && state.markOf(row),
    ];
    const attributes: Record<string, string> = {
      class: classes.filter(Boolean).join(" "),
      style: `--indent:${2 * line.depth + 4}ch`,
    };
    if (row >= 0) attributes["data-row"] = String(row);
    if (role !== "") {
      attributes["data-role"] = role;
      attributes["data-letter"] = ROLE_LETTERS[role] ?? "";
    }
    if (lit === "is-selected") attributes["aria-current"] = "true";
    const exchanges = line.kind === "equation" ? state.exchanges.get(row) : undefined;
    const marks = line.tokens.map((t) => {
      const name = this.nameOf(t, line, pointed);
      return exchanges && ["primitive", "collective"].includes(t.kind)
        ? { ...t, name: `${name} jv-exchanges`, title: exchanges.join("\n") }
        : { ...t, name };
    });
    return { attributes, marks, before: this.folding.arrow(i, editor) };
  }

  /** A heading is selected if everything under it is. */
  private litHeading(i: number): "" | "is-selected" {
    const { rows } = this.state.selection;
    if (rows.size < 2 || this.lines.all[i]!.kind !== "group") return "";
    return this.lines.rowsUnder(i).every((row) => rows.has(row)) ? "is-selected" : "";
  }

  /** Whether a folded line hides a highlighted equation. */
  private hidesLit(i: number, editor: EditorState): boolean {
    if (!this.folding.isFolded(i, editor)) return false;
    const { foldTo } = this.lines.all[i]!;
    const { litLines } = this;
    const next = litLines[countBefore(litLines.length, (at) => litLines[at]! <= i)];
    return next !== undefined && next <= foldTo;
  }

  /** The highlighted lines, sorted; cached per selection. */
  private get litLines(): readonly number[] {
    const { selection } = this.state;
    if (this.lit?.selection !== selection) {
      const { rows, ancestors, descendants, siblings } = selection;
      const lit = [rows, ancestors, descendants, siblings].flatMap((set) => [...set]);
      const lines = lit.map((row) => this.lines.ofRow.get(row)).filter((line) => line !== undefined);
      this.lit = { selection, lines: lines.sort((a, b) => a - b) };
    }
    return this.lit.lines;
  }

  /** The class of a token: its kind, and for a variable its relation to the pointer and to playback. */
  private nameOf(token: Token, line: Line, pointed: Pointed): string {
    const { kind, variable: v } = token;
    if (v === undefined) return `jv-${kind}`;
    const { model } = this.state;
    const isCursor = v === this.state.variable && line.row >= 0 && line.row === this.state.row;
    const how = pointed.values.has(model.value(v))
      ? "is-pointed"
      : pointed.families.has(model.family(v)) && "is-kin";
    const played = this.playedName(line, v);
    return [`jv-${kind}`, hueClass(this.state, v), how, isCursor && "is-cursor", played]
      .filter(Boolean)
      .join(" ");
  }

  /** The playback state of a line; a line without an equation follows the equation before it. */
  private played(index: number): string {
    for (let i = index; i >= 0; i--) {
      const { row } = this.lines.all[i]!;
      if (row < 0) continue;
      const how = this.state.player!.standing(row);
      return i === index || how === "is-later" ? how : "";
    }
    return "";
  }

  private playedName(line: Line, variable: number): string {
    const { player } = this.state;
    if (!player?.shown.includes(line.row)) return "";
    return nameClass(player.rule.names.get(variable));
  }
}
