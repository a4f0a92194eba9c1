// @vitest-environment jsdom
import { afterEach, beforeAll, expect, test, vi } from "vitest";
import { Drawing } from "../src/graph/draw/drawing";
import { inkOn, viridis } from "../src/graph/draw/palette";
import { opening } from "../src/graph/draw/view";
import { openAtFirst, treeOf } from "../src/graph/layout/hierarchy";
import { placeAll } from "../src/graph/layout/place";
import { sceneOf } from "../src/graph/layout/scene";
import { GraphPane } from "../src/graph/pane";
import type { Model } from "../src/model/model";
import { State } from "../src/state/state";
import { model as fixture } from "./fixture";
import { layers, modelOf } from "./graphs";
import { followed } from "./host";
import { layOut } from "./layout";

beforeAll(() => {
  layOut(600, 400);
  // jsdom has no canvas; everything but the drawing must work without it.
  HTMLCanvasElement.prototype.getContext = (() => null) as never;
});

const errors = vi.spyOn(console, "error");

afterEach(() => {
  document.body.replaceChildren();
  expect(errors).not.toHaveBeenCalled();
});

function show(model: Model, stages = [0]) {
  const root = document.createElement("div");
  document.body.append(root);
  const state = new State(model);
  const pane = followed(new GraphPane(state, treeOf(model, stages), "left", root));
  root.append(pane.element);
  const find = (id: string) => root.querySelector<HTMLElement>(`[data-testid="${id}"]`)!;
  const tree = find("graph-tree");
  const current = () => tree.querySelector<HTMLElement>(`#${tree.getAttribute("aria-activedescendant")}`);
  const key = (name: string, more: KeyboardEventInit = {}) => {
    tree.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true, ...more }));
    return current()?.textContent;
  };
  return { state, pane, find, tree, key, current };
}

test("arrow keys move along edges and select", () => {
  const { state, key, current } = show(modelOf({ primal: layers(4) }));
  expect(key("Home")).toBe("gather, f32[4], equation, primal");
  expect(state.row).toBe(0);
  expect(key("ArrowDown")).toBe("layer, 28 equations, repeated layers");
  expect(state.selection.rows.size).toBe(28);
  expect(current()!.getAttribute("aria-expanded")).toBe("false");
  expect(key("ArrowDown")).toBe("reduce_sum, f32[4], equation, primal");
  expect(key("ArrowUp")).toBe("layer, 28 equations, repeated layers");
});

test("Enter opens and closes a box, and Shift with arrows enters and leaves it", () => {
  const { key, current } = show(modelOf({ primal: layers(4) }));
  key("Home");
  key("ArrowDown");
  key("Enter");
  expect(current()!.getAttribute("aria-expanded")).toBe("true");
  expect(key("ArrowDown", { shiftKey: true })).toBe("layer 1, 7 equations, layer");
  expect(current()!.getAttribute("aria-level")).toBe("3");
  expect(current()!.getAttribute("aria-setsize")).toBe("4");
  expect(key("ArrowDown")).toBe("layer 2, 7 equations, layer");
  expect(key("ArrowUp", { shiftKey: true })).toBe("layer, 28 equations, repeated layers");
  key("Enter");
  expect(current()!.getAttribute("aria-expanded")).toBe("false");
});

test("selecting an equation elsewhere opens the boxes around it", () => {
  const model = modelOf({ primal: layers(4) });
  const { state, current } = show(model);
  const rows = Array.from({ length: model.rows }, (_, i) => i);
  const row = rows.filter((i) => model.primitive(i) === "tanh").at(-1)!;
  state.selectRow(row);
  expect(current()!.textContent).toBe("tanh, f32[4], equation, primal");
  expect(current()!.getAttribute("aria-level")).toBe("4");
});

test("the search counts its matches and goes through them", () => {
  const { state, find } = show(modelOf({ primal: layers(4) }));
  const input = find("graph-search") as HTMLInputElement;
  const enter = (more: KeyboardEventInit = {}) =>
    input.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true, ...more }));
  input.value = "dot_general line:20";
  enter();
  expect(find("graph-hits").textContent).toBe("1 of 4");
  expect(state.model.summary(state.row)).toBe("d0 = dot_general c0 w0");
  enter();
  expect(find("graph-hits").textContent).toBe("2 of 4");
  expect(state.model.summary(state.row)).toBe("d1 = dot_general c1 w1");
  enter({ shiftKey: true });
  enter({ shiftKey: true });
  expect(find("graph-hits").textContent).toBe("4 of 4");
  input.value = "size>a lot";
  enter();
  expect(input.getAttribute("aria-invalid")).toBe("true");
  expect(input.title).toContain("is not an amount");
});

test("focus cycles through both directions, each alone, and off", () => {
  const { key, find } = show(modelOf({ primal: layers(4) }));
  key("Home");
  const said = () => find("graph-focus").getAttribute("aria-label")!.split(";")[0];
  key("f");
  expect(said()).toBe("Focus on ancestors and descendants of the selection");
  key("f");
  expect(said()).toBe("Focus on ancestors");
  key("f");
  expect(said()).toBe("Focus on descendants");
  key("f");
  expect(find("graph-focus").getAttribute("aria-pressed")).toBe("false");
});

