// node bench/run.mjs VIEW...: prints as JSON what `crossings.ts` finds for each view, a file written by the Python package's `encode`.
import { readFileSync } from "node:fs";
import { build } from "esbuild";

const { outputFiles } = await build({
  entryPoints: ["bench/crossings.ts"],
  bundle: true,
  format: "esm",
  platform: "node",
  write: false,
  logLevel: "error",
});
const { measured } = await import(
  `data:text/javascript;base64,${Buffer.from(outputFiles[0].text).toString("base64")}`
);
const found = [];
for (const path of process.argv.slice(2)) found.push(await measured(new Uint8Array(readFileSync(path))));
console.log(JSON.stringify(found));
