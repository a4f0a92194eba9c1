import { expect, test } from "vitest";
import { atOnce } from "../src/base/slices";
import { Model } from "../src/model/model";
import { type Play, Player, playing, type Transform, transformsOf } from "../src/model/player";
import { rulesOf } from "../src/model/rule";
import { model } from "./fixture";
import { cost } from "./graphs";
import { CHECKPOINT, modelOf, SCAN, SIN_COS } from "./programs";

function play(m: Model, key: Transform["key"]): Play {
  return atOnce(playing(m, transformsOf(m).find((t) => t.key === key)!));
}

/** For each step its equations and those it emits, as text. */
function told(p: Play): string[] {
  return Array.from({ length: p.length }, (_, step) => {
    const text = (rows: number[]) => rows.map((row) => p.model.summary(row)).join("; ");
    return `${text(p.equations(step))} -> ${text(p.rows(step))}`;
  });
}

test("only transforms with all their stages are available", () => {
  expect(transformsOf(SIN_COS()).map((t) => t.label)).toEqual([
    "f → jvp",
    "f → forward | linear",
    "linear → backward",
  ]);
  expect(transformsOf(SCAN()).map((t) => t.key)).toEqual(["linearize", "transpose"]);
  expect(transformsOf(model())).toEqual([]);
});

test("a stage without equations has no steps", () => {
  const whole = SIN_COS();
  const stages = whole.view.stages.map((s) =>
    s.key === "linear" ? { ...s, equations: [0, 0] as [number, number] } : s,
  );
  const empty = new Model({ ...whole.view, stages });
  expect(transformsOf(empty).map((t) => t.key)).toEqual(["jvp", "linearize"]);
});

test("a JVP visits the equations in order, and each step emits its own", () => {
  expect(told(play(SIN_COS(), "jvp"))).toEqual([
    "c = sin a -> d = sin a; e = cos a; f = mul c e",
    "d = dot a b -> g = dot a b; h = dot c b",
    "e = cos d -> i = cos g; j = sin g; k = mul h j; l = neg k",
    "f = mul c e -> m = mul d i; n = mul f i; o = mul d l; p = add_any n o",
    "g = sum f -> q = sum m; r = sum p",
  ]);
});

test("linearizing emits into both programs", () => {
  const m = SIN_COS();
  const p = play(m, "linearize");
  expect(p.rows(0).map((row) => m.name(row))).toEqual(["forward:0", "forward:1", "linear:0"]);
  expect(p.stepOf[m.rowNamed("linear:3")]).toBe(2);
});

test("a transposition goes backwards", () => {
  expect(told(play(SIN_COS(), "transpose"))).toEqual([
    "n = sum m -> e = broadcast a",
    "m = add_any k l -> ",
    "l = mul c j -> h = mul c e",
    "k = mul e f -> i = mul e f",
    "j = neg i -> j = neg h",
    "i = mul h g -> k = mul j g",
    "h = dot a b -> l = dot k b",
    "e = mul a d -> m = mul i d; n = add_any l m",
  ]);
});

test("nested equations follow theirs, each a step of its own; equations without origin go where they occur", () => {
  const m = SCAN();
  const p = play(m, "transpose");
  expect(told(p)).toEqual([
    "r = add p q -> ",
    "q = sum c -> c = broadcast a",
    "p = sum d -> d = broadcast a",
    "c d = scan b a f g -> z = broadcast 0.0; e = scan b c d f g z",
    "o = sum n -> m = broadcast j; n = add_any i m",
    "n = mul m j -> o = mul n l",
    "m = add k l -> ",
    "l = mul k i -> p = mul o k; q = add_any o p",
    "k = dot h e -> r = dot q h",
  ]);
  const zero = m.rowNamed("backward:2");
  expect([p.isLoose[zero], p.isLoose[zero + 1]]).toEqual([1, 0]);
  expect(play(m, "linearize").sources).toEqual(Int32Array.from([0, 1, 2, 3, 4, 5, 6, 7, 8]));
});

test("equations from a program that is not shown go with those of the same root, as one step", () => {
  expect(told(play(CHECKPOINT(), "transpose"))).toEqual([
    "c = remat2 a b -> c = remat2 a b",
    "f = cos d -> f = cos d",
    "h = mul g d; i = mul h d -> g = mul e d; h = mul g d",
    "g = mul e f -> i = mul h f",
  ]);
});

