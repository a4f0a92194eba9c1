import { expect, test } from "vitest";
import { litAs, litLines, residualLitAs } from "../src/state/lit";
import { State } from "../src/state/state";
import { model } from "./fixture";

test("ancestors and descendants follow the origins", () => {
  const m = model();
  expect([...m.ancestors([3])]).toEqual([0]);
  expect([...m.descendants([0])].sort()).toEqual([3, 4]);
  expect([...m.descendants([1])]).toEqual([]);
});

test("ancestors are followed across stages, and cycles end", () => {
  const m = model({ equation_origin: [-1, 0, 1, 2, -1], equation_twin: [-1, -1, -1, -1, -1] });
  expect([...m.ancestors([3])].sort()).toEqual([0, 1, 2]);
  const circle = model({ equation_origin: [1, 0, -1, -1, -1], equation_twin: [-1, -1, -1, -1, -1] });
  expect([...circle.ancestors([0])].sort()).toEqual([0, 1]);
  expect([...circle.descendants([0])].sort()).toEqual([0, 1]);
});

test("definitions and uses", () => {
  const m = model();
  expect([m.definition(0), m.definition(1), m.definition(4)]).toEqual([-1, 0, 2]);
  expect(m.uses(1)).toEqual([1]);
  expect(m.uses(7)).toEqual([4]);
  expect(m.uses(8)).toEqual([]);
});

test("Python's names of equations convert both ways", () => {
  const m = model();
  expect([m.name(0), m.name(4)]).toEqual(["primal:0", "backward:1"]);
  expect([m.rowNamed("primal:2"), m.rowNamed("backward:0")]).toEqual([2, 3]);
  expect([m.rowNamed("primal:3"), m.rowNamed("sideways:0"), m.rowNamed("backward"), m.rowNamed("")]).toEqual([
    -1, -1, -1, -1,
  ]);
});

test("a selected equation highlights its descendants, and its residual", () => {
  const state = new State(model());
  state.selectRow(0);
  expect([0, 1, 3, 4].map((row) => litAs(state.selection, row))).toEqual([
    "is-selected",
    "",
    "is-descendant",
    "is-descendant",
  ]);
  expect([0, 1].map((index) => residualLitAs(state, index))).toEqual(["is-selected", ""]);
  expect([...litLines(state)]).toEqual([["0:2", "is-selected"]]);
});

test("a reader of a residual highlights it as an ancestor", () => {
  const state = new State(model());
  state.selectRow(3);
  expect(litAs(state.selection, 0)).toBe("is-ancestor");
  expect(residualLitAs(state, 0)).toBe("is-ancestor");
});

test("equations of the same origin are related", () => {
  const state = new State(model({ equation_twin: [-1, -1, -1, -1, -1] }));
  state.selectRow(3);
  expect(litAs(state.selection, 4)).toBe("is-related");
});

test("a residual selects its producer and highlights its consumers", () => {
  const state = new State(model());
  state.selectResidual(0);
  expect([...state.selection.rows]).toEqual([0]);
  expect(litAs(state.selection, 3)).toBe("is-descendant");
  expect([0, 1].map((index) => residualLitAs(state, index))).toEqual(["is-selected", ""]);
});

test("a line selects the equations of f on it", () => {
  const state = new State(model());
  state.selectLine(0, 300);
  expect([...state.selection.rows]).toEqual([1, 2]);
  expect([...litLines(state)]).toEqual([["0:300", "is-selected"]]);
});

test("clearing the selection removes all highlights", () => {
  const state = new State(model());
  state.selectRow(0);
  state.clear();
  expect([0, 3].map((row) => litAs(state.selection, row))).toEqual(["", ""]);
  expect(residualLitAs(state, 0)).toBe("");
  expect(litLines(state).size).toBe(0);
});

test("stages: one, a second beside it, and one again", () => {
  const state = new State(model());
  state.showStages([1]);
  expect(state.shown).toEqual({ left: [1], right: [] });
  state.showStages([0], true);
  expect(state.shown).toEqual({ left: [1], right: [0] });
  state.use("right");
  state.showStages([1]);
  expect(state.shown).toEqual({ left: [1], right: [1] });
  state.toggleBeside(1);
  expect(state.shown.right).toEqual([]);
  expect(state.side).toBe("left");
});

test("transformations applied before the function was derived", () => {
  const m = model();
  expect(m.earlier(4)).toEqual(["jvp rule of sin (linearize)"]);
  expect(m.earlier(0)).toEqual([]);
});

test("hovering a donated input, or the result that reuses it, highlights both, as selecting their jit does", () => {
  const state = new State(
    model({ donation_rows: [1], donation_operands: [0], donation_results: [0], donation_reasons: [0] }),
  );
  for (const variable of [3, 4]) {
    state.pointAt(variable);
    expect([...state.pointed].sort()).toEqual([3, 4]);
  }
  state.pointAt(0);
  expect([...state.pointed]).toEqual([0]);
  state.pointAt(-1);
  state.selectRow(1);
  expect([...state.pointed].filter((v) => v >= 0).sort()).toEqual([3, 4]);
});

test("sizes: in total, per device, and on one device inside a shard_map", () => {
  expect(model().sizeText(0)).toBe("12 B");
  expect(model({ type_per_device: [6, -1] }).sizeText(0)).toBe("12 B · 6 B a device");
  const inside = model({ layout_rows: [1], layout_texts: [22] });
  expect([0, 3, 4].map((v) => inside.sizeText(v))).toEqual(["12 B", "12 B a device", "12 B a device"]);
});
