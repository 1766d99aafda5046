"use strict";
// ---- search results for a query
const RANKS = ["components", "translate", "glossary.html", "tutorials"];  // order of pages that match equally well; other sections follow
const CONTRIBUTORS = /tutorials\/add-a-/;  // ranked after pages for users
const FILLERS = new Set("a an the how to do does i my is are what which where can of in for with".split(" "));

function fit(name, query) {  // 4: whole name, 3: whole parts of it, 2: substring, 0: no match
  const text = name.toLowerCase();
  const words = query.split(/\s+/);
  if (text === query || text.replaceAll("_", " ") === query) return 4;
  if (!words.every(word => text.includes(word))) return 0;
  const parts = text.split(/[^\p{L}\p{N}_-]+/u);
  return words.every(word => parts.includes(word)) || text.endsWith("." + query) ? 3 : 2;
}

const without = text => text.split(/\s+/).filter(word => !FILLERS.has(word)).join(" ") || text;
const plain = text => without(text.toLowerCase().replaceAll("-", " "));  // hyphens do not matter

// "nn.Linear to flax" looks for nn.Linear in the directions to Flax
const NAMES = { pytorch: "pytorch", torch: "pytorch", keras: "keras", tensorflow: "keras", tf: "keras", flax: "flax", jax: "flax", nnx: "flax" };
const INTO = new RegExp(`^(.+) (?:to|into|in) (${Object.keys(NAMES).join("|")})$`, "i");

function split(typed) {
  const [, name, target] = typed.trim().replace(/[?\s]+$/, "").match(INTO) ?? [];
  const own = name && !(name.split(/\s+/).at(-1).toLowerCase() in NAMES);  // "keras to pytorch" is a page name
  return own ? [name, NAMES[target.toLowerCase()]] : [typed, ""];
}

function understood(typed) {  // the query, its synonyms, and the pages that come first
  const query = typed.trim().toLowerCase().replace(/\(\)$/, "").replace(/[?\s]+$/, "");
  const [short, bare] = [without(query), plain(query)];
  const within = word => ` ${bare} `.includes(` ${word} `);
  let [longest, thing] = ["", null];
  for (const one of window.SYNONYMS) for (const word of one.words) {
    if (within(plain(word)) && plain(word).length > longest.length) [longest, thing] = [plain(word), one];
  }
  const others = thing ? thing.words.map(word => bare.replace(longest, word.toLowerCase())) : [];
  return { query: short, readings: [...new Set([query, short, bare, ...others])], first: longest === bare && thing ? thing.pages : [] };
}

function places([title, path, , , names], first, fitting) {  // matching places in a page: its best fragment, and fragments of whole names
  const way = path.match(DIRECTION);
  const places = new Map();
  for (const [name, fragment] of way?.[2] ? names : [[title, ""], ...names]) {
    const best = places.get(fragment) ?? { score: 0, name: "", fragment, length: Infinity };
    const at = first.findIndex(one => one === path + fragment || (way && fragment && one === fragment));
    const own = fitting(name);
    const used = own && ["#source", "#config", "#arguments"].includes(fragment);  // used there, but not its name
    const score = at >= 0 ? 9 - at / 9 + own / 99 : own - (used ? 0.5 : 0) - (own && own < 4 && CONTRIBUTORS.test(path) ? 1.5 : 0);
    const shown = name === title || !own ? "" : name;
    const length = way && name === title ? 0 : (shown || title).length;  // a framework's name means a direction rather than a topic
    if (score > best.score || (score > 0 && score === best.score && length < best.length)) {
      places.set(fragment, { score, name: shown, fragment, length, used });
    }
  }
  const [best, ...others] = [...places.values()].sort((a, b) => b.score - a.score || a.length - b.length);
  return best ? [best, ...others.filter(({ score, used }) => score >= 3 && !used).slice(0, 4)] : [];
}

function matches(typed) {
  const [name, target] = split(typed);
  const { query, readings, first } = understood(name);
  if (!query) return [];
  const last = direction() || kept("pair");  // the chosen or last visited direction comes first
  const fits = new Map();  // cached per name, since most names are on several pages
  const fitting = name => {
    if (!fits.has(name)) fits.set(name, Math.max(...readings.map(reading => fit(name, reading))));
    return fits.get(name);
  };
  const results = [];
  for (const page of window.INDEX) {
    const [title, path, section, summary, names] = page;
    const way = path.match(DIRECTION);
    const found = places(page, first, fitting);
    const whole = () => [way?.[2] ? "" : title, summary, ...names.map(([name]) => name)].join(" ").toLowerCase();
    if (!found.length && query.split(/\s+/).every(word => whole().includes(word))) {
      found.push({ score: 1, name: "", fragment: "", length: title.length });
    }
    const place = RANKS.indexOf(path.split("/")[0]);
    const order = (place < 0 ? RANKS.length : place) - (way && way[1] === last ? 0.5 : 0) + (way?.[1].startsWith("numpy") ? 0.2 : 0);
    for (const own of found) {
      if (target && way?.[1].endsWith(`-${target}`)) own.score += 10;
      results.push({ title, path, section, summary, order, topic: topicOf(names, own.fragment), ...own });
    }
  }
  return folded(results.sort((a, b) => b.score - a.score || a.order - b.order || a.length - b.length)).slice(0, 30);
}

const topicOf = (names, fragment) => names.find(([, own]) => own === fragment)?.[0];

function folded(results) {  // merges a topic's directions into one result, at the rank of the first
  const topics = new Map();
  const kept = results.filter(result => {
    const way = result.path.match(DIRECTION);
    if (!way) return true;
    const first = topics.get(way[2] + result.fragment);
    if (first) first.ways.push(result);
    else topics.set(way[2] + result.fragment, Object.assign(result, { ways: [result] }));
    return !first;
  });
  for (const result of direction() ? topics.values() : []) {  // always include the chosen direction
    const path = result.path.replace(DIRECTION, `translate/${direction()}$2.html`);
    const page = window.INDEX.find(([, own]) => own === path);
    if (page && !result.ways.some(way => way.path === path)) result.ways.unshift({ ...result, title: page[0], path, added: true });
  }
  return kept;
}

function near(typed) {  // the terms that share most letter pairs with the query
  const pairs = text => new Set([...text].slice(1).map((letter, i) => text[i] + letter));
  const wanted = pairs(typed.trim().toLowerCase());
  const names = window.INDEX.flatMap(([title, , , , names]) => [title, ...names.map(([name]) => name)]);
  const terms = new Map([...names, ...window.SYNONYMS.flatMap(({ words }) => words)].map(term => [term.toLowerCase(), term]));
  const alike = [...terms].filter(([, term]) => term.length < 40).map(([text, term]) => {
    const own = pairs(text);
    return [2 * [...own].filter(pair => wanted.has(pair)).length / (own.size + wanted.size), term];
  });
  return alike.filter(([share]) => share > 0.4).sort((a, b) => b[0] - a[0]).slice(0, 5).map(([, term]) => term);
}
