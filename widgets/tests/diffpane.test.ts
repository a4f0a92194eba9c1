// @vitest-environment jsdom

import { expect, test, vi } from "vitest";
import { turn } from "../src/base/slices";
import { Matches } from "../src/model/changes";
import { DiffPane } from "../src/panes/diff";
import { State } from "../src/state/state";
import type { Changes } from "../src/wire/explorer.generated";
import { modelOf } from "./graphs";
import { followed } from "./host";

const N = 1500;
const EVERY = 5;

/** A chain of equations, of which every fifth is one of these. */
function chain(primitive: string) {
  const equations = Array.from({ length: N }, (_, i) => ({
    text: `v${i + 1} = ${i % EVERY ? "sin" : primitive} v${i}`,
  }));
  return modelOf({ primal: { inputs: ["v0"], equations, results: [`v${N}`] } });
}

/** The pane of two versions in which every fifth equation differs. */
function shown() {
  const fifths = Array.from({ length: N / EVERY }, (_, i) => i * EVERY);
  const alone = fifths.map((i): [number, number] => [i, 1]);
  const pairs = fifths.map((i): [number, number, number] => [i + 1, i + 1, EVERY - 1]);
  const changes = {
    functions: ["f", "f"],
    stages: { primal: { pairs, removed: alone, added: alone } },
  } as unknown as Changes;
  const [before, state] = [new State(chain("cos")), new State(chain("exp"))];
  const match = (isAfter: boolean) => new Matches(changes, before.model, state.model, isAfter);
  before.other = { state, matches: match(false), mark: "is-removed" };
  state.other = { state: before, matches: match(true), mark: "is-added" };
  state.arrange("diff");
  const pane = followed(new DiffPane(state, state.other, changes));
  document.body.replaceChildren(pane.element);
  const rows = () => [...pane.element.querySelectorAll("tbody tr")].map((row) => row.textContent);
  const click = (id: string) => pane.element.querySelector<HTMLElement>(`[data-testid=${id}]`)!.click();
  return { pane, rows, click };
}

test("a large diff is compared in slices, and shows some rows and a button for the others", async () => {
  const { pane, rows, click } = shown();
  click("diff-primal");
  expect(rows()).toEqual(["Comparing…"]);
  await vi.waitFor(() => expect(rows().length).toBeGreaterThan(1), 20_000);
  expect(rows()).toHaveLength(201);
  expect(rows()[0]).toContain("lambda");
  expect(rows()[1]!.replace(/ +/g, " ")).toBe("− v1:f32[4] = cos v0+ v1:f32[4] = exp v0");
  const left = N + 2 - 200;
  expect(rows().at(-1)).toBe(`⋯ ${left.toLocaleString("en")} lines more`);
  pane.element.querySelector<HTMLElement>(".jv-diff-fold button")!.click();
  expect(rows()).toHaveLength(401);
  expect(document.activeElement!.closest("tr")).toBe(pane.element.querySelectorAll("tbody tr")[200]);
});

test("of several requests only the last is shown", async () => {
  const { pane, rows, click } = shown();
  click("diff-primal");
  click("diff-source");
  const source = rows();
  expect(source[0]).toBe("1def loss(x):1def loss(x):");
  for (let i = 0; i < 100; i++) await turn();
  expect(rows()).toEqual(source);
  click("diff-primal");
  pane.destroy();
  for (let i = 0; i < 100; i++) await turn();
  expect(rows()).toEqual(["Comparing…"]);
});
