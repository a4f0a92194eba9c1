// @vitest-environment jsdom
import { expect, test } from "vitest";
import { CostsPane } from "../src/panes/costs";
import { State } from "../src/state/state";
import { model } from "./fixture";
import { followed } from "./host";

function show(columns: Record<string, number[]> = {}) {
  const state = new State(model(columns));
  const pane = followed(new CostsPane(state));
  const { element } = pane;
  const rows = () => [...element.querySelectorAll<HTMLTableRowElement>("[data-testid=cost]")];
  const texts = () => rows().map((row) => Array.from(row.cells, (cell) => cell.textContent));
  const sort = (heading: string) =>
    [...element.querySelectorAll<HTMLElement>("th button")].find((b) => b.textContent === heading)!.click();
  return { state, element, rows, texts, sort };
}

test("lines are ranked by their work, of which they show the share, and sorted by any column", () => {
  const { element, texts, sort } = show();
  const [first, second] = [
    ["67 %", "return g(jnp.sin(x))  # é ✓ </script>", "", "6 FLOP", "", "96 B", "0.063", "", "12 B", "2"],
    ["33 %", "model.py:300", "3 FLOP", "", "", "24 B", "0.13", "", "4 B", "300"],
  ];
  expect(texts()).toEqual([first, second]);
  expect(element.querySelector(".jv-pane-head")!.textContent).toContain("forward 3 FLOP, backward 6 FLOP");
  for (const heading of ["forward", "per byte", "what"]) {
    sort(heading);
    expect(texts(), heading).toEqual([second, first]);
  }
  for (const heading of ["moved", "saved", "line", "work"]) {
    sort(heading);
    expect(texts(), heading).toEqual([first, second]);
  }
});

test("functions are ranked by the work of both passes, with the bytes of what they compute", () => {
  const saved = (producer: number) => {
    const { state, element, rows, texts } = show({ residual_producer: [producer, -1] });
    const by = element.querySelector("select")!;
    by.value = "function";
    by.dispatchEvent(new Event("change"));
    rows()[0]!.click();
    expect([...state.selection.rows]).toEqual([2, 3, 4]);
    return texts();
  };
  const row = (bytes: string) => [
    ["100 %", "block/attention", "3 FLOP", "6 FLOP", "", "96 B", "0.094", "", bytes, ""],
  ];
  expect([saved(0), saved(2)]).toEqual([row(""), row("12 B")]);
});

test("a click or Enter selects a line, which is marked wherever it is selected", () => {
  const { state, rows } = show();
  const marked = () => rows().map((row) => row.ariaCurrent);
  rows()[0]!.click();
  expect([state.selection.file, state.selection.line, marked()]).toEqual([0, 2, ["true", null]]);
  rows()[1]!.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
  expect([state.selection.line, marked()]).toEqual([300, [null, "true"]]);
  state.selectLine(0, 2);
  expect(marked()).toEqual(["true", null]);
  rows()[1]!.dispatchEvent(new Event("pointerenter"));
  expect(state.aimed!.line).toBe(300);
});
