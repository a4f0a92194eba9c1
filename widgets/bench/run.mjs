// node bench/run.mjs VIEW...: says as JSON what `crossings.ts` finds of each view, a file that `encode` of the Python package wrote.
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
