import { expect, test } from "vitest";
import { partOfSteps, stepsOfPart } from "../src/model/overview";
import { ALL, isWhole, moved, placeAt, seenAt, showing, zoomed } from "../src/model/span";
import { fitted } from "../src/ui/fit";

test("a place stays where it is while the axis is zoomed about it, except at the ends", () => {
  let span = ALL;
  for (const by of [0.5, 0.5, 0.3]) {
    const next = zoomed(span, 0.4, by, 1e-9);
    expect(seenAt(next, 0.4)).toBeCloseTo(seenAt(span, 0.4));
    span = next;
  }
  expect(span.to - span.from).toBeCloseTo(0.075);
  expect(placeAt(span, seenAt(span, 0.4))).toBeCloseTo(0.4);
  expect(zoomed(span, 0.4, 0.01, 0.05).to - zoomed(span, 0.4, 0.01, 0.05).from).toBeCloseTo(0.05);
  expect(isWhole(zoomed(span, 0.4, 100, 0.05))).toBe(true);
  // What is narrower than the least already is not widened by zooming in.
  expect(zoomed({ from: 0.5, to: 0.51 }, 0.5, 0.5, 0.1)).toEqual({ from: 0.5, to: 0.51 });
});

test("a part is moved within the axis, and only as far as another is to be visible", () => {
  const span = { from: 0.25, to: 0.5 };
  expect(moved(span, 0.25)).toEqual({ from: 0.5, to: 0.75 });
  expect(moved(span, 9)).toEqual({ from: 0.75, to: 1 });
  expect(moved(span, -9)).toEqual({ from: 0, to: 0.25 });
  expect(showing(span, { from: 0.3, to: 0.4 })).toBe(span);
  expect(showing(span, { from: 0.125, to: 0.25 })).toEqual({ from: 0.125, to: 0.375 });
  expect(showing(span, { from: 0.5, to: 0.625 })).toEqual({ from: 0.375, to: 0.625 });
});

test("a part of the steps is a part of an axis with steps of different widths, and back", () => {
  const edges = Float64Array.of(0, 0.5, 0.5, 0.6, 1);
  expect(partOfSteps(edges, ALL)).toEqual(ALL);
  const part = partOfSteps(edges, { from: 0.125, to: 0.875 });
  expect([part.from, part.to]).toEqual([0.25, 0.8]);
  const back = stepsOfPart(edges, part);
  expect([back.from, back.to]).toEqual([0.125, expect.closeTo(0.875)]);
  expect(stepsOfPart(edges, ALL)).toEqual(ALL);
});

test("a text is shortened between words, never within one", () => {
  const text = "x = jnp.concatenate([up(x), skip], -1)";
  expect(fitted(text, 40)).toBe(text);
  expect(fitted(text, 26)).toBe("x = jnp.concatenate([up(x…");
  expect(fitted(text, 24)).toBe("x = jnp.concatenate([up…");
  expect(fitted(text, 12)).toBe("x = jnp.…");
  expect(fitted("res_block", 6)).toBe("");
  expect(fitted("(x)", 2)).toBe("");
});
