// Builds the scripts in jaxviz/static that the Python package ships: explorer.js, the main module, including its stylesheet;
// loader.js, the short module that each widget contains; live.js, the plot of a watch; charts.js, which zooms the charts of
// reports; exercise.js and chartspage.js, for exercises and charts on pages without a kernel; and parts/NAME.js for each src/host/parts/NAME.ts, see src/host/parts.ts. LICENSES.txt lists the packages
// in them.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, watch, writeFileSync } from "node:fs";
import { dirname, relative, resolve } from "node:path";
import { build as once } from "esbuild";

const minified = !process.argv.includes("--watch");
const common = {
  bundle: true,
  minify: minified,
  ...(minified ? {} : { sourcemap: "inline" }),
  charset: "utf8",
  legalComments: "none",
  logLevel: "info",
};

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

const folder = "src/host/parts";
const MAIN = "src/main/index.ts";
/** There must be one copy of this: it knows which effect is running. */
const SIGNALS = "src/base/signals.ts";
const imported = /^(?:import|export) (?!type)(?:\{([^}]*)\} )?from "(\.[^"]+)";/gm;

/** What a module imports by name from others, apart from types: pairs of a file and a name. */
function namesIn(path) {
  return [...readFileSync(path, "utf8").matchAll(imported)].flatMap(([, names = "", from]) =>
    names
      .split(",")
      .map((name) => name.trim().split(" as ")[0])
      .filter((name) => name !== "" && !name.startsWith("type "))
      .map((name) => [relative(".", `${resolve(dirname(path), from)}.ts`), name]),
  );
}

const inputsOf = ({ metafile }) => Object.keys(metafile.inputs).filter((path) => /^src\/.*\.ts$/.test(path));

/** What a part imports of the main module is read from it, and is not in the part again. */
function sharing(shared, key) {
  const names = [...shared];
  const load = ({ path, pluginData: importer }) => {
    const own = namesIn(importer).filter(([from]) => from === path);
    const lines = own.map(([from, name]) => {
      const at = names.indexOf(`${from} ${name}`);
      return at < 0
        ? `export { ${name} } from "${resolve(from)}";`
        : `export const ${name} = globalThis[KEY][${at}];`;
    });
    return { contents: lines.join("\n").replaceAll("KEY", `Symbol.for("${key}")`), resolveDir: "." };
  };
  const files = new Set(names.map((each) => each.split(" ")[0]));
  const reads = {
    name: "reads",
    setup({ onResolve, onLoad }) {
      onResolve({ filter: /^\./ }, ({ path, importer, resolveDir }) => {
        const file = relative(".", `${resolve(resolveDir, path)}.ts`);
        if (!files.has(file)) return undefined;
        return { path: file, namespace: "main", pluginData: importer, suffix: `?${relative(".", importer)}` };
      });
      onLoad({ filter: /./, namespace: "main" }, load);
    },
  };
  const entry = names.map((each, i) => {
    const [file, name] = each.split(" ");
    return `import { ${name} as _${i} } from "./${file}";`;
  });
  const values = names.map((_, i) => `_${i}`);
  const gives = `globalThis[Symbol.for("${key}")] = [${values}];\nexport * from "./${MAIN}";\nexport { default } from "./${MAIN}";`;
  return { reads, main: { contents: [...entry, gives].join("\n"), resolveDir: ".", loader: "ts" } };
}

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
  outdir: "../jaxviz/static",
  format: "esm",
  target: "es2022",
  plugins: [styles],
  define: { LAYOUT_WORKER: JSON.stringify(await workerSource()) },
};

const partsNamed = () =>
  Object.fromEntries(
    readdirSync(folder)
      .filter((name) => name.endsWith(".ts"))
      .map((name) => [`parts/${name.slice(0, -3)}`, `${folder}/${name}`]),
  );

async function build() {
  const dry = { ...options, write: false, metafile: true, logLevel: "error" };
  const [main, parts] = await Promise.all([
    once({ ...dry, entryPoints: [MAIN] }),
    once({ ...dry, entryPoints: partsNamed() }),
  ]);
  const own = new Set(inputsOf(main));
  // Only what the main module uses itself: it should not grow.
  const used = new Set(
    inputsOf(main)
      .flatMap(namesIn)
      .map((each) => each.join(" ")),
  );
  const wanted = inputsOf(parts)
    .filter((path) => !own.has(path))
    .flatMap(namesIn);
  const shared = new Set(wanted.map((each) => each.join(" ")).filter((each) => used.has(each)));
  const key = `jaxviz ${createHash("sha256").update(main.outputFiles[0].contents).digest("hex").slice(0, 8)}`;
  const { reads, main: entry } = sharing(shared, key);
  const made = await Promise.all([
    once({
      ...options,
      metafile: true,
      stdin: entry,
      outdir: undefined,
      outfile: `${options.outdir}/explorer.js`,
    }),
    once({ ...options, metafile: true, plugins: [reads, ...options.plugins], entryPoints: partsNamed() }),
    once({
      ...options,
      metafile: true,
      entryPoints: { loader: "src/host/loader.ts", live: "src/main/live.ts", charts: "src/main/charts.ts" },
    }),
    once(script),
  ]);
  for (const [name, { inputs }] of Object.entries(made[1].metafile.outputs))
    if (inputs[SIGNALS]?.bytesInOutput > 0) throw new Error(`${name} has signals of its own`);
  return Object.assign({}, ...made.map(({ metafile }) => metafile?.inputs));
}

/** Classic scripts, which also load in pages that are opened as files. */
const script = {
  ...common,
  entryPoints: { exercise: "src/main/exercise.ts", chartspage: "src/main/chartspage.ts" },
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

const inputs = await build();
if (minified) {
  const head = "The scripts in this folder hold these packages.";
  writeFileSync(
    `${options.outdir}/LICENSES.txt`,
    `${[head, ...licenses({ inputs })].join(`\n\n${"-".repeat(80)}\n\n`)}\n`,
  );
} else {
  let timer;
  watch("src", { recursive: true }, () => {
    clearTimeout(timer);
    timer = setTimeout(() => build().catch(console.error), 100);
  });
}
