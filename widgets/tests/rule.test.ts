import { expect, test } from "vitest";
import printed from "../../tests/fixtures/printed.json";
import { Model } from "../src/model/model";
import { type Transform, transformsOf } from "../src/model/player";
import { type Name, nameClass, type Rules, rulesOf } from "../src/model/rule";
import { fromJson, type View } from "../src/wire/schema";

type Json = Omit<View, "columns"> & { columns: Record<string, number[]> };
const read = (name: string) => () =>
  new Model(fromJson((printed as unknown as Record<string, { view: Json }>)[name]!.view));
const [SIN_COS, SCAN, CHECKPOINT] = ["sin_cos", "carries", "checkpointed"].map(read) as [
  () => Model,
  () => Model,
  () => Model,
];

function rules(m: Model, key: Transform["key"]): Rules {
  return rulesOf(m, transformsOf(m).find((t) => t.key === key)!);
}

/** The parts of a step's rule, each variable as `name kind of colour`. */
function parts(m: Model, key: Transform["key"], step: number) {
  const name = (n: Name) =>
    [m.atomText(n.variable), n.kind, n.of < 0 ? "" : m.atomText(n.of), n.colour < 0 ? "" : n.colour]
      .join(" ")
      .trim();
  return rules(m, key)
    .at(step)
    .parts.map(({ stage, takes, gives }) => [m.view.stages[stage]!.key, takes.map(name), gives.map(name)]);
}

test("a JVP rule takes values and tangents of the operands, and returns those of the result", () => {
  const m = SIN_COS();
  expect(parts(m, "jvp", 0)).toEqual([
    ["jvp", ["a value a 0", "c tangent a 0"], ["d value c 1", "f tangent c 1"]],
  ]);
  expect(parts(m, "jvp", 3)).toEqual([
    [
      "jvp",
      ["d value c 0", "i value e 1", "f tangent c 0", "l tangent e 1"],
      ["m value f 2", "p tangent f 2"],
    ],
  ]);
});

test("linearize: a residual has one colour in both programs, which is its value's", () => {
  const m = SIN_COS();
  expect(parts(m, "linearize", 0)).toEqual([
    ["forward", ["a value a 0"], ["c value c 1", "d residual  2"]],
    ["linear", ["a tangent a 0", "d residual  2"], ["e tangent c 1"]],
  ]);
  expect(parts(m, "linearize", 3)).toEqual([
    ["forward", ["c value c 0", "f value e 1"], ["h value f 2"]],
    ["linear", ["e tangent c 0", "f residual e 1", "c residual c 0", "j tangent e 1"], ["m tangent f 2"]],
  ]);
});

test("transpose: residuals, the cotangent of the result, the sum so far and the new sum", () => {
  const m = SIN_COS();
  expect(parts(m, "transpose", 7)).toEqual([
    ["backward", ["i cotangent e 2", "d residual d 1", "l so far a 0"], ["n cotangent a 0"]],
  ]);
  // `add_any` passes the cotangent of `m` on to `l`.
  expect(parts(m, "transpose", 2)).toEqual([
    ["backward", ["c residual c 0", "e cotangent l 2"], ["h cotangent j 1"]],
  ]);
});

test("residuals are followed into nested programs", () => {
  const m = SCAN();
  expect(parts(m, "linearize", 4)).toEqual([
    ["forward", ["m value j 0"], ["n value k 1", "o residual  2"]],
    ["linear", ["q tangent j 0", "m residual k 1", "n residual  2"], ["t tangent k 1"]],
  ]);
  expect(parts(m, "transpose", 5)).toEqual([
    ["backward", ["r cotangent t 2", "p residual n 1"], ["s cotangent s 0"]],
  ]);
});

test("variables from outside a rule are operands or have another name, and are never local to it", () => {
  for (const m of [SIN_COS(), SCAN(), CHECKPOINT()])
    for (const transform of transformsOf(m)) {
      const all = rulesOf(m, transform);
      for (const step of all.play.sources.keys()) {
        const own = all.play.equations(step).flatMap((row) => [...m.inputs(row), ...m.outputs(row)]);
        for (const { takes, rows } of all.at(step).parts) {
          const made = rows.flatMap((row) => m.outputs(row));
          for (const name of takes) {
            expect(made).not.toContain(name.variable);
            if (name.colour >= 0 && name.of >= 0) expect(own).toContain(name.of);
          }
        }
      }
    }
});

test("called, copied and recomputed values are named by the original equation", () => {
  const m = CHECKPOINT();
  expect(parts(m, "linearize", 2)).toEqual([
    ["forward", ["b value d 0"], ["c value e 1"]],
    ["linear", ["f value d 0", "h tangent d 0"], ["i value e 1", "m tangent e 1"]],
  ]);
  expect(parts(m, "transpose", 5)).toEqual([
    ["backward", ["e cotangent m 5", "i value l 4", "h value i 1"], ["j cotangent k 3", "l cotangent h 0"]],
  ]);
});

test("saved values", () => {
  const m = SCAN();
  const r = rules(m, "linearize");
  const made = (name: string) => m.outputs(m.rowNamed(name))[0]!;
  const [value, residual, sum] = ["tanh", "sub", "add"].map((primitive) => {
    const row = Array.from({ length: m.rows }, (_, i) => i).find(
      (i) => m.name(i).startsWith("forward") && m.primitive(i) === primitive,
    )!;
    return made(m.name(row));
  });
  expect([value, residual, sum].map((v) => r.isSaved(v!))).toEqual([true, true, false]);
});

test("sentences state only what is certain", () => {
  const sentence = (m: Model, key: Transform["key"], step: number) => rules(m, key).at(step).sentence;
  expect(sentence(SIN_COS(), "jvp", 0)).toBe("sin: 1 equation for the value, 2 for the tangent.");
  expect(sentence(SIN_COS(), "linearize", 2)).toBe(
    "cos: 1 equation for the value, 1 for residuals, 2 for the tangent.",
  );
  expect(sentence(SIN_COS(), "transpose", 1)).toBe(
    "add_any: no equation; the cotangent `e` goes to `k` and to `l` as it is.",
  );
  expect(sentence(SIN_COS(), "transpose", 7)).toBe(
    "mul: 1 equation for the cotangent of `a`, 1 to add it to what came before.",
  );
  expect(sentence(SCAN(), "linearize", 0)).toBe(
    "broadcast_in_dim: no tangent reaches it, so it is copied as it is.",
  );
  expect(sentence(SCAN(), "linearize", 3)).toBe(
    "add: it is copied as it is; `q` is the tangent of its result too.",
  );
  expect(sentence(SCAN(), "transpose", 3)).toBe("scan: 1 equation for the cotangent of `b`, 1 for zeros.");
  expect(sentence(CHECKPOINT(), "transpose", 1)).toBe("sin: 1 equation to recompute what was not saved.");
});

test("titles are the names of the rules", () => {
  expect(rules(SIN_COS(), "transpose").at(7).title).toBe("transpose rule of mul");
  expect(rules(SIN_COS(), "transpose").at(1).title).toBe("");
});

test("classes: the colour shows which value it belongs to, the underline its kind, and colours repeat", () => {
  const name: Name = { variable: 0, kind: "so far", of: 1, colour: 8 };
  expect(nameClass(name)).toBe("jv-id jv-id-1 is-so-far");
  expect(nameClass({ ...name, colour: -1, kind: "local" })).toBe("jv-id jv-id-none is-local");
  expect(nameClass(undefined)).toBe("");
});
