import { readdirSync, readFileSync } from "node:fs";
import { dirname, relative, resolve } from "node:path";
import { expect, test } from "vitest";

/** The folders of `src`, each of which imports only from itself and from those before it. */
const LAYERS = [
  ...["base", "wire", "model", "state", "host", "ui", "graph", "code", "panes", "stepper", "main"],
  "host/parts",
];

const SOURCES = resolve(import.meta.dirname, "../src");

const folderOf = (path) =>
  LAYERS.findLast((folder) => relative(SOURCES, path).startsWith(`${folder}/`)) ?? path;

function imports(file) {
  const text = readFileSync(file, "utf8");
  // The type of a part that is loaded on demand is not an import of its code.
  const found = text.matchAll(/^(?:import|export)\s[^"]*?"(\.[^"]+)";/gm);
  return [...found].map(([, path]) => resolve(dirname(file), path)).filter((path) => !path.endsWith(".css"));
}

test("no folder imports from one that is built on it", () => {
  const files = readdirSync(SOURCES, { recursive: true, encoding: "utf8" })
    .filter((name) => name.endsWith(".ts") && name !== "css.d.ts")
    .map((name) => resolve(SOURCES, name));
  expect(files.length).toBeGreaterThan(100);
  const up = files.flatMap((file) =>
    imports(file)
      .filter((other) => LAYERS.indexOf(folderOf(other)) > LAYERS.indexOf(folderOf(file)))
      .map((other) => `${relative(SOURCES, file)} imports ${relative(SOURCES, other)}`),
  );
  expect(up).toEqual([]);
  // A new folder has a place among the layers.
  expect(files.filter((file) => !LAYERS.includes(folderOf(file)))).toEqual([]);
});
