/** The visible part of the drawing: `screen = world * scale + offset`. */

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
/** Below this scale, text is hard to read. */
export const READABLE = 0.55;

/** Zooms around a point of the screen. */
export function zoomed(view: View, factor: number, x: number, y: number): View {
  const scale = Math.min(MOST, Math.max(LEAST, view.scale * factor));
  const by = scale / view.scale;
  return { scale, x: x - (x - view.x) * by, y: y - (y - view.y) * by };
}

/** Fits a box into the viewport, at full size at most. */
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

/** The initial view: all of it if it is readable at that scale, else the part that starts at a box, with a margin above it. */
export function opening(box: Box, width: number, height: number, from: Box = box, margin = 20): View {
  const all = fitted(box, width, height, margin);
  if (all.scale >= READABLE) return all;
  const scale = Math.min(0.9, Math.max(READABLE, (width - 2 * margin) / Math.max(1, box.width)));
  /** The offset along one axis, with `at` shown at `want` but no more empty margin than necessary. */
  const along = (start: number, size: number, room: number, at: number, want: number) => {
    if (size * scale + 2 * margin <= room) return (room - size * scale) / 2 - start * scale;
    const [least, most] = [room - margin - (start + size) * scale, margin - start * scale];
    return Math.min(most, Math.max(least, want - at * scale));
  };
  return {
    scale,
    x: along(box.x, box.width, width, from.x + from.width / 2, width / 2),
    y: along(box.y, box.height, height, from.y, from === box ? margin : Math.min(height / 4, 60)),
  };
}

export function between(a: View, b: View, share: number): View {
  const scale = a.scale * (b.scale / a.scale) ** share;
  const of = (from: number, to: number) => from + (to - from) * share;
  // A straight line on the screen.
  return { scale, x: of(a.x, b.x), y: of(a.y, b.y) };
}
