// @vitest-environment jsdom
import { afterEach, beforeAll, beforeEach, expect, test, vi } from "vitest";
import { SourcePane } from "../src/code/source";
import { Colours } from "../src/graph/colours";
import { Drawing } from "../src/graph/draw/drawing";
import { NO_MARKS, paint } from "../src/graph/draw/painter";
import type { Palette } from "../src/graph/draw/palette";
import { treeOf } from "../src/graph/layout/hierarchy";
import { placeAll } from "../src/graph/layout/place";
import { sceneOf } from "../src/graph/layout/scene";
import { GraphPane } from "../src/graph/pane";
import type { Model } from "../src/model/model";
import { referencesOf } from "../src/model/references";
import { State } from "../src/state/state";
import { json } from "./fixture";
import { modelOf } from "./graphs";
import { followed } from "./host";
import { layOut } from "./layout";

/** Two references: one is written in a loop, where its name is another, and read after it; the other is only made. */
function written(): Model {
  const line = 1;
  const made = modelOf({
    primal: {
      inputs: ["x"],
      equations: [
        { text: "ref0 = new_ref x", line },
        { text: "ref1 = new_ref x", line },
        {
          text: "y = scan[num_consts=1 num_carry=1] ref0 x",
          line: line + 1,
          inside: [
            {
              inputs: ["ref", "h"],
              handed: ["as it is", "carry"],
              equations: [
                { text: "z = tanh h", line: line + 2 },
                { text: "old = swap ref z", line: line + 2 },
              ],
              results: ["z"],
            },
          ],
        },
        { text: "sum = get ref0", line },
        { text: "all = add sum y" },
      ],
      results: ["all"],
    },
  });
  const [file] = json.files;
  Object.assign(made.view, { files: [{ ...file, excerpts: [{ first: 1, lines: ["a", "b", "c"] }] }] });
  const [outer, inner] = ["ref0", "ref"].map((name) => variable(made, name));
  made.column("variable_value")[inner!] = outer!;
  return made;
}

const variable = (model: Model, name: string) =>
  Array.from(model.column("variable_name"), (_, v) => model.atomText(v)).indexOf(name);
const rowsOf = (model: Model, primitive: string) =>
  Array.from({ length: model.rows }, (_, row) => row).filter((row) => model.primitive(row) === primitive);

beforeAll(() => {
  layOut(600, 400);
  HTMLCanvasElement.prototype.getContext = (() => null) as never;
});
beforeEach(() => document.body.replaceChildren());

const errors = vi.spyOn(console, "error");
afterEach(() => expect(errors).not.toHaveBeenCalled());

test("a reference is one in a loop too, and is named where it was made", () => {
  const model = written();
  const references = referencesOf(model);
  const [made, other] = ["ref0", "ref1"].map((name) => variable(model, name));
  expect(references.any).toBe(true);
  expect(rowsOf(model, "swap").map((row) => references.among([row]))).toEqual([[made]]);
  expect(references.among(rowsOf(model, "new_ref"))).toEqual([made, other]);
  expect(references.among([...rowsOf(model, "tanh"), ...rowsOf(model, "add")])).toEqual([]);
  expect(references.name(variable(model, "ref"))).toBe("ref0");
});

test("a program without references has none", () => {
  const references = referencesOf(
    modelOf({ primal: { inputs: ["x"], equations: [{ text: "y = sin x", line: 1 }], results: ["y"] } }),
  );
  expect([references.any, references.lines.size, references.among([0])]).toEqual([false, 0, []]);
});

test("source lines name the references that they make, read or write, in the hue of the code", () => {
  const model = written();
  const state = new State(model);
  const pane = followed(new SourcePane(state));
  document.body.append(pane.element);
  const marks = () =>
    [...pane.element.querySelectorAll<HTMLElement>("[data-testid=references] > *")].map((mark) => [
      mark.closest<HTMLElement>(".jv-src")!.dataset["line"],
      mark.textContent,
      /jv-hue-\d/.exec(mark.className)?.[0],
    ]);
  const [one, other] = ["ref0", "ref1"].map((name) => `jv-hue-${model.hue(variable(model, name))}`);
  // The line of the scan only hands one to its program.
  const named = [
    ["1", "▬ ref0", one],
    ["1", "▬ ref1", other],
    ["3", "▬ ref0", one],
  ];
  expect(marks()).toEqual(named);
  state.toggleColours();
  expect(marks()).toEqual([]);
  state.toggleColours();
  expect(marks()).toEqual(named);
});

