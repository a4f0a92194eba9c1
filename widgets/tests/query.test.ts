import { expect, test } from "vitest";
import { search } from "../src/model/query";
import { bestOf, layers, modelOf } from "./graphs";

const body = {
  inputs: ["c"],
  equations: [
    { text: "d = dot_general c c", scope: "inner", line: 30, flops: 2e6 },
    { text: "e = tanh d", line: 31, role: "tangent" },
  ],
  results: ["e"],
};
const model = modelOf(
  {
    primal: {
      inputs: ["x", "w"],
      equations: [
        { text: "y = dot_general x w", scope: "loss/layer", line: 12, flops: 500 },
        { text: "z = scan[num_consts=0 num_carry=1] y", scope: "loss", line: 13, inside: [body] },
        { text: "tanh2 = add z z", scope: "loss", line: 14 },
      ],
      results: ["tanh2"],
    },
  },
  (name) => (name === "y" ? 2 ** 20 : 4),
);
const find = (expression: string) => search(model, expression, [[0, model.rows]]);

test.each([
  ["dot_general", [0, 2]],
  ["dot", [0, 2]],
  ["DOT", [0, 2]],
  ["tanh", [3]],
  ["tanh*", [3]],
  ["*anh", [3]],
  ["tanh2", [4]],
  ["z", [1]],
  ["dot_general size>1MiB", [0]],
  ["size>=4MiB", [0]],
  ["size>4MiB", []],
  ["size<1k", [1, 2, 3, 4]],
  ["flops>1e6", [2]],
  ["flops>=500 -flops>1M", [0]],
  ["line:12", [0]],
  ["line:13-30", [1, 2, 4]],
  ["scope:layer", [0]],
  ["/scan/dot_general", [2]],
  ["/loss/scan/dot", [2]],
  ["/scan/inner/dot_general", [2]],
  ["/dot_general", [0, 2]],
  ["/inner/scan/dot_general", []],
  ["/s*/tanh", [3]],
  ["role:tangent", [3]],
  ["type:f32[1048576]", [0]],
  ["param:num_carry", [1]],
  ["-scan -dot_general", [3, 4]],
  ['scope:"loss/layer"', [0]],
  ["nothing", []],
  ["", []],
])("%s finds %j", (expression, rows) => {
  expect(find(expression)).toEqual(rows);
});

test.each([
  ["size>much", "much is not an amount; write, for example, size>1MiB"],
  ["line:x", "line:x is not a line"],
])("%s is an error that says what to write", (expression, message) => {
  expect(() => find(expression)).toThrow(message);
});

test("a search over a hundred thousand equations tests each at most a few times", () => {
  const large = modelOf({ primal: layers(15_000) });
  expect(large.rows).toBeGreaterThan(100_000);
  const expression = "dot_general flops>500 scope:layer /layer/dot_general";
  expect(bestOf(() => search(large, expression, [[0, large.rows]]))).toBeLessThan(600);
  expect(search(large, expression, [[0, large.rows]])).toHaveLength(30_000);
}, 60_000);
