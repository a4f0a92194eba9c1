/** The switches as code to paste: what `code_text` of `jaxviz/features/remat/code.py` writes for a plan. */

import { formatBytes, formatFlops } from "../ui/format";
import type { Outcome, Place, WhatIf } from "./whatif";

export type CodeRow = Omit<Place, "values">;

/** The places that get a name: those of whose values half or more are to be saved. A name stands for all values of its place. */
export function placesFor(places: readonly Place[], chosen: ReadonlySet<number>): Place[] {
  return places.filter(
    ({ values }) => 2 * values.filter((value) => chosen.has(value)).length >= values.length,
  );
}

/** The lines to write for the switches as set, with what they come to. */
export function codeFor(whatIf: WhatIf, chosen: ReadonlySet<number>): string {
  const { function: name, everything, places, taken, present } = whatIf.table;
  const set = whatIf.outcome(chosen);
  const named = placesFor(places, set.saved);
  const written = whatIf.outcome(new Set(named.flatMap((place) => place.values)));
  // A name that nothing reads the value of is not written down.
  const used = named.filter((place) => place.values.some((value) => written.saved.has(value)));
  const notes = [
    `${name}: ${comesTo(written)} (without a checkpoint ${formatBytes(everything.nbytes)} and none).`,
  ];
  if (written.nbytes !== set.nbytes || written.flops !== set.flops)
    notes.push(`The switches as set, some of which no name in the source can tell apart: ${comesTo(set)}.`);
  if (present.nbytes !== everything.nbytes)
    notes.push("Take away the jax.checkpoint that is there already: this one stands in its place.");
  const fresh = freshNames(taken);
  return codeText(
    name,
    used.map((place) => ({ ...place, name: fresh() })),
    notes,
  );
}

function comesTo({ nbytes, flops }: Pick<Outcome, "nbytes" | "flops">): string {
  return `keeps ${formatBytes(nbytes)} for the backward pass, and computes ${formatFlops(flops)} again`;
}

function freshNames(taken: readonly string[]): () => string {
  let i = 0;
  return () => {
    while (taken.includes(`saved_${i}`)) i++;
    return `saved_${i++}`;
  };
}

/** Each line of the source with the names in it, and the checkpoint. */
export function codeText(name: string, rows: readonly CodeRow[], notes: readonly string[]): string {
  const lines = [
    "import jax",
    "from jax.ad_checkpoint import checkpoint_name",
    "",
    ...notes.map((note) => `# ${note}`),
  ];
  for (const together of grouped(rows)) {
    const { source } = together[0]!;
    lines.push("");
    for (const r of together) {
      const often = r.count > 1 ? `, ${r.count} values` : "";
      lines.push(`# ${r.file}:${r.line}: the result of ${r.expression}, ${r.type}${often}, is "${r.name}"`);
    }
    if (source === "") lines.push(...together.map((r) => `... = checkpoint_name(..., "${r.name}")`));
    else
      lines.push(
        ...source.split("\n").map((line) => `# was: ${line}`.trimEnd()),
        ...marked(source, together).split("\n"),
      );
  }
  const shown = /^[A-Za-z_]\w*$/.test(name) ? name : "f";
  const listed = rows.map((r) => `"${r.name}"`).join(", ");
  if (rows.length > 0)
    lines.push(
      "",
      `policy = jax.checkpoint_policies.save_only_these_names(${listed})`,
      `${shown} = jax.checkpoint(${shown}, policy=policy)`,
    );
  else lines.push("", `${shown} = jax.checkpoint(${shown})`);
  return lines.join("\n");
}

/** Rows one after the other that share their lines. */
function grouped(rows: readonly CodeRow[]): CodeRow[][] {
  const groups: CodeRow[][] = [];
  for (const row of rows) {
    const last = groups.at(-1)?.[0];
    if (last?.file === row.file && last.line === row.line && last.source === row.source)
      groups.at(-1)!.push(row);
    else groups.push([row]);
  }
  return groups;
}

/** Lines of source with `checkpoint_name` around expressions in them; of two that end together, the inner one is closed first. */
function marked(source: string, rows: readonly CodeRow[]): string {
  const edits = rows
    .filter((r) => r.target === "")
    .flatMap((r): [number, number, number, string][] => [
      [r.start, 1, 0, "checkpoint_name("],
      [r.end, 0, -r.start, `, "${r.name}")`],
    ])
    .sort((a, b) => b[0] - a[0] || b[1] - a[1] || b[2] - a[2]);
  // Python counts characters, of which some are two in a string here.
  const letters = [...source];
  for (const [at, , , text] of edits) letters.splice(at, 0, text);
  const indent = source.slice(0, source.length - source.trimStart().length);
  const after = rows.filter((r) => r.target !== "");
  return [
    letters.join(""),
    ...after.map((r) => `${indent}${r.target} = checkpoint_name(${r.target}, "${r.name}")`),
  ].join("\n");
}
