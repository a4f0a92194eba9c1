/** What the selection highlights: rows, residuals, and places in the source. */

import type { Place } from "../model/records";
import type { Selection, State } from "./state";

/** The relations to the selection, the closest first. */
export const LIT = ["is-selected", "is-ancestor", "is-descendant", "is-related"] as const;
export type Lit = "" | (typeof LIT)[number];

/** The closest of some relations. */
export function closestOf(relations: Iterable<Lit>): Lit {
  const found = new Set(relations);
  return LIT.find((lit) => found.has(lit)) ?? "";
}

/** The relation of a row to the selection, as a class name; or empty. */
export function litAs(selection: Selection, row: number): Lit {
  if (selection.rows.has(row)) return "is-selected";
  if (selection.ancestors.has(row)) return "is-ancestor";
  if (selection.descendants.has(row)) return "is-descendant";
  return selection.siblings.has(row) ? "is-related" : "";
}

/** The relation of a residual to the selection: computed by it, read by it, or saved because of it. */
export function residualLitAs(state: State, index: number): Lit {
  const { selection, model } = state;
  const r = model.residuals[index]!;
  if (selection.residual >= 0) return selection.residuals.has(index) ? "is-selected" : "";
  if (r.producer >= 0 && selection.rows.has(r.producer)) return "is-selected";
  if (r.consumers.some((row) => selection.rows.has(row))) return "is-ancestor";
  return r.producer >= 0 && selection.descendants.has(r.producer) ? "is-descendant" : "";
}

/** The places of the selected expressions; none if a whole line is selected. */
export function selectedPlaces({ selection, model }: State): Place[] {
  const { residual, rows, line } = selection;
  if (line >= 0) return [];
  if (residual >= 0) return placed([model.residuals[residual]!.place]);
  const locations = new Set([...rows].map((row) => model.column("equation_location")[row]!));
  return placed([...locations].map((i) => model.location(i)));
}

/** The place where the hovered or current variable is computed. */
export function pointedPlaces({ hover, variable, model, aimed }: State): Place[] {
  if (aimed !== null) return [aimed];
  const pointed = hover >= 0 ? hover : variable;
  const row = pointed >= 0 ? model.definition(pointed) : -1;
  return placed([row >= 0 ? model.place(row) : null]);
}

const placed = (places: (Place | null)[]): Place[] => places.filter((place) => place !== null);

/** The source lines related to the selection, as `file:line`, and how. */
export function litLines(state: State): Map<string, Lit> {
  const { selection, model } = state;
  const lit = new Map<string, Lit>();
  const light = (place: Place | null, how: Lit) => {
    const key = place ? `${place.file}:${place.line}` : "";
    if (place && !lit.has(key)) lit.set(key, how);
  };
  if (selection.line >= 0) lit.set(`${selection.file}:${selection.line}`, "is-selected");
  for (const row of selection.rows) light(model.place(row), "is-selected");
  if (selection.residual >= 0) light(model.residuals[selection.residual]!.place, "is-selected");
  for (const row of selection.ancestors) light(model.place(row), "is-ancestor");
  return lit;
}
