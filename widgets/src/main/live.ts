/**
 * The live plot of a watch: `jaxviz/features/probes/widget.py`. A separate module, small enough to include in each widget.
 *
 * Python sends the whole plot as one trait, several times per second, so a page that connects later, or a saved notebook, has all of it.
 */

import { isGone, watchKernel } from "../host/held";
import { keepState } from "../host/keep";
import type { Host, WidgetModel } from "../host/model";
import style from "../styles/live.css";
import { h, onResize, onTheme } from "../ui/dom";
import type { LiveLine, Shown } from "../wire/live.generated";

const HUES = 8;
const LEFT = 62;
const RIGHT = 12;
const TOP = 10;
const BELOW = 22;
const HEIGHT = 170;

/** About `n` round numbers from low to high. */
export function ticks(low: number, high: number, n: number): number[] {
  const rough = (high - low) / Math.max(1, n);
  if (!(rough > 0) || !Number.isFinite(rough)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough)!;
  const found: number[] = [];
  for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9; i++) found.push(i * step + 0); // no -0
  return found;
}

/** A short label: `0.001`, `12`, `3.4e-7`. */
export function label(value: number): string {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(1).replace(".0e", "e");
  return String(Number(value.toPrecision(4)));
}

/** The least and the greatest value drawn; null if there is none. A logarithmic axis has only positive values. */
export function range(lines: readonly LiveLine[], isLog: boolean): [number, number] | null {
  let [low, high] = [Infinity, -Infinity];
  for (const { y } of lines)
    for (const value of y)
      if (value !== null && (!isLog || value > 0)) {
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
  if (low > high) return null;
  if (isLog) return low === high ? [low / 2, high * 2] : [low, high];
  const margin = low === high ? Math.abs(low) * 0.1 || 1 : (high - low) * 0.05;
  return [low - margin, high + margin];
}

/** The description of a panel for screen readers. */
export function described(lines: readonly LiveLine[], title: string): string {
  return `${title}: ${lines.map((line) => `${line.name} ${line.last}`).join(", ")}`;
}

class Panel {
  readonly canvas = h("canvas.jvl-canvas", { role: "img" });
  readonly element: HTMLElement;
  private readonly sample = h("span", { hidden: true });
  private width = 0;
  private pixels = 1;

  constructor(
    private readonly title: string,
    redraw: () => void,
  ) {
    this.element = h("figure.jvl-panel", h("figcaption", title), this.canvas, this.sample);
    this.stop = onResize(this.element, (width, _height, pixels) => {
      this.width = width;
      this.pixels = pixels;
      redraw();
    });
  }

  readonly stop: () => void;

  draw(lines: readonly LiveLine[], isLog: boolean, hueOf: (name: string) => number): void {
    this.element.hidden = lines.length === 0;
    this.canvas.dataset.points = String(lines.reduce((n, line) => n + line.y.length, 0));
    this.canvas.setAttribute("aria-label", described(lines, this.title));
    const context = this.canvas.getContext("2d");
    if (!context || this.width < 2 || lines.length === 0) return;
    this.canvas.width = Math.round(this.width * this.pixels);
    this.canvas.height = Math.round(HEIGHT * this.pixels);
    context.scale(this.pixels, this.pixels);
    const styles = getComputedStyle(this.element);
    // A custom property returns its text, such as `light-dark(...)`; `color` returns the computed value.
    const colour = (name: string) => {
      this.sample.style.color = `var(${name})`;
      return getComputedStyle(this.sample).color;
    };
    const [right, bottom] = [this.width - RIGHT, HEIGHT - BELOW];
    const ys = range(lines, isLog) ?? [0, 1];
    const steps = lines.flatMap((line) => (line.x.length ? [line.x[0]!, line.x.at(-1)!] : []));
    const [first, last] = [Math.min(...steps), Math.max(...steps, Math.min(...steps) + 1e-9)];
    const at = isLog ? Math.log10 : (v: number) => v;
    const [low, high] = [at(ys[0]), at(ys[1])];
    const x = (step: number) => LEFT + ((step - first) / (last - first)) * (right - LEFT);
    const y = (value: number) => bottom - ((at(value) - low) / (high - low)) * (bottom - TOP);
    context.font = `11px ${styles.fontFamily}`;
    context.lineWidth = 1;
    context.textBaseline = "middle";
    context.textAlign = "right";
    const marks = isLog
      ? ticks(Math.ceil(low), Math.floor(high), 4)
          .filter(Number.isInteger)
          .map((v) => 10 ** v)
      : ticks(ys[0], ys[1], 4);
    for (const value of marks.length ? marks : ys) {
      const place = Math.round(y(value)) + 0.5;
      context.strokeStyle = colour("--jvl-grid");
      context.beginPath();
      context.moveTo(LEFT, place);
      context.lineTo(right, place);
      context.stroke();
      context.fillStyle = colour("--jvl-dim");
      context.fillText(label(value), LEFT - 6, place);
    }
    context.textBaseline = "top";
    context.textAlign = "center";
    for (const step of ticks(first, last, Math.max(2, (right - LEFT) / 90)))
      context.fillText(label(step), x(step), bottom + 6);
    for (const line of lines)
      this.drawLine(context, line, x, y, isLog, colour(`--jvl-hue-${hueOf(line.name)}`), bottom);
  }

  /** A line with gaps and marks where values are not finite. */
  private drawLine(
    context: CanvasRenderingContext2D,
    line: LiveLine,
    x: (step: number) => number,
    y: (value: number) => number,
    isLog: boolean,
    colour: string,
    bottom: number,
  ): void {
    context.strokeStyle = context.fillStyle = colour;
    context.lineWidth = 1.5;
    context.setLineDash(line.kind === "cotangent" ? [5, 3] : []);
    context.beginPath();
    let isOpen = false;
    line.y.forEach((value, i) => {
      const place = x(line.x[i]!);
      if (value === null) context.fillRect(place - 1.5, bottom - 7, 3, 7);
      if (value === null || (isLog && value <= 0)) {
        isOpen = false;
        return;
      }
      if (isOpen) context.lineTo(place, y(value));
      else context.moveTo(place, y(value));
      isOpen = true;
      if (line.y.length === 1) context.fillRect(place - 2, y(value) - 2, 4, 4);
    });
    context.stroke();
    context.setLineDash([]);
  }
}

function render({ model, el }: Host): () => void {
  const log = h("input", { type: "checkbox", "data-testid": "live-log" });
  const status = h("span.jvl-status", { role: "status", "data-testid": "live-status" });
  const legend = h("ul.jvl-legend", { "data-testid": "live-legend" });
  const note = h("p.jvl-note", { "data-testid": "live-note" });
  let shown: Shown = { lines: [], more: 0, note: "", isRunning: true };
  let [isLost, isOff] = [false, false];
  const draw = () => {
    const names = [...new Set(shown.lines.map((line) => line.name))];
    const hueOf = (name: string) => names.indexOf(name) % HUES;
    for (const [panel, kind] of [[values, "value"] as const, [cotangents, "cotangent"] as const])
      panel.draw(
        shown.lines.filter((line) => line.kind === kind),
        log.checked,
        hueOf,
      );
  };
  const values = new Panel("values", draw);
  const cotangents = new Panel("cotangents", draw);
  const sayStatus = () => {
    if (!shown.isRunning && shown.lines.length > 0) status.textContent = "over";
    else if (isOff) status.textContent = "the kernel has shut down or restarted";
    else status.textContent = shown.lines.length === 0 ? "nothing recorded yet" : "watching";
  };
  const look = async (isLostNow: boolean) => {
    isLost ||= isLostNow;
    isOff = isLost || (await isGone(model));
    sayStatus();
  };
  const read = () => {
    shown = JSON.parse(String(model.get("shown"))) as Shown;
    const names = [...new Set(shown.lines.map((line) => line.name))];
    sayStatus();
    legend.replaceChildren(
      ...shown.lines.map((line) =>
        h(
          "li",
          { "data-kind": line.kind, "data-name": line.name },
          h("span", {
            class: `jvl-swatch jvl-${line.kind}`,
            style: `--hue: var(--jvl-hue-${names.indexOf(line.name) % HUES})`,
          }),
          `${line.name}${line.kind === "cotangent" ? ", cotangent" : ""}: ${line.drawn} ${line.last}`,
        ),
      ),
      ...(shown.more ? [h("li", `and ${shown.more} more series`)] : []),
    );
    note.textContent = shown.note;
    draw();
  };
  log.addEventListener("change", draw);
  const root = h(
    "div.jvl",
    { "data-testid": "live" },
    h("style", style),
    h("div.jvl-head", status, h("label", log, " logarithmic")),
    values.element,
    cotangents.element,
    legend,
    note,
  );
  // Keys on the checkbox must not reach the notebook.
  root.addEventListener("keydown", (event) => event.stopPropagation());
  el.replaceChildren(root);
  const untheme = onTheme(draw);
  model.on("change:shown", read);
  read();
  const unwatch = watchKernel(model, look);
  void look(false);
  return () => {
    unwatch();
    model.off("change:shown", read);
    untheme();
    values.stop();
    cotangents.stop();
  };
}

export default { initialize: (host: { model: WidgetModel }) => keepState(host.model), render };
