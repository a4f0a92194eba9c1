/** The texts of the explorer's help. */

export { KEYS, MEANINGS } from "../../panes/meanings";
