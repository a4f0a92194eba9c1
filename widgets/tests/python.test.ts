// @vitest-environment jsdom
import { expect, test } from "vitest";
import { coloured } from "../src/code/python";

/** The coloured parts of a line, with their classes. */
const found = (text: string) =>
  coloured(text).flatMap((part) => (part instanceof HTMLElement ? [[part.className, part.textContent]] : []));

test("words, numbers, strings and comments are coloured", () => {
  expect(found('return x[2] if y else "a # b"  # c')).toEqual([
    ["jv-keyword", "return"],
    ["jv-literal", "2"],
    ["jv-keyword", "if"],
    ["jv-keyword", "else"],
    ["jv-string", '"a # b"'],
    ["jv-comment", "# c"],
  ]);
});

test("a decorator is coloured, and a matrix product is not", () => {
  expect(found("  @jax.jit")).toEqual([["jv-literal", "@jax.jit"]]);
  expect(found("x = jnp.tanh(x@w + b)")).toEqual([]);
  // Nor in a separately marked range; a string that is cut stays a string.
  const parts = (text: string, from: number, to: number) =>
    coloured(text, from, to).map((part) => (part instanceof HTMLElement ? [part.textContent] : part));
  expect(parts("x = x@w", 5, 7)).toEqual(["@w"]);
  expect(parts('p["out"] @ h', 3, 9)).toEqual(["", ['out"'], "] "]);
});
