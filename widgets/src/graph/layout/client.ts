/** Asks for layouts: small ones at once, by Graphviz where that is at hand; large ones from a worker, so that the page goes on. */

import { type Dot, placeByDot } from "./graphviz";
import { type Positions, placeAll, type Shape } from "./place";
import { isBetter } from "./quality";

/** The source of the worker, which the build puts in; there is none in tests. */
declare const LAYOUT_WORKER: string | undefined;

/** By whom it is laid out: by Graphviz where that is better and takes no time, always where it can be, or never. */
export type Layouter = "auto" | "graphviz" | "layered";

export const NO_GRAPHVIZ = "Without Graphviz: it is not loaded, or there are too many boxes.";

/** Up to so many boxes and edges a worker is not worth the way there and back. */
const FEW = 3000;
/** Up to so many boxes, ports and edges Graphviz takes some 100 ms; and up to so many it is asked where somebody wants it. */
const PRETTY = 400;
const PRETTY_IF_ASKED = 2500;

let worker: Worker | null | undefined;
let asked = 0;
const waiting = new Map<number, { shape: Shape; done: (positions: Positions) => void }>();

/** Graphviz, once it is loaded; null where it could not be, as while the kernel is busy: it is then got anew if somebody asks for it by name. */
let dot: Dot | null | undefined;
let loading: Promise<void> | undefined;

/**
 * Calls back with the layout of what is visible: before this returns, where that is quick or no worker can be made.
 *
 * @param load gets Graphviz. Until it is there, which it may never be, the layout is our own; `done` is then called once more.
 */
export function place(
  shape: Shape,
  by: Layouter,
  load: () => Promise<Dot>,
  done: (positions: Positions, isAgain: boolean) => void,
): void {
  const size = shape.parent.length + shape.from.length;
  const most = by === "layered" ? 0 : by === "graphviz" ? PRETTY_IF_ASKED : PRETTY;
  if (dot === null && by === "graphviz") dot = loading = undefined;
  if (size > most || dot === null) {
    placeOwn(shape, (positions) => done(positions, false));
    return;
  }
  const own = placeAll(shape);
  if (dot !== undefined) {
    done(pretty(shape, own, by), false);
    return;
  }
  done(own, false);
  loading ??= load().then(
    (found) => {
      dot = found;
    },
    () => {
      dot = null;
    },
  );
  loading.then(() => {
    const better = pretty(shape, own, by);
    if (better !== own) done(better, true);
  });
}

function pretty(shape: Shape, own: Positions, by: Layouter): Positions {
  if (!dot) return own;
  try {
    const found = placeByDot(shape, dot);
    return by === "graphviz" || isBetter(shape, found, own) ? found : own;
  } catch (error) {
    console.warn(error);
    dot = null;
    return own;
  }
}

/** Our own layout, by a worker where it is large. */
function placeOwn(shape: Shape, done: (positions: Positions) => void): void {
  const found = shape.parent.length + shape.from.length <= FEW ? null : theWorker();
  if (found === null) {
    done(placeAll(shape));
    return;
  }
  asked += 1;
  waiting.set(asked, { shape, done });
  found.postMessage([asked, shape]);
}

/** One worker for all panes, made when first needed; null on a page that does not allow it. */
function theWorker(): Worker | null {
  if (worker !== undefined) return worker;
  worker = null;
  if (typeof LAYOUT_WORKER === "undefined" || typeof Worker === "undefined") return null;
  try {
    const url = URL.createObjectURL(new Blob([LAYOUT_WORKER], { type: "text/javascript" }));
    worker = new Worker(url);
    worker.onmessage = ({ data: [id, positions] }: MessageEvent<[number, Positions]>) => {
      const request = waiting.get(id);
      waiting.delete(id);
      request?.done(positions);
    };
    // A page may refuse it only when it starts: what was asked for is then worked out here.
    worker.onerror = () => {
      worker = null;
      const left = [...waiting.values()];
      waiting.clear();
      for (const { shape, done } of left) done(placeAll(shape));
    };
  } catch {
    worker = null;
  }
  return worker;
}
