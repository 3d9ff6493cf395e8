"use strict";
// Charts, sorting, filtering and the theme. Everything it shows is in this file: nothing is fetched.
(() => {
  const root = document.documentElement;
  const data = JSON.parse(document.getElementById("data").textContent);
  const shown = new Map();  // the view of each chart that is on the page

  // ---- theme
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const isDark = () => (root.dataset.theme || (dark.matches ? "dark" : "light")) === "dark";
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    redraw();
  });
  dark.addEventListener("change", redraw);
  let before = null;
  window.addEventListener("beforeprint", () => {
    before = root.dataset.theme || "";
    root.dataset.theme = "light";
    for (const details of document.querySelectorAll("#paper details")) details.open = true;
    redraw();
  });
  window.addEventListener("afterprint", () => {
    if (before) root.dataset.theme = before; else delete root.dataset.theme;
    redraw();
  });

  // ---- charts
  function axis(given) {
    const line = css("--line");
    return { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true, ...given,
             title: { ...given.title, standoff: 10 } };
  }
  function layoutOf(chart, view, width) {
    const { square, small, ...own } = view.layout;
    const layout = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "closest",
      font: { family: getComputedStyle(document.body).fontFamily, size: width < 600 ? 11 : 13, color: css("--ink") },
      margin: small ? { l: 4, r: 4, t: 4, b: 4 } : { l: 56, r: 16, t: 12, b: 48 },
      legend: below(view, width) ? { orientation: "h", y: -0.22, yanchor: "top" } : { y: 1, yanchor: "top" },
      hoverlabel: { bgcolor: css("--panel"), bordercolor: css("--line"), font: { color: css("--ink") }, align: "left" },
      ...own,
    };
    if (width < 600 && layout.xaxis?.dtick === 1) layout.xaxis = { ...layout.xaxis, dtick: 2, tick0: 1 };
    for (const name of ["xaxis", "yaxis", "yaxis2"]) if (layout[name]) layout[name] = axis(layout[name]);
    return layout;
  }
  const named = (view) => view.data.filter((trace) => trace.showlegend !== false && trace.name);
  const below = (view, width) => width < 900 || named(view).some((trace) => trace.name.length > 30);
  function draw(chart) {
    const figure = document.getElementById("chart-" + chart.id), plot = figure.querySelector(".plot");
    const view = chart.views[shown.get(chart.id) || 0];
    plot.classList.toggle("square", Boolean(view.layout.square));
    const width = plot.clientWidth;
    const traces = view.data.map((trace) => JSON.parse(JSON.stringify(trace).replaceAll("var(--then)", css("--then")).replaceAll("var(--now)", css("--now"))));
    // A long legend below a narrow chart must not squeeze it: the figure grows instead.
    const names = named(view).length;
    if (!view.layout.small) plot.style.height = below(view, width) && names > 4 && !view.layout.square ? `${25 + 1.2 * names}rem` : "";
    return Plotly.react(plot, traces, layoutOf(chart, view, width), { displayModeBar: false, responsive: true })
      .then(() => plot.classList.add("drawn"));
  }
  function redraw() {
    if (window.Plotly) for (const chart of data.charts) draw(chart);
  }
  let settled = 0, lastWidth = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === lastWidth) return;
    lastWidth = window.innerWidth;
    clearTimeout(settled);
    settled = setTimeout(redraw, 150);
  });
  for (const chart of data.charts) {
    const select = document.querySelector(`#chart-${CSS.escape(chart.id)} select`);
    if (select) select.addEventListener("change", () => { shown.set(chart.id, Number(select.value)); draw(chart); });
  }
  async function loadPlotly() {
    // The library is in the page, compressed: base64 of gzip.
    const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  }
  loadPlotly().then(() => Promise.all(data.charts.map(draw))).then(
    () => { root.dataset.ready = "yes"; },
    (error) => {
      root.dataset.ready = "no";
      for (const plot of document.querySelectorAll(".plot")) {
        plot.style.height = "auto";
        plot.textContent = "This browser cannot draw the chart; it is a PNG file beside this page.";
      }
      console.error(error);
    });

  // ---- tables
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => {
        const cell = row.cells[column];
        return cell.dataset.sort === undefined ? cell.textContent.trim() : Number(cell.dataset.sort);
      };
      const rows = [...body.rows].map((row) => [key(row), row]);
      rows.sort(([a], [b]) => {
        // Rows without a number stay below, whichever way is up.
        if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
        const order = typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true });
        return down ? -order : order;
      });
      body.append(...rows.map(([, row]) => row));
    }));
  }
  for (const input of document.querySelectorAll(".filter")) {
    const rows = input.closest(".table-box").querySelectorAll("tbody tr");
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    });
  }
  const shelf = document.getElementById("shelf");
  if (shelf) shelf.addEventListener("change", () => {
    for (const one of document.querySelectorAll(".shelf")) one.hidden = one.dataset.shelf !== shelf.value;
  });
})();
