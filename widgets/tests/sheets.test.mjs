import { readdirSync, readFileSync } from "node:fs";
import { resolve } from "node:path";
import { expect, test } from "vitest";

const STYLES = resolve(import.meta.dirname, "../src/styles");
const text = (name) => readFileSync(resolve(STYLES, name), "utf8").replaceAll(/\/\*.*?\*\//gs, "");

/** The classes for which a stylesheet has rules wherever they are, `.jv-x` or `.jaxviz .jv-x`. */
function classesIn(sheet) {
  const rules = text(sheet)
    .replaceAll(/@[^{;]*[{;]/g, "")
    .matchAll(/([^{}]+)\{/g);
  const selectors = [...rules].flatMap(([, all]) => all.split(/,(?![^(]*\))/));
  return new Set(selectors.flatMap((each) => /^(?:\.jaxviz )?(\.jv-[\w-]+)$/.exec(each.trim())?.[1] ?? []));
}

test("a stylesheet that comes later restyles nothing that is there, in this widget or in another of the page", () => {
  const first = [...text("style.css").matchAll(/"\.\/(.+?)"/g)].map(([, name]) => name);
  const others = readdirSync(STYLES).filter((name) => !["style.css", ...first].includes(name));
  expect([first.length > 5, others.length > 5]).toEqual([true, true]);
  const owners = new Map();
  for (const sheet of [...first, ...others])
    for (const name of classesIn(sheet)) owners.set(name, [...(owners.get(name) ?? []), sheet]);
  const shared = [...owners].filter(
    ([, sheets]) => sheets.length > 1 && sheets.some((s) => others.includes(s)),
  );
  expect(shared).toEqual([]);
});
