/**
 * The module of each explorer and stepper: a few lines that find the code, which a notebook stores once, and hand over to it.
 *
 * The code is in a widget without a view (`jaxviz/page/bundle.py`) that is saved with the notebook. Hosts that provide only displayed
 * widgets make the loader ask the kernel instead. All widgets of a page share one instance of the module.
 */

import { askFor } from "./ask";
import { held, MAIN } from "./held";
import type { Host, WidgetModel } from "./model";
import { moduleOf } from "./zip";

interface Main {
  default: { initialize(model: WidgetModel): void; render(host: Host): unknown };
}

/** The widget with the code may be created slightly after the first one that is displayed. */
const TRIES = 40;
const BETWEEN = 50;
const PATIENCE = 30_000;

async function waitFor(model: WidgetModel): Promise<Uint8Array<ArrayBuffer>> {
  for (let i = 1; ; i++)
    try {
      return await held(model, MAIN);
    } catch (error) {
      // A host without a widget manager will never have it.
      if (i === TRIES || !model.widget_manager?.get_model) throw error;
      await new Promise((done) => setTimeout(done, BETWEEN));
    }
}

const SHARED = Symbol.for("jaxviz");
const page = globalThis as { [SHARED]?: Map<string, Promise<unknown>> };
page[SHARED] ??= new Map();
/** The modules of this page, by build. */
const modules = page[SHARED];

function load(model: WidgetModel): Promise<unknown> {
  const build = String(model.get("_build"));
  const before = modules.get(build);
  if (before) return before;
  const code = waitFor(model)
    .catch(() => askFor(model, MAIN, PATIENCE))
    .then(moduleOf);
  modules.set(build, code);
  code.catch(() => modules.delete(build));
  return code;
}

/** Starts loading the code while Python is still preparing the data. */
function initialize({ model }: { model: WidgetModel }): void {
  load(model)
    .then((main) => (main as Main).default.initialize(model))
    .catch(() => {});
}

async function render(host: Host): Promise<unknown> {
  let main: Main;
  try {
    main = (await load(host.model)) as Main;
  } catch (error) {
    console.error(error);
    host.el.textContent =
      "The code that shows this is not saved in this notebook. Run the cell again to see it.";
    return;
  }
  return main.default.render(host);
}

export default { initialize, render };
