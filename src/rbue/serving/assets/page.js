"use strict";

// One image at a time: send it, show the answer. Names of classes are only ever set as text.
(() => {
  const at = (id) => document.getElementById(id);
  const percent = (value) => `${(100 * value).toFixed(1).replace(/\.0$/, "")}\u00a0%`;
  const SHOWN = 5;
  let about = null;
  let asked = 0;

  const say = (words, isError = false) => {
    at("status").textContent = words;
    at("status").className = isError ? "error" : "";
  };

  const element = (name, words, attributes = {}) => {
    const found = document.createElement(name);
    found.textContent = words;
    for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
    return found;
  };

  const drawn = (name, attributes, words) => {
    const found = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
    if (words !== undefined) found.textContent = words;
    return found;
  };

  // An object's names that look like numbers come in their own order, whatever was sent.
  const byProbability = (one, entries) => entries.sort((a, b) => one.probabilities[b[0]] - one.probabilities[a[0]]);

  // Every sample is a dot at its probability, one row a class; the line is their mean. The height inside a row has no
  // meaning: it keeps dots apart, by multiples of the golden ratio so that the picture is always the same.
  const drawSpread = (one) => {
    const svg = at("spread");
    const rows = byProbability(one, Object.entries(one.spread));
    const phone = matchMedia("(max-width: 34rem)").matches;
    const most = phone ? 10 : 24;
    const short = (name) => (name.length > most ? `${name.slice(0, most - 1)}…` : name);
    const left = 26 + 8 * Math.max(...rows.map(([name]) => short(name).length));
    const [width, right, row, top] = [phone ? 360 : 800, 14, 46, 8];
    const x = (value) => left + value * (width - left - right);
    const height = top + rows.length * row + 26;
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    for (const tick of [0, 0.25, 0.5, 0.75, 1]) {
      svg.append(drawn("line", { class: "rule", x1: x(tick), x2: x(tick), y1: top, y2: top + rows.length * row }));
      svg.append(drawn("text", { class: "scale", x: x(tick), y: height - 6, "text-anchor": tick === 1 ? "end" : "middle" }, `${100 * tick}\u00a0%`));
    }
    rows.forEach(([name, values], place) => {
      const middle = top + place * row + row / 2;
      svg.append(drawn("text", { x: left - 10, y: middle + 5, "text-anchor": "end" }, short(name)));
      values.forEach((value, k) => {
        const jitter = (((k + 1) * 0.6180339887) % 1) - 0.5;
        svg.append(drawn("circle", { class: "dot", cx: x(value), cy: middle + jitter * (row - 16), r: 3.5 }));
      });
      const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
      svg.append(drawn("line", { class: "mean", x1: x(mean), x2: x(mean), y1: middle - row / 2 + 4, y2: middle + row / 2 - 4 }));
    });
    const range = ([name, values]) => `${name} from ${percent(Math.min(...values))} to ${percent(Math.max(...values))}`;
    svg.setAttribute("aria-label", `The sampled probabilities: ${rows.map(range).join(", ")}.`);
    svg.removeAttribute("hidden");
  };

  const show = (reply) => {
    const one = reply.predictions[0];
    const most = byProbability(one, Object.entries(one.probabilities)).slice(0, SHOWN);
    at("answer").textContent = one.label;
    const agree = one.votes ? ` ${one.votes[one.label]} of ${one.samples} samples say so.` : "";
    at("sure").textContent = `${percent(one.confidence)} sure.${agree}`;
    const facts = [
      ["entropy", `${one.entropy.toFixed(3)} nats, of at most ${Math.log(about.classes).toFixed(3)}`],
      ["mutual information", `${one.mutual_information.toFixed(4)} nats: what the samples disagree about`],
      ["samples", `${one.samples}, ${reply.draws}, seed ${reply.seed}`],
    ];
    if (one.scaled_from) facts.push(["scaled", `from ${one.scaled_from.join(" × ")} pixels, the middle of it`]);
    at("facts").replaceChildren(...facts.flatMap(([name, value]) => [element("dt", name), element("dd", value)]));

    at("set").replaceChildren(...(one.set || []).map((name) => element("li", name)));
    at("set-title").textContent = one.set && one.set.length === 1 ? "Only this one" : "One of these";
    at("set-words").textContent = one.set
      ? `On images like the held-out ones, a set like this holds the right class in ${percent(reply.coverage)} of cases or more.`
      : "Start the server with --conformal 0.9 to get a set of classes that holds the right one in 90 % of cases.";
    if (!one.set) at("set-title").textContent = "No set of classes";

    if (one.spread) {
      at("spread-words").textContent = "Each dot is one random pass: how probable it finds the class. The upright line is their mean.";
      drawSpread(one);
    } else {
      at("spread-words").textContent = "This file gives no single samples; serve the run folder to see their spread.";
      at("spread").setAttribute("hidden", "");
    }
    const rows = most.map(([name, mean]) => {
      const row = document.createElement("tr");
      row.append(element("th", name, { scope: "row" }), element("td", percent(mean)));
      row.append(element("td", one.std ? percent(one.std[name]) : "–"), element("td", one.votes ? String(one.votes[name]) : "–"));
      return row;
    });
    at("numbers").tBodies[0].replaceChildren(...rows);
    at("result").hidden = false;
    say(`${one.label}: ${percent(one.confidence)} sure.`);
    at("status").className = "unseen"; // it is said aloud, and stands below
    at("result").focus({ preventScroll: true });
  };

  const headers = () => (at("token").value ? { authorization: `Bearer ${at("token").value}` } : {});

  const ask = async (file) => {
    const turn = ++asked;
    if (!about) {
      say("The server has not said yet what it serves; try again in a moment.");
      return;
    }
    if (about.needs_token && !at("token").value) {
      say("Type the server's token first, then choose the image again.", true);
      at("token").focus();
      return;
    }
    say("Asking …");
    at("result").hidden = true;
    const form = new FormData();
    form.append("file", file);
    const query = about.gives_spread ? `?spread=${SHOWN}` : "";
    let reply;
    try {
      const response = await fetch(`predict${query}`, { method: "POST", body: form, headers: headers() });
      reply = await response.json();
      if (turn !== asked) return; // another image was chosen meanwhile
      if (!response.ok) throw new Error(reply.error);
    } catch (error) {
      if (turn === asked) say(error instanceof TypeError ? "The server cannot be reached; is it running?" : error.message, true);
      return;
    }
    const picture = at("picture");
    if (picture.src.startsWith("blob:")) URL.revokeObjectURL(picture.src);
    picture.hidden = !file.type.startsWith("image/");
    if (!picture.hidden) picture.src = URL.createObjectURL(file);
    show(reply);
  };

  at("picture").addEventListener("load", () => {
    at("picture").classList.toggle("small", at("picture").naturalWidth < 128); // its pixels are worth seeing
  });
  at("file").addEventListener("change", () => {
    if (at("file").files.length) ask(at("file").files[0]);
    at("file").value = ""; // the same file may be chosen again
  });
  at("form").addEventListener("submit", (event) => event.preventDefault());
  for (const name of ["dragover", "dragenter"]) {
    addEventListener(name, (event) => {
      event.preventDefault();
      at("drop").classList.add("over");
    });
  }
  addEventListener("dragleave", () => at("drop").classList.remove("over"));
  addEventListener("drop", (event) => {
    event.preventDefault();
    at("drop").classList.remove("over");
    if (event.dataTransfer.files.length) ask(event.dataTransfer.files[0]);
  });

  fetch("health")
    .then((response) => response.json())
    .then((found) => {
      about = found;
      at("about").textContent = `${found.model}, ${found.classes} classes, ${found.samples} random ${found.samples === 1 ? "pass" : "passes"} an image.`;
      at("token-field").hidden = !found.needs_token;
      if (!found.images) say("This server takes .npy arrays alone: it was started without --mean and --std.");
    })
    .catch(() => say("The server cannot be reached; is it running?", true));
})();
