/** The visible part of a time axis, and an interval of it. */

import { tracked } from "../base/signals";
import type { Timeline } from "./timeline";

/** A part of an axis, as fractions of it. */
export interface Span {
  readonly from: number;
  readonly to: number;
}

export const ALL: Span = { from: 0, to: 1 };

export const isWhole = ({ from, to }: Span): boolean => from <= 0 && to >= 1;

/** The first and last of some steps. */
export interface Interval {
  readonly timeline: Timeline;
  readonly first: number;
  readonly last: number;
}

/** Where a key moves a cursor on one of `n` steps, or on none, -1, from where it goes to `start`; undefined for other keys. */
export function stepAfter(key: string, at: number, n: number, start: number): number | undefined {
  const page = Math.max(1, Math.round(n / 20));
  const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -page, PageDown: page }[key];
  if (by === undefined) return { Home: 0, End: n - 1 }[key];
  return at < 0 ? start : Math.min(n - 1, Math.max(0, at + by));
}

/** What is visible and what is selected in all charts over time. */
export class TimeView {
  /** The visible part of the run, as fractions of its steps. */
  span: Span = ALL;
  interval: Interval | null = null;

  constructor() {
    tracked(this, "span", "interval");
  }

  lookAt(span: Span): void {
    if (span.from !== this.span.from || span.to !== this.span.to) this.span = span;
  }

  choose(interval: Interval | null): void {
    this.interval = interval;
  }
}

/** Where a place of the whole axis is in its visible part. */
export const seenAt = ({ from, to }: Span, place: number): number => (place - from) / (to - from);

/** The place of the whole axis that is at one of its visible part. */
export const placeAt = ({ from, to }: Span, seen: number): number => from + (to - from) * seen;

/** Moved into the axis, with the same width. */
function inside(from: number, width: number): Span {
  if (width >= 1) return ALL;
  const start = Math.min(1 - width, Math.max(0, from));
  return { from: start, to: start + width };
}

/** `by` times as wide, but not narrower than `least`; the place `about` stays where it is. */
export function zoomed({ from, to }: Span, about: number, by: number, least: number): Span {
  const width = Math.min(1, Math.max(Math.min(least, to - from), (to - from) * by));
  return inside(about - ((about - from) / (to - from)) * width, width);
}

export const moved = ({ from, to }: Span, by: number): Span => inside(from + by, to - from);

/** Moved as little as necessary for a part to be visible. */
export function showing(span: Span, part: Span): Span {
  if (part.from < span.from) return moved(span, part.from - span.from);
  return part.to > span.to ? moved(span, Math.min(part.to - span.to, part.from - span.from)) : span;
}
