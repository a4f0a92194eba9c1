/** Names of boxes that are too small for their text, drawn at a readable size where they do not overlap. */

import { push } from "../../model/groups";
import { SIZES, shortened } from "../layout/stubs";
import type { Palette } from "./palette";

/** The font size of these names and their line height, in pixels of the screen. */
export const NAME = 10;
const LINE = 12;
/** The width of a letter, relative to the font size. */
const LETTER = SIZES.letter / 12;
/** Names are shortened to no fewer letters than this. */
const LEAST = 4;
/** Longer names are shortened. */
const LONGEST = 30;
/** The least space between two names. */
const GAP = 4;
/** The most names on the screen. */
const MANY = 500;

const wide = (text: string) => text.length * NAME * LETTER;

/** A requested name, in screen coordinates. */
export interface Name {
  text: string;
  /** The rectangle of its box, and the box's depth. */
  x: number;
  y: number;
  width: number;
  height: number;
  depth: number;
  isOpen: boolean;
  ink: string;
}

/** A name with its position: its left and right end, and its vertical middle. */
export interface Written {
  name: Name;
  text: string;
  left: number;
  right: number;
  middle: number;
}

/** Places names: outer boxes first, in full if there is room beside the box, else shortened, else not at all. */
export function placed(names: readonly Name[], width: number, height: number): Written[] {
  /** The names placed so far, by line. */
  const lines = new Map<number, Written[]>();
  const isFree = (one: Written, right: number) => {
    const line = Math.floor(one.middle / LINE);
    return [line - 1, line, line + 1].every((at) =>
      (lines.get(at) ?? []).every(
        (other) =>
          other === one ||
          Math.abs(other.middle - one.middle) >= LINE - 1 ||
          one.left > other.right + GAP ||
          right + GAP < other.left,
      ),
    );
  };
  const found: Written[] = [];
  const inOrder = [...names].sort((a, b) => a.depth - b.depth || b.width * b.height - a.width * a.height);
  for (const name of inOrder) {
    if (found.length >= MANY) break;
    const left = Math.max(2, name.x + Math.min(6, name.width / 6));
    const [top, bottom] = [Math.max(0, name.y), name.y + name.height];
    // The name of an open box is at the upper edge of its visible part.
    const atTop = Math.min(top + LINE / 2 + 2, bottom - LINE / 2);
    const middle = name.isOpen && name.height > 2 * LINE ? atTop : (name.y + bottom) / 2;
    if (middle < LINE / 2 - 2 || middle > height - LINE / 2 + 2) continue;
    const inside = Math.floor((name.x + name.width - left - 2) / (NAME * LETTER));
    const text = inside < LEAST ? shortened(name.text) : shortened(name.text, Math.min(inside, LONGEST));
    const written = { name, text, left, right: left + wide(text), middle };
    if (written.right > width + NAME || !isFree(written, written.right)) continue;
    found.push(written);
    push(lines, Math.floor(middle / LINE), written);
  }
  // Names that were shortened to fit their boxes are shown in full if the space beside them is free.
  for (const one of found) {
    const whole = shortened(one.name.text);
    const right = one.left + wide(whole);
    if (one.text === whole || right > width || !isFree(one, right)) continue;
    one.text = whole;
    one.right = right;
  }
  return found;
}

/** Draws names. */
export function write(ctx: CanvasRenderingContext2D, names: readonly Written[], palette: Palette): void {
  ctx.textAlign = "left";
  ctx.lineJoin = "round";
  ctx.lineWidth = 3;
  ctx.strokeStyle = palette.background;
  ctx.font = `600 ${NAME}px ${palette.mono}`;
  for (const { name, text, left, right, middle } of names) {
    // A name that extends beyond its box crosses lines and other boxes.
    const isOver = right > name.x + name.width || name.height < LINE;
    if (isOver) ctx.strokeText(text, left, middle);
    ctx.fillStyle = isOver ? palette.text : name.ink;
    ctx.fillText(text, left, middle);
  }
}
