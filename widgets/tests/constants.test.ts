import { expect, test } from "vitest";
import { constantsOf } from "../src/graph/layout/constants";
import { treeOf } from "../src/graph/layout/hierarchy";
import { sceneOf } from "../src/graph/layout/scene";
import { CLOSED } from "../src/graph/layout/shape";
import { modelOf, type Program } from "./graphs";

function shown(program: Program) {
  const model = modelOf({ primal: program });
  const tree = treeOf(model, [0]);
  const scene = sceneOf(tree, () => true);
  const boxes = [...scene.shape.kind.keys()].filter((i) => scene.shape.kind[i] === CLOSED);
  const nameOf = (box: number) => tree.name(scene.node[box]!);
  const stubs = (box: number) => (scene.before.get(box) ?? []).map((stub) => stub.text);
  return { model, tree, scene, constants: constantsOf(tree), boxes: boxes.map(nameOf), stubs, box: boxes };
}

test("zeros are stubs at their readers, and located there", () => {
  const { tree, scene, boxes, box, stubs } = shown({
    inputs: ["x"],
    equations: [
      { text: "z = broadcast_in_dim 0.0" },
      { text: "i = iota" },
      { text: "k = convert_element_type i" },
      { text: "a = add x z" },
      { text: "b = mul a k" },
      { text: "c = sub b z" },
    ],
    results: ["c"],
  });
  expect(boxes).toEqual(["add", "mul", "sub"]);
  expect(box.map(stubs)).toEqual([["0.0 f32[4]"], ["iota f32[4]"], ["0.0 f32[4]"]]);
  expect(scene.shape.from).toHaveLength(4);
  expect([0, 1, 2].map((row) => scene.boxOf[tree.ofRow[row]!])).toEqual([box[0], box[1], box[1]]);
});

test("a result of the program, or a value that nothing reads, is a box", () => {
  const { constants, boxes } = shown({
    inputs: ["x"],
    equations: [
      { text: "z = broadcast_in_dim 0.0" },
      { text: "n = iota" },
      { text: "e = empty" },
      { text: "f = broadcast_in_dim e" },
      { text: "a = add x z" },
    ],
    results: ["z", "f", "a"],
  });
  expect(boxes).toEqual(["broadcast_in_dim", "iota", "broadcast_in_dim", "add"]);
  expect([...constants.keys()]).toEqual([2]);
});

test("zeros that a loop carries are a box", () => {
  const { boxes } = shown({
    inputs: ["x"],
    equations: [
      { text: "z = broadcast_in_dim 0.0" },
      {
        text: "y = scan[num_consts=1 num_carry=1] x z",
        inside: [
          {
            inputs: ["a", "c"],
            equations: [
              { text: "o = broadcast_in_dim 1.0" },
              { text: "p = add c a" },
              { text: "q = mul p o" },
            ],
            results: ["q"],
          },
        ],
      },
    ],
    results: ["y"],
  });
  expect(boxes).toEqual(["add", "mul"]);
});

test("a value in a closed box leads to its reader, constant or not", () => {
  const scope = "f";
  const program: Program = {
    inputs: ["x"],
    equations: [
      { text: "z = broadcast_in_dim 0.0", scope },
      { text: "a = sin x", scope },
      { text: "b = cos a", scope },
      { text: "c = add b z", scope: "g" },
    ],
    results: ["c"],
  };
  const tree = treeOf(modelOf({ primal: program }), [0]);
  const { shape, node } = sceneOf(tree, () => false);
  const pairs = Array.from(shape.from, (a, e) => [a, shape.to[e]!].map((i) => tree.name(node[i]!)));
  expect(pairs).toContainEqual(["f", "add"]);
});