test.each([SIN_COS, SCAN, CHECKPOINT])("every equation of the targets is in one step: %o", (make) => {
  const m = make();
  for (const transform of transformsOf(m)) {
    const p = atOnce(playing(m, transform));
    const rows = Array.from({ length: p.length }, (_, step) => p.rows(step)).flat();
    const all = transform.targets.flatMap((t) => {
      const [from, to] = m.view.stages[t]!.equations;
      return Array.from({ length: to - from }, (_, i) => from + i);
    });
    expect(rows.sort((a, b) => a - b)).toEqual(all);
    for (const step of p.sources.keys()) for (const row of p.rows(step)) expect(p.stepOf[row]).toBe(step);
  }
});

test("a program called twice has its steps twice, separated by the call", () => {
  const f = "{ jaxpr x:v\n y:v = sin x\n } y\n";
  const g = (k: number) => `{ jaxpr x:v\n y:v = cos x <- ${k} tangent\n } y\n`;
  const m = modelOf([
    ["primal", `in a:v\n b:v = jit a\n ${f} c:v = jit b\n ${f} out c`],
    ["jvp", `in a:v\n b:v = jit a <- 0 primal\n ${g(1)} c:v = jit b <- 2 primal\n ${g(1)} out c`],
  ]);
  m.view.columns["equation_twin"]!.set([-1, -1, -1, 1, -1, -1, -1, 5]);
  // Twins are read when a model is created.
  const again = new Model(m.view);
  expect(told(play(again, "jvp"))).toEqual([
    "b = jit a -> b = jit a",
    "y = sin x -> y = cos x",
    "c = jit b -> c = jit b",
    "y = sin x -> y = cos x",
  ]);
});

test("programs from which nothing derives have no steps, and lead to the enclosing equation", () => {
  const m = modelOf([
    ["primal", "in a:v\n b:v = custom a\n { jaxpr x:v\n y:v = exp x\n } y\n out b"],
    [
      "jvp",
      "in a:v c:v\n b:v = custom a <- 0 primal\n { jaxpr x:v\n y:v = exp x\n } y\n d:v = mul b c <- 0 tangent\n out b d",
    ],
  ]);
  const p = play(m, "jvp");
  expect(told(p)).toEqual(["b = custom a -> b = custom a; y = exp x; d = mul b c"]);
  expect(p.outerRows(0).map((row) => m.summary(row))).toEqual(["b = custom a", "d = mul b c"]);
  expect(p.stepOf[1]).toBe(0);
});

test("steps that only copy can be skipped", () => {
  const p = play(SCAN(), "linearize");
  expect(Array.from(p.adds)).toEqual([0, 1, 1, 0, 1, 1, 1, 1, 1]);
  expect([p.next(-1, 1, true), p.next(2, 1, true), p.next(4, -1, true), p.next(8, 1, true)]).toEqual([
    1, 4, 2, -1,
  ]);
  expect([p.next(2, 1, false), p.next(0, -1, false)]).toEqual([3, -1]);
});

test("the listings mark the equation, what it emits, and what is not emitted yet", () => {
  const m = SIN_COS();
  const player = new Player(rulesOf(m, play(m, "jvp").transform), 1);
  const how = (name: string) => player.standing(m.rowNamed(name));
  expect([how("primal:0"), how("primal:1"), how("jvp:2"), how("jvp:3"), how("jvp:4"), how("jvp:5")]).toEqual([
    "",
    "is-played",
    "",
    "is-written",
    "is-written",
    "is-later",
  ]);
  expect(player.at(2).standing(m.rowNamed("jvp:5"))).toBe("is-written");
});

test("a hundred thousand equations become steps in a moment", () => {
  const n = 50_000;
  const ofPrimal = Array.from({ length: n }, () => "b:v = sin a").join("\n");
  const lines = (text: string) => `in a:v\n${text}\nout a`;
  const big = modelOf([
    ["primal", lines(ofPrimal)],
    ["jvp", lines(Array.from({ length: n }, (_, i) => `b:v = sin a <- ${i} primal`).join("\n"))],
  ]);
  let steps = 0;
  expect(cost(() => (steps = play(big, "jvp").length))).toBeLessThan(4000);
  expect(steps).toBe(n);
});
