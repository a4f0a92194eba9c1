// Builds the scripts in jaxviz/static that the Python package ships: explorer.js, the main module, including its stylesheet;
// loader.js, the short module that each widget contains; live.js, the plot of a watch; exercise.js, for exercises on pages
// without a kernel; and parts/NAME.js for each src/host/parts/NAME.ts, see src/host/parts.ts. LICENSES.txt lists the packages
// in them.
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { context, build as once } from "esbuild";

const minified = !process.argv.includes("--watch");
const common = { bundle: true, minify: minified, charset: "utf8", legalComments: "none", logLevel: "info" };

/** Stylesheets are imported as text, with their imports inlined. */
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

/** The pixels of text that CodeMirror renders above and below the viewport in total, for which it has no option. */
const MARGIN = { theirs: "1000 /* VP.Margin */", ours: "400" };

/** A jump to another position renders that much text again; CodeMirror's value is four times the height of a pane. */
const margins = {
  name: "margins",
  setup({ onLoad }) {
    onLoad({ filter: /@codemirror.view.dist.index\.js$/ }, ({ path }) => {
      const source = readFileSync(path, "utf8");
      if (!source.includes(MARGIN.theirs)) throw new Error(`${path} has no ${MARGIN.theirs} any more`);
      return { contents: source.replaceAll(MARGIN.theirs, MARGIN.ours) };
    });
  },
};

const folder = "src/host/parts";
const parts = existsSync(folder) ? readdirSync(folder).filter((name) => name.endsWith(".ts")) : [];

/** The worker's code is a string in the module, so that there is a single file to load. */
async function workerSource() {
  const { outputFiles } = await once({
    ...common,
    entryPoints: ["src/graph/layout/worker.ts"],
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
    explorer: "src/main/index.ts",
    loader: "src/host/loader.ts",
    live: "src/main/live.ts",
    ...Object.fromEntries(parts.map((name) => [`parts/${name.slice(0, -3)}`, `${folder}/${name}`])),
  },
  outdir: "../jaxviz/static",
  format: "esm",
  target: "es2022",
  plugins: [styles, margins],
  define: { LAYOUT_WORKER: JSON.stringify(await workerSource()) },
};

/** A classic script, which also loads in pages that are opened as files. */
const script = {
  ...common,
  entryPoints: { exercise: "src/main/exercise.ts" },
  outdir: options.outdir,
  format: "iife",
  target: "es2022",
  plugins: [styles],
};

/** Notes on packages that contain more than their own license covers. */
const WITHIN = {
  "@hpcc-js/wasm-graphviz":
    "It holds Graphviz, compiled to WebAssembly, which is under the Eclipse Public License: https://graphviz.org/license/. " +
    "Its source is at https://gitlab.com/graphviz/graphviz.",
};

/** The packages in a bundle, each with its license as published. */
function licenses({ inputs }) {
  const found = Object.keys(inputs).map((path) => /^(.*node_modules\/((?:@[^/]+\/)?[^/]+))\//.exec(path));
  const packages = new Map(found.filter(Boolean).map(([, folder, name]) => [name, folder]));
  return [...packages].sort().map(([name, folder]) => {
    const { version, license } = JSON.parse(readFileSync(`${folder}/package.json`, "utf8"));
    const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
    const text = file === undefined ? "" : readFileSync(`${folder}/${file}`, "utf8").trim();
    return [`${name} ${version} (${license})`, WITHIN[name] ?? "", text].filter(Boolean).join("\n\n");
  });
}

if (minified) {
  await once(script);
  const { metafile } = await once({ ...options, metafile: true });
  const head = "The scripts in this folder hold these packages.";
  writeFileSync(
    `${options.outdir}/LICENSES.txt`,
    `${[head, ...licenses(metafile)].join(`\n\n${"-".repeat(80)}\n\n`)}\n`,
  );
} else for (const one of [options, script]) await (await context({ ...one, sourcemap: "inline" })).watch();
