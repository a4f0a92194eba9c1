/** The widget without a view that holds the explorer's code, in the notebook too: `jaxviz/notebook/bundle.py`. */

import type { Asked } from "./ask";

/** The part of an anywidget model that is needed to find it. */
export interface Holder extends Asked {
  get(name: string): unknown;
  widget_manager?: {
    get_model?(id: string): Promise<{ get(name: string): unknown } | undefined>;
    /** JupyterLab's has it. */
    kernel?: { interrupt?(): Promise<void> } | null;
  };
}

export const MAIN = "explorer";

/** The gzipped source of the main module or of a part; throws where the host has no such widget, or that has no such part. */
export async function held(model: Holder, name: string): Promise<Uint8Array<ArrayBuffer>> {
  const id = String(model.get("_code")).replace("IPY_MODEL_", "");
  const code = await model.widget_manager?.get_model?.(id);
  const parts = code?.get("parts") as Record<string, string> | undefined;
  const text = name === MAIN ? code?.get("code") : parts?.[name];
  if (!text) throw new Error(`no widget holds ${name}`);
  return Uint8Array.from(atob(String(text)), (c) => c.charCodeAt(0));
}
