/** The roofline: what each row could do in a second at best, over the FLOPs that it does for each byte, with the device's roof. */

import { formatFlops, formatSeconds, formatShort, percent } from "../base/format";
import type { Least, Roofline } from "../model/roofline";
import { h, onResize, svg } from "../ui/dom";

/** A row of the table of costs. */
export interface Dot {
  key: string;
  what: string;
  /** FLOPs, and bytes moved. */
  work: number;
  moved: number;
  least: Least;
}

/** Padding in pixels, for the scales. */
const [TOP, LEFT, RIGHT, BELOW] = [16, 88, 14, 38];
/** The radius of all of the time, and the least one. */
const [LARGEST, SMALLEST] = [44, 3];
/** How many rows are drawn, and the least share of the time of one with a name. */
const [DRAWN, NAMED] = [300, 0.02];
const LETTER = 7;
const LONGEST = 34;

export class RooflineChart {
  readonly element = h("div.jv-plot.jv-roofline.jv-column", { "data-testid": "roofline" });
  private readonly said = h("div.jv-roofline-said", { "data-testid": "roofline-said" });
  private readonly plot = h("div.jv-roofline-plot.jv-fills");
  private readonly stop: () => void;
  private size: [number, number] = [0, 0];
  private dots: readonly Dot[] = [];
  private roofline: Roofline | null = null;
  private selected = "";
  private readonly circles = new Map<string, SVGElement>();

  constructor(private readonly choose: (key: string) => void) {
    this.element.append(this.plot, this.said);
    this.stop = onResize(this.plot, (...size) => {
      this.size = [size[0], size[1]];
      this.draw();
    });
  }

  destroy(): void {
    this.stop();
  }

  show(dots: readonly Dot[], roofline: Roofline): void {
    this.dots = [...dots].sort((a, b) => b.least.seconds - a.least.seconds);
    this.roofline = roofline;
    this.draw();
  }

  light(selected: string): void {
    this.selected = selected;
    for (const [key, circle] of this.circles) circle.classList.toggle("is-selected", key === selected);
    this.say(this.dots.find(({ key }) => key === selected) ?? null);
  }

  /** Describes a row, or in its absence what is not drawn. */
  private say(dot: Dot | null): void {
    this.said.textContent = dot ? describe(dot, this.roofline!) : this.leftOut();
  }

  private leftOut(): string {
    const only = this.dots.filter(({ work, least }) => work === 0 && least.seconds > 0);
    if (only.length === 0) return "";
    const seconds = only.reduce((sum, { least }) => sum + least.seconds, 0);
    return `without FLOPs, and so not drawn: ${only.length} rows that move bytes, ${formatSeconds(seconds)} at best`;
  }

  private draw(): void {
    const { roofline, size } = this;
    const [width, height] = size;
    const drawn = this.dots.filter(({ work, moved }) => work > 0 && moved > 0).slice(0, DRAWN);
    this.circles.clear();
    if (roofline === null || width < LEFT + RIGHT + 1 || height < TOP + BELOW + 1 || drawn.length === 0) {
      this.plot.replaceChildren();
      return;
    }
    const { flops, bandwidth } = roofline.speed;
    const intensity = drawn.map(({ work, moved }) => work / moved);
    const rate = drawn.map(({ work, least }) => work / least.seconds);
    const right = width - RIGHT;
    const bottom = height - BELOW;
    const from = Math.min(...intensity, roofline.ridge) / 2;
    const to = Math.max(...intensity, roofline.ridge) * 4;
    const x = logScale(from, to, LEFT, right);
    const y = logScale(Math.min(...rate) / 2, flops * 2, bottom, TOP);
    const all = Math.max(roofline.total.seconds, Number.MIN_VALUE);
    const circles = drawn.map((dot, i) => {
      const r = Math.max(SMALLEST, LARGEST * Math.sqrt(dot.least.seconds / all));
      const circle = svg("circle", { class: "jv-roofline-dot", cx: x(intensity[i]!), cy: y(rate[i]!), r });
      circle.addEventListener("pointerenter", () => this.say(dot));
      circle.addEventListener("pointerleave", () => this.light(this.selected));
      circle.addEventListener("click", () => this.choose(dot.key));
      this.circles.set(dot.key, circle);
      return circle;
    });
    const label = `${drawn.length} rows; the roof is ${roofOf(roofline)}`;
    // On these axes the slope of the roof is the same everywhere.
    const rise = y(flops) - y(flops / 10);
    const slope = (Math.atan2(rise, x(roofline.ridge) - x(roofline.ridge / 10)) * 180) / Math.PI;
    const roof = `M${x(from)} ${y(Math.max(from * bandwidth, y.from))}L${x(roofline.ridge)} ${y(flops)}H${right}`;
    this.plot.replaceChildren(
      svg(
        "svg",
        { width, height, role: "img", "aria-label": label },
        ...decades(from, to).flatMap((n) => [
          svg("line", { class: "jv-grid", x1: x(n), x2: x(n), y1: TOP, y2: bottom }),
          svg("text", { class: "jv-tick", x: x(n), y: bottom + 15, "text-anchor": "middle" }, formatShort(n)),
        ]),
        ...decades(y.from, flops * 2).flatMap((n) => [
          svg("line", { class: "jv-grid", x1: LEFT, x2: right, y1: y(n), y2: y(n) }),
          svg("text", { class: "jv-tick", x: LEFT - 6, y: y(n) + 4, "text-anchor": "end" }, perSecond(n)),
        ]),
        svg(
          "text",
          { class: "jv-tick", x: right, y: bottom + 32, "text-anchor": "end" },
          "FLOPs for each byte moved",
        ),
        svg("path", { class: "jv-roofline-roof", d: roof }),
        svg("line", { class: "jv-roofline-on", x1: LEFT, x2: x(roofline.ridge), y1: y(flops), y2: y(flops) }),
        svg(
          "text",
          {
            class: "jv-tick",
            "text-anchor": "end",
            transform: `translate(${x(roofline.ridge)} ${y(flops)}) rotate(${slope}) translate(-12 15)`,
          },
          `memory, ${bytesPerSecond(bandwidth)}`,
        ),
        ...circles,
        // Left of the ridge, nothing is as high as the roof.
        svg(
          "text",
          { class: "jv-tick jv-over", x: LEFT + 6, y: y(flops) - 6 },
          `${perSecond(flops)}, ${roofline.speed.dtype} products`,
        ),
        ...names(
          drawn.filter(({ least }) => least.seconds > NAMED * all),
          circles,
          right,
          bottom,
        ),
      ),
    );
    this.light(this.selected);
  }
}

