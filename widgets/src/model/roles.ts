/** The roles of equations. */

/** What stands for a role where there is no room for its name: not by colour alone. */
export const ROLE_LETTERS: Readonly<Record<string, string>> = {
  primal: "",
  tangent: "T",
  residual: "R",
  cotangent: "C",
  accumulation: "+",
  recomputation: "↻",
  zero: "0",
  dummy: "∅",
};
