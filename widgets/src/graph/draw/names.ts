/** The names of boxes that are drawn too small for their text: at a readable size, where they do not overlap. */

import { SIZES, shortened } from "../layout/stubs";
import type { Palette } from "./palette";

/** The size of these names, in pixels of the screen, and how high a line of them is. */
export const NAME = 10;
const LINE = 12;
/** How wide a letter is of a font, in its size. */
const LETTER = SIZES.letter / 12;
/** A name is cut to no fewer letters. */
const LEAST = 4;
/** And to no more. */
const LONGEST = 30;
/** What is between two of them. */
const GAP = 4;
/** A page of names has no more than so many. */
const MANY = 500;

const wide = (text: string) => text.length * NAME * LETTER;

/** A name that is asked for; places are those of the screen. */
export interface Name {
  text: string;
  /** The box that it is the name of, and how deep that is. */
  x: number;
  y: number;
  width: number;
  height: number;
  depth: number;
  isOpen: boolean;
  ink: string;
}

/** A name that is written: where its line begins and ends, and the middle of it. */
export interface Written {
  name: Name;
  text: string;
  left: number;
  right: number;
  middle: number;
}

/** Which names are written, and where: outer ones first, whole where there is room beside the box, else cut, else not at all. */
export function placed(names: readonly Name[], width: number, height: number): Written[] {
  /** What is written so far, by the height of it in lines. */
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
    // An open box has it at its upper edge, as far as that is in sight.
    const atTop = Math.min(top + LINE / 2 + 2, bottom - LINE / 2);
    const middle = name.isOpen && name.height > 2 * LINE ? atTop : (name.y + bottom) / 2;
    if (middle < LINE / 2 - 2 || middle > height - LINE / 2 + 2) continue;
    const inside = Math.floor((name.x + name.width - left - 2) / (NAME * LETTER));
    const text = inside < LEAST ? shortened(name.text) : shortened(name.text, Math.min(inside, LONGEST));
    const written = { name, text, left, right: left + wide(text), middle };
    if (written.right > width + NAME || !isFree(written, written.right)) continue;
    found.push(written);
    const line = Math.floor(middle / LINE);
    const there = lines.get(line);
    if (there) there.push(written);
    else lines.set(line, [written]);
  }
  // Those that were cut to their boxes are written whole where nothing else is.
  for (const one of found) {
    const whole = shortened(one.name.text);
    const right = one.left + wide(whole);
    if (one.text === whole || right > width || !isFree(one, right)) continue;
    one.text = whole;
    one.right = right;
  }
  return found;
}

/** Writes names. */
export function write(ctx: CanvasRenderingContext2D, names: readonly Written[], palette: Palette): void {
  ctx.textAlign = "left";
  ctx.lineJoin = "round";
  ctx.lineWidth = 3;
  ctx.strokeStyle = palette.background;
  ctx.font = `600 ${NAME}px ${palette.mono}`;
  for (const { name, text, left, right, middle } of names) {
    // Beside its box it is seen on lines and on other boxes.
    const isOver = right > name.x + name.width || name.height < LINE;
    if (isOver) ctx.strokeText(text, left, middle);
    ctx.fillStyle = isOver ? palette.text : name.ink;
    ctx.fillText(text, left, middle);
  }
}
