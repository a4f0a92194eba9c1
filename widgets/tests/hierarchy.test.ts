import { expect, test } from "vitest";
import {
  COPY,
  differences,
  EQUATION,
  PROGRAM,
  REPEAT,
  SCOPE,
  type Tree,
  treeOf,
} from "../src/graph/layout/hierarchy";
import { findRepeats } from "../src/graph/layout/repeats";
import { bestOf, type Equation, layers, modelOf } from "./graphs";

function nodes(tree: Tree, kind: number): number[] {
  return tree.kind.flatMap((k, node) => (k === kind ? [node] : []));
}

/** Every row has exactly one EQUATION, and parents and children agree. */
function expectNothingLost(tree: Tree): void {
  const rows: number[] = [];
  const visit = (node: number) => {
    if (tree.kind[node] === EQUATION) {
      rows.push(tree.row[node]!);
      expect(tree.ofRow[tree.row[node]!]).toBe(node);
    }
    for (const child of tree.children[node]!) {
      expect(tree.parent[child]).toBe(node);
      visit(child);
    }
  };
  for (const root of tree.roots) visit(root);
  expect(rows).toEqual(Array.from({ length: tree.model.rows }, (_, i) => i));
}

test("repeated layers are folded into one box with a count", () => {
  const tree = treeOf(modelOf({ primal: layers(12) }), [0]);
  const [repeat, ...more] = nodes(tree, REPEAT);
  expect(more).toEqual([]);
  expect(tree.title[repeat!]).toBe("layer");
  expect(tree.children[repeat!]).toHaveLength(12);
  expect(tree.children[repeat!]!.map((c) => tree.count[c])).toEqual(Array(12).fill(7));
  // Copies start where the fewest values cross: at the norm, not in the middle of a layer.
  const [first] = tree.children[repeat!]!;
  expect(tree.kind[first!]).toBe(COPY);
  expect(tree.rows(first!).map((row) => tree.model.primitive(row))[0]).toBe("reduce_sum");
  expect(nodes(tree, SCOPE).map((n) => tree.title[n])).toEqual(Array(12).fill("norm"));
  expectNothingLost(tree);
});

test("numbered modules are folded, and named by the first and last", () => {
  const tree = treeOf(modelOf({ primal: layers(6, (i) => `loss/Net/blocks_${i}`) }), [0]);
  const [repeat] = nodes(tree, REPEAT);
  expect(tree.title[repeat!]).toBe("blocks_0 … blocks_5");
  expect(tree.children[repeat!]!.map((c) => tree.title[c])[3]).toBe("blocks_3");
  expectNothingLost(tree);
});

test("the differences of folded layers are listed", () => {
  const model = modelOf({ primal: layers(3) }, (name) => (name === "d1" ? 8 : 4));
  const tree = treeOf(model, [0]);
  const lines = differences(tree, nodes(tree, REPEAT)[0]!);
  expect(lines).toEqual(["types: f32[4], f32[8]"]);
});

test("layers without scopes are found by their equations alone", () => {
  const plain = layers(5);
  for (const equation of plain.equations) delete equation.scope;
  const tree = treeOf(modelOf({ primal: plain }), [0]);
  const [repeat] = nodes(tree, REPEAT);
  expect(tree.children[repeat!]).toHaveLength(5);
  expectNothingLost(tree);
});

test("layers without scopes are named by the expression that contains all others, or by their lines", () => {
  const title = (equations: Equation[]) => {
    const loop = Array.from({ length: 5 }, () => equations).flat();
    const tree = treeOf(modelOf({ primal: { inputs: ["a"], equations: loop, results: ["a"] } }), [0]);
    return nodes(tree, REPEAT).map((node) => tree.title[node]);
  };
  // Line 2 of the fixture is `    return g(jnp.sin(x))`.
  const of = (text: string, line: number, span?: [number, number]) => ({ text, line, ...(span && { span }) });
  const cos = of("c = cos b", 2, [13, 23]);
  expect(title([of("b = sin a", 2, [21, 22]), cos, of("a = mul c c", 2, [11, 24])])).toEqual([
    "g(jnp.sin(x))",
  ]);
  expect(title([of("b = sin a", 2, [11, 13]), cos, of("a = mul c c", 2, [21, 22])])).toEqual(["line 2"]);
  expect(title([of("b = sin a", 7), cos, of("a = mul c c", 9)])).toEqual(["lines 2–9"]);
});

