/** Cards for the largest saved expressions: the expression, its location, why it is saved, and what would help. */

import { formatBytes, formatCount, percent, plural } from "../base/format";
import { type Kept, overviewOf } from "../model/overview";
import { isLookedFor } from "../model/work";
import type { State } from "../state/state";
import { button, h } from "../ui/dom";
import { marked } from "../ui/marked";
import type { Effects } from "../ui/pane";

const CARDS = 3;

export class CardsPane {
  readonly element = h("div.jv-cards.jv-fixed", { role: "list", "aria-label": "largest values saved" });

  constructor(private readonly state: State) {}

  readonly effects: Effects = [() => this.fill()];

  /** Whether each card has lines for advice: from the start, so that nothing moves when they are filled. */
  private hasRoom = false;

  private fill(): void {
    this.hasRoom ||= isLookedFor(this.state.advice) || (this.state.advised?.cards ?? []).some(Boolean);
    const { kept } = overviewOf(this.state.model);
    const total = kept.reduce((sum, { nbytes }) => sum + nbytes, 0);
    this.element.replaceChildren(...kept.slice(0, CARDS).map((each) => this.card(each, total)));
  }

  private card(kept: Kept, total: number): HTMLElement {
    const { model } = this.state;
    const share = percent((100 * kept.nbytes) / Math.max(1, total));
    const values = plural(kept.values, "value");
    const times = kept.times > 1 ? `${formatCount(kept.times)} × ${values}` : values;
    const { advised } = this.state;
    const advice = advised?.cards[kept.index] ?? "";
    const name = button(h("code", kept.label), () => this.state.openResiduals(kept.residuals), {
      class: "jv-card-name jv-bare jv-cut",
      title: `${kept.label}\nShow it in the equations, forward beside backward`,
      "data-testid": "card-open",
    });
    return h(
      "div.jv-card",
      {
        role: "listitem",
        "data-testid": "card",
        ...this.state.pointing(kept.place),
      },
      name,
      h(
        "div.jv-card-size.jv-dim",
        h("strong", `${formatBytes(kept.nbytes)}, ${share}`),
        ` of what is saved: ${times}, at ${model.placeText(kept.place)}`,
      ),
      h("p", ...marked(kept.reason)),
      this.hasRoom && h("p.jv-card-advice", ...marked(advice)),
    );
  }
}
