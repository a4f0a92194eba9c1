/** The widget without a view that holds the explorer's code, in the notebook too: `jaxviz/page/bundle.py`. */

import type { Asked } from "./ask";

interface Held {
  get(name: string): unknown;
  /** Whether a kernel is behind it, where the host knows. */
  comm_live?: boolean;
}

/** The part of an anywidget model that is needed to find it. */
export interface Holder extends Asked {
  get(name: string): unknown;
  widget_manager?: {
    /** JupyterLab's has it; null where there is none any more. */
    kernel?: { status?: string; interrupt?(): Promise<void> } | null;
    get_model?(id: string): Promise<Held | undefined>;
  };
}

export const MAIN = "explorer";

/** The model of that widget, where the host has one. */
export async function holderOf(model: Holder): Promise<Held | undefined> {
  const id = String(model.get("_code")).replace("IPY_MODEL_", "");
  return model.widget_manager?.get_model?.(id);
}

/** Whether it is known that no kernel is behind a widget: the one that holds the code is of the same kernel, and hosts know of that. */
export async function isGone(model: Holder): Promise<boolean> {
  const kernel = model.widget_manager?.kernel;
  if (kernel === null || kernel?.status === "dead") return true;
  try {
    return (await holderOf(model))?.comm_live === false;
  } catch {
    return false;
  }
}

/** The gzipped source of the main module or of a part; throws where the host has no such widget, or that has no such part. */
export async function held(model: Holder, name: string): Promise<Uint8Array<ArrayBuffer>> {
  const code = await holderOf(model);
  const parts = code?.get("parts") as Record<string, string> | undefined;
  const text = name === MAIN ? code?.get("code") : parts?.[name];
  if (!text) throw new Error(`no widget holds ${name}`);
  return Uint8Array.from(atob(String(text)), (c) => c.charCodeAt(0));
}
