/** The rewrite player, with the rules of its steps. */

export { PlayerPane } from "../../panes/player";
export { default as sheet } from "../../styles/player.css";
