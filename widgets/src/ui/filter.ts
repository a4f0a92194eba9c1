/** The filter of the residuals. */

import type { Model } from "../model/model";
import type { Residual } from "../model/records";

/** A test for residuals that contain all words, in any of their cells, and have a kind; '' is any kind. */
export function filterOf(model: Model): (text: string, kind: string) => ((r: Residual) => boolean) | null {
  const texts: string[] = [];
  const textOf = (r: Residual) => {
    const place = [model.placeText(r.place), r.place?.function ?? ""];
    const parts = [
      r.name,
      r.label,
      r.type,
      r.kind,
      ...place,
      r.scope,
      r.module,
      r.rule,
      r.reason,
      r.decision,
    ];
    return parts.join("\n").toLowerCase();
  };
  return (text, kind) => {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    if (words.length === 0 && kind === "") return null;
    return (r) => {
      if (kind !== "" && r.kind !== kind) return false;
      if (words.length === 0) return true;
      texts[r.index] ??= textOf(r);
      const own = texts[r.index]!;
      return words.every((word) => own.includes(word));
    };
  };
}
