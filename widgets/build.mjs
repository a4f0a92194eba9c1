// Builds the explorer: one ES module and one style sheet, which the Python package ships.
import { context, build as once } from "esbuild";

const shared = { bundle: true, target: "es2022", charset: "utf8", legalComments: "none" };
const isWatched = process.argv.includes("--watch");

/** What runs in a worker is a text in the module, so that there is one file to load. */
async function workerSource() {
  const { outputFiles } = await once({
    ...shared,
    entryPoints: ["src/layout/worker.ts"],
    format: "iife",
    minify: true,
    write: false,
  });
  return outputFiles[0].text;
}

const options = {
  ...shared,
  entryPoints: { explorer: "src/index.ts" },
  outdir: "../jaxviz/static",
  format: "esm",
  minify: !isWatched,
  logLevel: "info",
  define: { LAYOUT_WORKER: JSON.stringify(await workerSource()) },
};

if (isWatched) {
  await (await context({ ...options, sourcemap: "inline" })).watch();
} else {
  await once(options);
}
