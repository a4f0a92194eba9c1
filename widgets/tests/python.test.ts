// @vitest-environment jsdom
import { expect, test } from "vitest";
import { coloured } from "../src/code/python";

/** What is coloured of a line, with the class of each. */
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

test("a decorator is coloured, and a product of matrices is not", () => {
  expect(found("  @jax.jit")).toEqual([["jv-literal", "@jax.jit"]]);
  expect(found("x = jnp.tanh(x@w + b)")).toEqual([]);
});
