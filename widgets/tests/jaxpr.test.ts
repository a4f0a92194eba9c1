import { expect, test } from "vitest";
import fixture from "../../tests/fixtures/printed.json";
import { equationsText, jaxprText } from "../src/code/jaxpr";
import { Model } from "../src/model/model";
import { fromJson, type View } from "../src/wire/schema";
import { model } from "./fixture";

type Json = Omit<View, "columns"> & { columns: Record<string, number[]> };
type Printed = { view: Json; text: Record<string, string> };

const { jax, ...programs } = fixture as unknown as { jax: string } & Record<string, Printed>;

/** The words of each program that is printed by itself, each name written as the number of its first appearance: names may
 * differ, and nothing else. */
const words = (text: string): string[][] => text.split(/^(?=let \w+ = \{|\{ lambda)/m).map(wordsOf);

function wordsOf(text: string): string[] {
  const bound = new Set(Array.from(text.matchAll(/(\w+):/g), ([, name]) => name));
  const numbers = new Map<string, number>();
  const all: string[] = text.match(/\w+=|\w+|[^\s\w]/g) ?? [];
  return all.map((word) => {
    if (!bound.has(word) || word === "_") return word;
    // What nothing reads has a name inside of a program that JAX nests, and none here.
    if (all.indexOf(word) === all.lastIndexOf(word)) return "_";
    if (!numbers.has(word)) numbers.set(word, numbers.size);
    return `%${numbers.get(word)}`;
  });
}

for (const [name, { view, text }] of Object.entries(programs))
  test(`every stage of ${name} reads as jax ${jax} prints it`, () => {
    const m = new Model(fromJson(view));
    view.stages.forEach((stage, i) => {
      expect(words(jaxprText(m, i))).toEqual(words(text[stage.key]!));
    });
  });

test("where the names are the same, the lines are too", () => {
  for (const { view, text } of [programs["waves"]!, programs["loop"]!]) {
    const m = new Model(fromJson(view));
    expect(jaxprText(m, 0)).toBe(text["primal"]);
  }
});

test("equations are printed with the programs that they hold", () => {
  expect(equationsText(model(), [0, 1]).split("\n")).toEqual([
    "b:f32[3] = sin a",
    "c:f32[3] = jit[",
    "  name=g",
    "  jaxpr={ lambda ; a:f32[3]. let b:f32[3] = mul a 2.0:f32[] in (b,) }",
    "] b",
  ]);
});
