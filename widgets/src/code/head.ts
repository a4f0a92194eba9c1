/** The header of a code pane: role filters, and actions on its text. */

import { formatCount, plural } from "../base/format";
import { counted } from "../model/groups";
import { ROLE_LETTERS } from "../model/roles";
import type { State } from "../state/state";
import { button, h } from "../ui/dom";
import { ROLES } from "../wire/schema";

export { ROLE_LETTERS };

/** A chip for each role present; clicking it dims the role's equations, then hides them, then shows them again. */
export class RoleChips {
  readonly element = h("span.jv-chips", { role: "group", "aria-label": "roles of equations" });
  private readonly chips = new Map<string, HTMLButtonElement>();

  constructor(
    private readonly state: State,
    rows: Iterable<number>,
  ) {
    const counts = counted(Array.from(rows, (row) => state.model.role(row)));
    this.counts = counts;
    // With a single role there is nothing to filter.
    if (counts.size < 2) return;
    for (const role of ROLES) {
      const n = counts.get(role);
      if (n === undefined) continue;
      const chip = button(
        [
          h("span", { class: `jv-chip-colour jv-role-${role}`, "aria-hidden": true }),
          role,
          " ",
          h("span.jv-count.jv-dim", formatCount(n)),
        ],
        () => state.mute(role),
        { class: "jv-chip jv-small jv-inline", "data-testid": `role-${role}` },
      );
      this.chips.set(role, chip);
      this.element.append(chip);
    }
  }

  private readonly counts: ReadonlyMap<string, number>;

  /** Shows how the equations of each role are shown. */
  update(): void {
    for (const [role, chip] of this.chips) {
      const how = this.state.muted.get(role) ?? "shown";
      const next = { shown: "dim", dimmed: "hide", hidden: "show" }[how];
      const what = `${plural(this.counts.get(role) ?? 0, `${role} equation`)}, ${how}`;
      chip.classList.toggle("is-dimmed", how === "dimmed");
      chip.classList.toggle("is-hidden", how === "hidden");
      // The accessible name starts with the visible text, so that speech input can address the chip.
      chip.setAttribute(
        "aria-label",
        `${role} ${formatCount(this.counts.get(role) ?? 0)}, ${how}; ${next} them`,
      );
      chip.title = `${what} (press to ${next} them)`;
    }
  }
}

export function toolButton(id: string, word: string, title: string, run: () => void): HTMLButtonElement {
  return button(word, run, { class: "jv-tool jv-dim jv-small", title, "data-testid": id });
}