test("equations contain their programs, with separate branches", () => {
  const branch = (primitive: string) => ({
    label: "branches",
    inputs: ["a"],
    equations: [{ text: `b = ${primitive} a` }],
    results: ["b"],
  });
  const body = { inputs: ["c"], equations: [{ text: "d = mul c c" }, { text: "e = sin d" }], results: ["e"] };
  const model = modelOf({
    primal: {
      inputs: ["i", "x"],
      equations: [
        { text: "y = cond i x", inside: [branch("sin"), branch("cos")] },
        { text: "z = scan[num_consts=0 num_carry=1] y", inside: [body] },
      ],
      results: ["z"],
    },
  });
  const tree = treeOf(model, [0]);
  expect(nodes(tree, PROGRAM)).toHaveLength(2);
  expect(tree.children[tree.ofRow[0]!]!.map((n) => tree.kind[n])).toEqual([PROGRAM, PROGRAM]);
  expect(tree.children[tree.ofRow[3]!]!.map((n) => tree.row[n])).toEqual([4, 5]);
  expect(tree.count[tree.ofRow[3]!]).toBe(3);
  expectNothingLost(tree);
});

test("an equation without a path goes with its neighbours", () => {
  const scopes = ["f", "f/g", "", "f/g", "f/g", "", "f"];
  const equations = scopes.map((scope, i) => ({ text: `a${i + 1} = sin a${i}`, scope }));
  const tree = treeOf(modelOf({ primal: { inputs: ["a0"], equations, results: ["a7"] } }), [0]);
  const [g] = nodes(tree, SCOPE);
  expect(tree.rows(g!)).toEqual([1, 2, 3, 4]);
});

test("after the last equation with a path, equations without one are at the top level", () => {
  const scopes = ["Net/Dense", "Net/Dense", "Net/Dense", "", ""];
  const equations = scopes.map((scope, i) => ({ text: `a${i + 1} = sin a${i}`, scope }));
  const tree = treeOf(modelOf({ primal: { inputs: ["a0"], equations, results: ["a5"] } }), [0]);
  expect(tree.parent[tree.ofRow[4]!]).toBe(tree.roots[0]);
  expectNothingLost(tree);
});

test("the repeats that cover the most are chosen, with the shortest period", () => {
  const abc = Array.from("xyabcabcabcabcz", (c) => c.charCodeAt(0));
  expect(
    findRepeats(
      abc,
      abc.map(() => 2),
      () => 0,
    ),
  ).toEqual([{ start: 2, period: 3, count: 4 }]);
  expect(findRepeats([1, 2, 3, 4], [9, 9, 9, 9], () => 0)).toEqual([]);
  // Starting a copy at `b` costs nothing.
  const cut = (i: number) => ((i - 3) % 3 === 0 ? 0 : 1);
  const more = Array.from("abcabcabca", (c) => c.charCodeAt(0));
  expect(
    findRepeats(
      more,
      more.map(() => 4),
      (i) => cut(i + 2),
    ),
  ).toEqual([{ start: 1, period: 3, count: 3 }]);
});

test("a hundred thousand equations are folded in a few seconds at most", () => {
  const model = modelOf({ primal: layers(15_000) });
  expect(model.rows).toBeGreaterThan(100_000);
  expect(bestOf(() => treeOf(model, [0]))).toBeLessThan(3000);
  const tree = treeOf(model, [0]);
  expect(tree.children[nodes(tree, REPEAT)[0]!]).toHaveLength(15_000);
}, 60_000);
