/** The choice of one of the gradient's figures. */

import type { Figure } from "../model/figures";
import { choice } from "./dom";

/** Chooses the figure beside each line. */
export function figureChoice(figures: readonly Figure[], choose: (figure: Figure) => void, id: string) {
  const word = (figure: Figure) => (figure === "kept" ? "bytes saved" : `FLOPs ${figure}`);
  const options = figures.map((figure) => [figure, word(figure)] as const);
  return choice(options, choose, { "aria-label": "figure beside each line", "data-testid": id });
}
