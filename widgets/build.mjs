// Builds the explorer: one ES module and one style sheet, which the Python package ships.
import { context, build as once } from "esbuild";

const options = {
  entryPoints: { explorer: "src/index.ts" },
  outdir: "../jaxviz/static",
  bundle: true,
  format: "esm",
  target: "es2022",
  minify: true,
  charset: "utf8",
  legalComments: "none",
  logLevel: "info",
};

if (process.argv.includes("--watch")) {
  await (await context({ ...options, minify: false, sourcemap: "inline" })).watch();
} else {
  await once(options);
}
