import { expect, test } from "vitest";
import fixture from "../../tests/fixtures/printed.json";
import { equationsText, jaxprText } from "../src/code/jaxpr";
import { Model } from "../src/model/model";
import { fromJson, type View } from "../src/wire/schema";
import { model } from "./fixture";

type Json = Omit<View, "columns"> & { columns: Record<string, number[]> };
type Printed = { view: Json; text: Record<string, string> };

const { jax, ...programs } = fixture as unknown as { jax: string } & Record<string, Printed>;

/**
 * The words of each program that is printed separately, with names replaced by the order of their first appearance: names may differ, and
 * nothing else.
 */
const words = (text: string): string[][] => text.split(/^(?=let \w+ = \{|\{ lambda)/m).map(wordsOf);

function wordsOf(text: string): string[] {
  const bound = new Set(Array.from(text.matchAll(/(\w+):/g), ([, name]) => name));
  const numbers = new Map<string, number>();
  const all: string[] = text.match(/\w+=|\w+|[^\s\w]/g) ?? [];
  return all.map((word) => {
    if (!bound.has(word) || word === "_") return word;
    // A variable that nothing reads has a name inside JAX's nested programs, but not here.
    if (all.indexOf(word) === all.lastIndexOf(word)) return "_";
    if (!numbers.has(word)) numbers.set(word, numbers.size);
    return `%${numbers.get(word)}`;
  });
}

for (const [name, { view, text }] of Object.entries(programs))
  test(`every stage of ${name} is printed as by jax ${jax}`, () => {
    const m = new Model(fromJson(view));
    view.stages.forEach((stage, i) => {
      expect(words(jaxprText(m, i))).toEqual(words(text[stage.key]!));
    });
  });

test("with equal names, the lines are equal too", () => {
  for (const { view, text } of [programs["waves"]!, programs["loop"]!]) {
    const m = new Model(fromJson(view));
    expect(jaxprText(m, 0)).toBe(text["primal"]);
  }
});

test("equations are printed with their nested programs", () => {
  expect(equationsText(model(), [0, 1]).split("\n")).toEqual([
    "b:f32[3] = sin a",
    "c:f32[3] = jit[",
    "  name=g",
    "  jaxpr={ lambda ; a:f32[3]. let b:f32[3] = mul a 2.0:f32[] in (b,) }",
    "] b",
  ]);
});
