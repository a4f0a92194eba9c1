// Builds what the Python package ships into jaxviz/static: explorer.js, the main module, with its style sheet inside;
// loader.js, the few lines that each widget has of its own; live.js, the plot of a watch; and parts/NAME.js for each src/parts/NAME.ts, see src/parts.ts.
import { existsSync, readdirSync } from "node:fs";
import { context, build as once } from "esbuild";

const minified = !process.argv.includes("--watch");
const common = { bundle: true, minify: minified, charset: "utf8", legalComments: "none", logLevel: "info" };

/** A style sheet is imported as its text, with what it imports in it. */
const styles = {
  name: "styles",
  setup({ onLoad }) {
    onLoad({ filter: /\.css$/ }, async ({ path }) => {
      const { outputFiles, metafile } = await once({
        ...common,
        entryPoints: [path],
        write: false,
        metafile: true,
        logLevel: "error",
      });
      return { contents: outputFiles[0].text, loader: "text", watchFiles: Object.keys(metafile.inputs) };
    });
  },
};

const folder = "src/parts";
const parts = existsSync(folder) ? readdirSync(folder).filter((name) => name.endsWith(".ts")) : [];

/** What runs in a worker is a text in the module, so that there is one file to load. */
async function workerSource() {
  const { outputFiles } = await once({
    ...common,
    entryPoints: ["src/layout/worker.ts"],
    format: "iife",
    target: "es2022",
    minify: true,
    write: false,
    logLevel: "error",
  });
  return outputFiles[0].text;
}

const options = {
  ...common,
  entryPoints: {
    explorer: "src/index.ts",
    loader: "src/loader.ts",
    live: "src/live.ts",
    ...Object.fromEntries(parts.map((name) => [`parts/${name.slice(0, -3)}`, `${folder}/${name}`])),
  },
  outdir: "../jaxviz/static",
  format: "esm",
  target: "es2022",
  plugins: [styles],
  define: { LAYOUT_WORKER: JSON.stringify(await workerSource()) },
};

if (minified) await once(options);
else await (await context({ ...options, sourcemap: "inline" })).watch();