test("keys to zoom, open and close work without a drawing", () => {
  const { key, pane } = show(modelOf({ primal: layers(4) }));
  for (const name of ["+", "-", "0", "z", "o", "c", "Home", "z", "o", "c", "End", "ArrowLeft", "ArrowRight"])
    key(name);
  pane.destroy();
});

test("the legend shows the roles present, or the scale", () => {
  const program = layers(2);
  program.equations[1]!.role = "cotangent";
  const { find } = show(modelOf({ primal: program }));
  expect(find("graph-legend").textContent).toBe("·primalCcotangent");
  const select = find("graph-colour") as HTMLSelectElement;
  select.value = "cost";
  select.dispatchEvent(new Event("change"));
  expect(find("graph-legend").textContent).toMatch(/^0.+kFLOP$/);
});

test("two stages are shown side by side", () => {
  const { pane, tree } = show(fixture(), [0, 1]);
  expect(pane.element.dataset["stage"]).toBe("primal+backward");
  expect(tree.querySelectorAll("[role=treeitem]").length).toBeGreaterThan(1);
});

/** The position of a residual's port in a pane that shows a stage of the shared view. */
function portOf(model: Model, stage: number, residual: number): { clientX: number; clientY: number } {
  const tree = treeOf(model, [stage]);
  const open = openAtFirst(tree);
  const scene = sceneOf(tree, (node) => open.has(node));
  const drawing = new Drawing(tree, scene, placeAll(scene.shape));
  const { scale, x, y } = opening({ x: 0, y: 0, width: drawing.width, height: drawing.height }, 600, 400);
  for (const box of scene.shape.kind.keys())
    for (const { row, x: left, y: top } of drawing.rows(box))
      for (const port of row.ports)
        if (port.stubs[0]!.residual === residual)
          return {
            clientX: (left + port.x + port.width / 2) * scale + x,
            clientY: (top + 6) * scale + y,
          };
  throw new Error("it has no port");
}

function clickAt(find: (id: string) => HTMLElement, at: { clientX: number; clientY: number }): void {
  const canvas = find("graph-canvas-left").querySelector<HTMLCanvasElement>(".jv-graph-canvas")!;
  canvas.setPointerCapture = () => {};
  for (const name of ["pointerdown", "pointerup"])
    canvas.dispatchEvent(new PointerEvent(name, { bubbles: true, button: 0, pointerId: 1, ...at }));
}

test("a click on a residual's port goes to its other end, and back", () => {
  const model = fixture();
  const forward = show(model, [0]);
  clickAt(forward.find, portOf(model, 0, 0));
  expect(forward.state.shown).toEqual({ left: [1], right: [] });
  expect(forward.state.selection.residual).toBe(0);
  expect(model.summary(forward.state.row)).toBe("e = mul b d");
  forward.pane.destroy();
  document.body.replaceChildren();

  const backward = show(model, [1]);
  backward.state.show({ left: [1] });
  clickAt(backward.find, portOf(model, 1, 0));
  expect(backward.state.shown.left).toEqual([0]);
  expect(model.summary(backward.state.row)).toBe("b = sin a");
  // The pane that shows the stage then centres on the box.
  const there = show(model, [0]);
  there.state.selectEnd(0, backward.state.row);
  expect(there.current()!.textContent).toContain("sin");
  const { camera, drawing } = there.pane;
  const box = drawing!.scene.boxOf[there.pane.tree.ofRow[backward.state.row]!]!;
  const { x, y, width, height } = drawing!.at;
  const [cx, cy] = camera.world(300, 200);
  expect(cx).toBeCloseTo(x[box]! + width[box]! / 2);
  expect(cy).toBeCloseTo(y[box]! + height[box]! / 2);
});

test("the other end is shown in the pane that has its stage", () => {
  const model = fixture();
  const { state, find } = show(model, [0]);
  state.show({ left: [0], right: [1] });
  clickAt(find, portOf(model, 0, 0));
  expect(state.shown).toEqual({ left: [0], right: [1] });
  expect(model.summary(state.row)).toBe("e = mul b d");
});

test("a residual without another end, such as an argument, is only selected", () => {
  const model = fixture();
  const { state, find } = show(model, [1]);
  clickAt(find, portOf(model, 1, 1));
  expect(state.selection.residual).toBe(1);
  expect(state.shown.left).toEqual([0]);
});

function luminance(colour: string): number {
  const parts = colour.startsWith("#")
    ? [1, 3, 5].map((i) => Number.parseInt(colour.slice(i, i + 2), 16))
    : colour.match(/\d+/g)!.map(Number);
  const [r, g, b] = parts.map((c) =>
    c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4,
  );
  return 0.2126 * r! + 0.7152 * g! + 0.0722 * b!;
}

test("text on every colour of viridis has a contrast of at least WCAG AA", () => {
  for (let share = 0; share <= 1; share += 0.01) {
    const [a, b] = [luminance(viridis(share)), luminance(inkOn(share))];
    expect((Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), String(share)).toBeGreaterThanOrEqual(4.5);
  }
});
