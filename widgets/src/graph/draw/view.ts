/** The part of the drawing that is in sight: `screen = world * scale + offset`. */

export interface View {
  scale: number;
  x: number;
  y: number;
}

export interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

export const LEAST = 0.0002;
export const MOST = 2.5;
/** Smaller than this, text is not easily read. */
export const READABLE = 0.55;

/** Zooms so that the point of the screen stays where it is. */
export function zoomed(view: View, factor: number, x: number, y: number): View {
  const scale = Math.min(MOST, Math.max(LEAST, view.scale * factor));
  const by = scale / view.scale;
  return { scale, x: x - (x - view.x) * by, y: y - (y - view.y) * by };
}

/** All of a box in sight, no larger than it is drawn at full size. */
export function fitted(box: Box, width: number, height: number, margin = 24, most = 1): View {
  const scale = Math.min(
    most,
    Math.max(
      LEAST,
      Math.min(
        (width - 2 * margin) / Math.max(1, box.width),
        (height - 2 * margin) / Math.max(1, box.height),
      ),
    ),
  );
  return {
    scale,
    x: (width - box.width * scale) / 2 - box.x * scale,
    y: (height - box.height * scale) / 2 - box.y * scale,
  };
}

/** What is first seen: all of it if that can be read, else its beginning. */
export function opening(box: Box, width: number, height: number, margin = 20): View {
  const all = fitted(box, width, height, margin);
  if (all.scale >= READABLE) return all;
  const scale = Math.min(0.9, Math.max(READABLE, (width - 2 * margin) / Math.max(1, box.width)));
  return {
    scale,
    x: (width - box.width * scale) / 2 - box.x * scale,
    y: margin - box.y * scale,
  };
}

export function between(a: View, b: View, share: number): View {
  const scale = a.scale * (b.scale / a.scale) ** share;
  const of = (from: number, to: number) => from + (to - from) * share;
  // In a straight line on the screen.
  return { scale, x: of(a.x, b.x), y: of(a.y, b.y) };
}
