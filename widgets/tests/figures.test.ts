import { expect, test } from "vitest";
import {
  alignedFigure,
  equationsOfLine,
  keptBesides,
  LineFigures,
  linesWithEquations,
  NONE,
} from "../src/model/figures";
import { KINDS } from "../src/wire/schema";
import { model } from "./fixture";

test("the figures of a line are Python's, and a column is shown if any line has a figure", () => {
  const lines = new LineFigures(model());
  expect(lines.of(0, 2)).toEqual({ kept: 12, forward: 0, backward: 6, recomputed: 0, moved: 96 });
  expect(lines.of(0, 1)).toBe(NONE);
  expect(lines.there).toEqual(["kept", "forward", "backward"]);
  expect(lines.total).toEqual({ kept: 16, forward: 3, backward: 6, recomputed: 0, moved: 120 });
  expect(lines.most.kept).toBe(12);
  expect(lines.said(lines.of(0, 2))).toBe("12 B saved, 6 FLOP backward");
  expect(lines.largest).toBe("0:2");
  expect(new LineFigures(model({ line_recomputed: [0, 2] })).there).toContain("recomputed");
});

test("the numbers of a column have units of one width", () => {
  const bytes = [12, 2048, 3 << 20, 1008 << 20].map((n) => alignedFigure("kept", n));
  expect(bytes).toEqual(["12 B  ", "2.0 KiB", "3.0 MiB", "1008 MiB"]);
  const flops = [147, 2000, 3e6].map((n) => alignedFigure("backward", n));
  expect(flops).toEqual(["147  ", "2.0 k", "3.0 M"]);
});

test("a line has the equations of both passes, or else those of the function", () => {
  expect(equationsOfLine(model(), 0, 2).map(({ rows }) => rows)).toEqual([[3]]);
  const [jit, inner] = equationsOfLine(model(), 0, 300);
  expect([jit!.rows, inner!.rows]).toEqual([[1], [2]]);
  expect([jit!.depth, inner!.depth]).toEqual([0, 1]);
  expect(linesWithEquations(model())).toEqual(new Set(["0:2", "0:300"]));
});

test("repeated equations are one row with the sum of their figures", () => {
  const alike = { equation_location: [0, 1, 1, 0, 0], equation_group: [0, 1, 2, 3, 3] };
  const [one, ...rest] = equationsOfLine(model({ ...alike, equation_role: [0, 0, 0, 3, 3] }), 0, 2);
  expect(rest).toEqual([]);
  expect(one!.rows).toEqual([3, 4]);
  expect(one!.figures).toEqual({ kept: 0, forward: 0, backward: 6, recomputed: 0, moved: 72 });
  const [recomputed] = equationsOfLine(model({ ...alike, equation_role: [0, 0, 0, 5, 5] }), 0, 2);
  expect(recomputed!.figures.recomputed).toBe(6);
  const roles = equationsOfLine(model({ ...alike, equation_role: [0, 0, 0, 3, 5] }), 0, 2);
  expect(roles.map(({ rows }) => rows)).toEqual([[3], [4]]);
});

test("values saved for a line that none of its equations computes are listed", () => {
  const besides = (columns: Record<string, number[]>, line = 2) =>
    [...keptBesides(model(columns), 0, line)].map(([kind, rs]) => [kind, rs.map(({ index }) => index)]);
  const of = { residual_location: [0, 0], residual_kind: [1, 3] };
  expect(besides({ ...of, residual_producer: [-1, -1] })).toEqual([
    [KINDS[1], [0]],
    [KINDS[3], [1]],
  ]);
  expect(besides({ ...of, residual_producer: [-1, 3], equation_location: [0, 1, 1, 0, -1] })).toEqual([
    [KINDS[1], [0]],
  ]);
  expect(besides({ ...of, residual_kind: [0, 0], residual_producer: [-1, -1] })).toEqual([]);
  expect(besides({ ...of, residual_producer: [-1, -1] }, 300)).toEqual([]);
});

test("saved bytes count for the line they are saved for", () => {
  const m = model({ equation_location: [0, 1, 1, 1, -1] });
  expect(equationsOfLine(m, 0, 2)[0]!.figures.kept).toBe(12);
  const elsewhere = model({ equation_location: [0, 1, 1, 1, -1], residual_location: [1, 1] });
  expect(equationsOfLine(elsewhere, 0, 2)[0]!.figures.kept).toBe(0);
});
