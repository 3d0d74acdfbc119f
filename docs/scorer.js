// Weights of Sphinx's search (its own are repeated, since this object replaces them), and a preference for the pages
// that say how to fix something.
var Scorer = {
  score: ([page, _title, _anchor, _description, score]) =>
    page.startsWith("fix/") || page === "slow" ? score + 30 : score,
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
