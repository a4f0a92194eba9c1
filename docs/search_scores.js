// How the site's search ranks what it finds: a how-to answers a question in fewer words than a notebook, and both come
// before pages that mention the words, such as the changelog. The other numbers are Sphinx's own.
var Scorer = {
  score: ([page, , , , score, , kind]) => {
    if (page.startsWith("howto/")) return score + 20;
    if (page.startsWith("tutorials/")) return score + (kind === "title" ? 8 : 3);
    if (page === "changelog" || page === "contributing" || page === "design") return score - 10;
    return score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
