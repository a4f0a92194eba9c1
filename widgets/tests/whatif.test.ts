import { describe, expect, it } from "vitest";
import fixture from "../../tests/fixtures/whatif.json";
import { codeFor, codeText, placesFor } from "../src/model/plancode";
import { type Table, WhatIf } from "../src/model/whatif";
import { peakOf, rowsOf, sortedRows } from "../src/panes/whatif";
import { formatBytes, formatFlops } from "../src/ui/format";

interface Program {
  table: Table;
  code: string;
  cases: { chosen: number[]; nbytes: number; flops: number; peak: number }[];
}

const { jax: _, ...programs } = fixture as unknown as { jax: string } & Record<string, Program>;

describe.each(Object.entries(programs as Record<string, Program>))("%s", (_name, { table, cases, code }) => {
  const whatIf = new WhatIf(table);

  it.each(cases)("keeps and computes again what JAX does, with $chosen saved", (given) => {
    const outcome = whatIf.outcome(new Set(given.chosen));
    expect(outcome.nbytes).toBe(given.nbytes);
    expect(outcome.flops).toBe(given.flops);
    expect([...outcome.saved].every((value) => given.chosen.includes(value))).toBe(true);
  });

  it.each(cases)("models the peak as Python models the planned function's, with $chosen saved", (given) => {
    const outcome = whatIf.outcome(new Set(given.chosen));
    const peak = peakOf(whatIf.timeline(outcome));
    // But for what a loop carries, which is not counted where it is run again, they are the same.
    expect(Math.abs(peak / given.peak - 1)).toBeLessThan(0.02);
  });

  it("writes the code that Python writes", () => {
    expect(codeText(table.function, table.places, ["All that can be named."])).toBe(code);
  });

  it.each(cases)("says in the code what it comes to, with $chosen saved", (given) => {
    const text = codeFor(whatIf, new Set(given.chosen));
    const set = whatIf.outcome(new Set(given.chosen));
    const written = new Set(placesFor(table.places, set.saved).flatMap((place) => place.values));
    const { nbytes, flops } = whatIf.outcome(written);
    expect(text).toContain(
      `keeps ${formatBytes(nbytes)} for the backward pass, and computes ${formatFlops(flops)} again`,
    );
    expect(text.includes("The switches as set")).toBe(nbytes !== set.nbytes || flops !== set.flops);
  });

  it("frees nothing before it is made, and computes nothing after it is read", () => {
    const { steps, buffers } = whatIf.timeline(whatIf.outcome(new Set()));
    for (const { born, last } of buffers) {
      expect(born).toBeLessThanOrEqual(last);
      expect(last).toBeLessThanOrEqual(steps.length);
    }
    const again = steps.filter((step) => step.what?.endsWith("computed again"));
    expect(again.length).toBeGreaterThan(0);
    expect(again.every((step) => step.isBackward)).toBe(true);
  });

  it("shows what is saved and what is computed again, the largest first", () => {
    const chosen = new Set(table.present.saved);
    const outcome = whatIf.outcome(chosen);
    const rows = sortedRows(table, rowsOf(whatIf, outcome, chosen), "nbytes", true);
    const sizes = rows.map((row) => table.values[row.value]!.nbytes);
    expect(sizes).toEqual([...sizes].sort((a, b) => b - a));
    const lines = sortedRows(table, rows, "row", false).map((row) => table.values[row.value]!.row);
    expect(lines).toEqual([...lines].sort((a, b) => a - b));
    expect(new Set(rows.filter((row) => row.fate === "saved").map((row) => row.value))).toEqual(
      outcome.saved,
    );
  });
});