/** `45 GFLOP/s in float32 products and 5 GB/s, as measured on cpu:0`. */
export function roofOf({ speed }: Roofline): string {
  const { flops, dtype, bandwidth, device } = speed;
  return `${perSecond(flops)} in ${dtype} products and ${bytesPerSecond(bandwidth)}, as measured on ${device}`;
}

function describe({ what, work, moved, least }: Dot, { total }: Roofline): string {
  const share = percent((100 * least.seconds) / total.seconds);
  const moving = Math.round((100 * least.moving) / Math.max(least.seconds, Number.MIN_VALUE));
  const doing =
    moving === 0 ? "computing" : moving === 100 ? "moving bytes" : `${moving} % of it moving bytes`;
  const each = moved > 0 ? `${formatShort(work / moved)} FLOPs for each byte` : "no bytes";
  return `${what}: ${each}; at best ${formatSeconds(least.seconds)}, ${share} of all, ${doing}`;
}

const bytesPerSecond = (n: number) => `${Number((n / 1e9).toPrecision(3))} GB/s`;
const perSecond = (n: number) => `${formatFlops(Math.round(n)).replace(".0 ", " ")}/s`;

function logScale(from: number, to: number, start: number, end: number) {
  const [low, high] = [Math.log(from), Math.log(to)];
  const at = (n: number) => start + ((end - start) * (Math.log(n) - low)) / (high - low);
  return Object.assign(at, { from });
}

/** The powers of ten between two numbers: every one, or if there are many, every second. */
function decades(from: number, to: number): number[] {
  const [first, last] = [Math.ceil(Math.log10(from)), Math.floor(Math.log10(to))];
  const by = last - first > 6 ? 2 : 1;
  const found = [];
  for (let n = first; n <= last; n += by) found.push(10 ** n);
  return found;
}

/** The names of the largest circles, where there is room below them: the roof is above. */
function names(
  dots: readonly Dot[],
  circles: readonly SVGElement[],
  right: number,
  bottom: number,
): SVGElement[] {
  const taken: [left: number, right: number, y: number][] = [];
  return dots.flatMap(({ what }, i) => {
    const [cx, cy, r] = ["cx", "cy", "r"].map((name) => Number(circles[i]!.getAttribute(name)));
    const text = what.length > LONGEST ? `${what.slice(0, LONGEST - 1)}…` : what;
    const width = text.length * LETTER;
    const [left, y] = [Math.min(cx! + 4, right - width), cy! + r! + 14];
    if (left < LEFT || y > bottom) return [];
    if (taken.some(([a, b, at]) => Math.abs(at - y) < 15 && left < b && left + width > a)) return [];
    taken.push([left, left + width, y]);
    return [svg("text", { class: "jv-roofline-name", x: left, y }, text)];
  });
}
