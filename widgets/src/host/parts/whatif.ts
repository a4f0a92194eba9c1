/** The switches of *what if*. */

export { WhatIfPane } from "../../panes/whatif";
export { default as sheet } from "../../styles/whatif.css";