function scene(isOpen: boolean) {
  const model = written();
  const tree = treeOf(model, [0]);
  const shown = sceneOf(tree, () => isOpen);
  const colours = new Colours(tree, () => {});
  colours.show(shown);
  return { model, tree, shown, drawing: new Drawing(tree, shown, placeAll(shown.shape)), colours };
}

test("boxes and edges of the graph have the hues of their references, closed boxes those of what is inside", () => {
  const { model, tree, shown, colours } = scene(false);
  const hue = (name: string) => model.hue(variable(model, name));
  const ofRow = (row: number) => colours.hues(tree.ofRow[row]!);
  expect(ofRow(rowsOf(model, "scan")[0]!)).toEqual([hue("ref0")]);
  expect(rowsOf(model, "new_ref").map(ofRow)).toEqual([[hue("ref0")], [hue("ref1")]]);
  expect(ofRow(rowsOf(model, "add")[0]!)).toEqual([]);
  const edges = shown.values.map((values, e) => [
    values.map((v) => model.atomText(v)).join(" "),
    colours.hueOfEdge(e),
  ]);
  expect(new Set(edges.filter(([, of]) => of !== -1).map(String))).toEqual(new Set([`ref0,${hue("ref0")}`]));
  expect(edges.filter(([, of]) => of === -1).length).toBeGreaterThan(1);
  colours.set("bytes");
  expect(ofRow(rowsOf(model, "scan")[0]!)).toEqual([]);
});

test("the graph paints these hues, but not where colours are off", () => {
  const { model, drawing, colours } = scene(true);
  const palette = new Proxy(
    { hues: Array.from({ length: 8 }, (_, i) => `hue ${i}`), roles: {} },
    {
      get: (known, name) => known[name as "hues"] ?? String(name),
    },
  ) as unknown as Palette;
  vi.stubGlobal(
    "Path2D",
    class {
      moveTo() {}
      lineTo() {}
      bezierCurveTo() {}
    },
  );
  const painted = () => {
    const used = { fill: new Set<string>(), stroke: new Set<string>() };
    const ctx = new Proxy({} as Record<string, string>, {
      get: (known, name) =>
        known[String(name)] ??
        (() => {
          if (name === "fillRect") used.fill.add(known["fillStyle"]!);
          if (name === "stroke") used.stroke.add(known["strokeStyle"]!);
        }),
      set: (known, name, value) => {
        known[String(name)] = value;
        return true;
      },
    }) as unknown as CanvasRenderingContext2D;
    paint(drawing, ctx, { scale: 1, x: 0, y: 0 }, [4000, 4000], palette, colours, NO_MARKS);
    const hues = (of: Set<string>) => [...of].filter((each) => each.startsWith("hue ")).sort();
    return [hues(used.fill), hues(used.stroke)];
  };
  const [both, one] = [["ref0", "ref1"], ["ref0"]].map((names) =>
    names.map((name) => `hue ${model.hue(variable(model, name))}`).sort(),
  );
  expect(painted()).toEqual([both, one]);
  colours.showHues(false);
  expect(painted()).toEqual([[], []]);
});

test("the legend of the graph names the references while colours are on", () => {
  const model = written();
  const state = new State(model);
  const pane = followed(new GraphPane(state, treeOf(model, [0]), "left", document.body));
  document.body.append(pane.element);
  const named = () =>
    [...pane.element.querySelectorAll("[data-testid=graph-reference]")].map((each) => each.textContent);
  expect(named()).toEqual(["▬ ref0", "▬ ref1"]);
  state.toggleColours();
  expect(named()).toEqual([]);
  pane.destroy?.();
});
