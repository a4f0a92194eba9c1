/** What stands in the head of a code pane: the roles of its equations, and what can be done with its text. */

import { ROLE_LETTERS } from "../model/roles";
import type { Change, State } from "../state/state";
import { button, h, svg } from "../ui/dom";
import { formatCount, plural } from "../ui/format";
import { ROLES } from "../wire/schema";

export { ROLE_LETTERS };

/** A chip for each role that there is, which dims its equations, hides them, and shows them again. */
export class RoleChips {
  readonly element = h("span", { class: "jv-chips", role: "group", "aria-label": "roles of equations" });
  private readonly chips = new Map<string, HTMLButtonElement>();

  constructor(
    private readonly state: State,
    rows: Iterable<number>,
  ) {
    const counts = new Map<string, number>();
    for (const row of rows) {
      const role = state.model.role(row);
      counts.set(role, (counts.get(role) ?? 0) + 1);
    }
    this.counts = counts;
    // With one role there is nothing to tell apart.
    if (counts.size < 2) return;
    for (const role of ROLES) {
      const n = counts.get(role);
      if (n === undefined) continue;
      const chip = button(
        [
          h("span", { class: `jv-chip-letter jv-role-${role}`, "data-letter": ROLE_LETTERS[role] || "P" }),
          h("span", { class: "jv-chip-name" }, role),
          " ",
          h("span", { class: "jv-count" }, formatCount(n)),
        ],
        () => state.mute(role),
        { class: "jv-chip", "data-testid": `role-${role}` },
      );
      this.chips.set(role, chip);
      this.element.append(chip);
    }
    this.update("roles");
  }

  private readonly counts: Map<string, number>;

  update(change: Change): void {
    if (change !== "roles") return;
    for (const [role, chip] of this.chips) {
      const how = this.state.muted.get(role) ?? "shown";
      const next = { shown: "dim", dimmed: "hide", hidden: "show" }[how];
      const what = `${plural(this.counts.get(role) ?? 0, `${role} equation`)}, ${how}`;
      chip.classList.toggle("is-dimmed", how === "dimmed");
      chip.classList.toggle("is-hidden", how === "hidden");
      // Begins with what is to be seen, so that it can be said to a computer that listens.
      chip.setAttribute(
        "aria-label",
        `${role} ${formatCount(this.counts.get(role) ?? 0)}, ${how}; ${next} them`,
      );
      chip.title = `${what} (press to ${next} them)`;
    }
  }
}

export interface Tool {
  id: string;
  title: string;
  label: (Element | string)[];
  run: () => void;
}

export function toolButton({ id, title, label, run }: Tool): HTMLButtonElement {
  return button(label, run, { class: "jv-tool", title, "aria-label": title, "data-testid": id });
}

/** Two values, each with its hue. */
export const huesIcon = (): SVGElement =>
  svg(
    "svg",
    { viewBox: "0 0 16 16", class: "jv-icon jv-hues", "aria-hidden": "true" },
    svg("circle", { cx: 5, cy: 8, r: 3.5 }),
    svg("circle", { cx: 12, cy: 8, r: 3.5 }),
  );

/** Two sheets of paper, one on the other. */
export const copyIcon = (): SVGElement =>
  svg(
    "svg",
    { viewBox: "0 0 16 16", class: "jv-icon", "aria-hidden": "true" },
    svg("rect", { x: 5.5, y: 5.5, width: 8, height: 8, rx: 1.5 }),
    svg("path", { d: "M3.5 10.5h-1v-8h8v1" }),
  );
