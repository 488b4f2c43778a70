"use strict";
// The genealogy: a chosen node shows its step in the panel. Every text is set as text, never as markup.
(() => {
  const make = (name, text, kind) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };

  const explore = (figure) => {
    const texts = JSON.parse(figure.querySelector("script.texts").textContent);
    const panel = figure.querySelector(".panel");
    const nodes = [...figure.querySelectorAll(".node")];
    const byPlace = new Map(nodes.map((node) => [`${node.dataset.b} ${node.dataset.s}`, node]));
    const centre = (node) => {
      const dot = node.querySelector("circle");
      return [Number(dot.getAttribute("cx")), Number(dot.getAttribute("cy"))];
    };
    let current = null;

    const block = (name, text) => {
      const part = make("div", undefined, name);
      part.append(make("h4", name), make("pre", text));
      return part;
    };

    const describe = (node) => {
      const branch = texts.branches[node.dataset.b];
      if (!branch) {
        panel.replaceChildren(make("h3", "The task"), make("pre", texts.task));
        return;
      }
      const step = branch.steps[Number(node.dataset.s) - branch.start - 1];
      const facts = [branch.fate];
      if (step.reward !== undefined) facts.unshift(`reward ${step.reward}`);
      if (step.value !== undefined) facts.unshift(`value ${step.value}`, `log-weight ${step.weight}`, `ESS ${step.ess}`);
      else facts.unshift("not scored: the critic is asked where particles are weighed");
      panel.replaceChildren(
        make("h3", `Particle ${branch.particle}, step ${node.dataset.s}`),
        make("p", facts.join(" · "), "facts"),
        ...["thought", "action", "observation"].filter((name) => step[name]).map((name) => block(name, step[name])),
      );
    };

    const choose = (node, focus) => {
      if (!node) return;
      if (current) {
        current.setAttribute("tabindex", "-1");
        current.removeAttribute("aria-pressed");
      }
      current = node;
      node.setAttribute("tabindex", "0");
      node.setAttribute("aria-pressed", "true");
      if (focus) node.focus();
      describe(node);
    };

    const along = (direction) => {
      const b = Number(current.dataset.b);
      const s = Number(current.dataset.s);
      if (direction > 0) {
        const same = byPlace.get(`${b} ${s + 1}`);
        if (same || b < 0) return same || nodes.find((node) => node.dataset.s === "1");
        return nodes.find((node) => texts.branches[node.dataset.b]?.parent === b && Number(node.dataset.s) === s + 1);
      }
      const parent = b < 0 ? null : texts.branches[b].parent;
      return byPlace.get(`${b} ${s - 1}`) || byPlace.get(`${parent} ${s - 1}`) || byPlace.get("-1 0");
    };

    const across = (direction) => {
      const [x, y] = centre(current);
      const side = nodes.filter((node) => (centre(node)[1] - y) * direction > 0.5);
      const distance = (node) => Math.abs(centre(node)[0] - x) * 4 + Math.abs(centre(node)[1] - y);
      return side.reduce((best, node) => (!best || distance(node) < distance(best) ? node : best), null);
    };

    figure.addEventListener("click", (event) => choose(event.target.closest(".node")));
    figure.addEventListener("keydown", (event) => {
      const node = event.target.closest(".node");
      if (!node) return;
      const moves = {
        ArrowRight: () => along(1), ArrowLeft: () => along(-1), ArrowDown: () => across(1), ArrowUp: () => across(-1),
        Enter: () => node, " ": () => node,
      };
      if (!moves[event.key]) return;
      event.preventDefault();
      choose(moves[event.key](), true);
    });
    const winners = nodes.filter((node) => node.classList.contains("winner"));
    choose(winners.reduce((last, node) => (!last || centre(node)[0] > centre(last)[0] ? node : last), null) || nodes[0]);
  };
  document.querySelectorAll(".genealogy").forEach(explore);

  // Charts, where the plotting library is part of the page.
  const tip = make("div", undefined, "tip");
  const showTip = (handler, event, item, value) => {
    if (value === null || value === undefined || value === "") {
      tip.remove();
      return;
    }
    const rows = typeof value === "object" ? Object.entries(value) : [["", value]];
    tip.replaceChildren(...rows.map(([name, text]) => make("div", name ? `${name}: ${text}` : String(text))));
    document.body.append(tip);
    const left = Math.min(event.clientX + 14, document.documentElement.clientWidth - tip.offsetWidth - 8);
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${event.clientY + 14}px`;
  };
  document.querySelectorAll(".chart").forEach((chart) => {
    const spec = JSON.parse(chart.querySelector("script.spec").textContent);
    const plot = chart.querySelector(".plot");
    // The interpreter of expressions needs no permission to evaluate code.
    const settings = { mode: "vega-lite", renderer: "svg", ast: true, actions: false, defaultStyle: false, tooltip: showTip };
    amcEmbed(plot, spec, settings).catch((error) => {
      plot.textContent = `This chart could not be drawn: ${error.message}`;
    });
  });
})();
