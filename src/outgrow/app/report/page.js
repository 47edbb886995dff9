"use strict";
(() => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 600px)");

  // The legend lies below the axis, in as many rows as it takes.
  function room(place, figure) {
    const names = figure.data.map((trace) => trace.name || "");
    if (figure.layout.showlegend === false || names.length < 2) return 0;
    const longest = Math.max(...names.map((name) => name.length));
    const columns = Math.max(1, Math.floor(place.clientWidth / (60 + 7 * longest)));
    return 14 + 20 * Math.ceil(names.length / columns);
  }

  function themed(layout, legend) {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const copy = structuredClone(layout);
    copy.font = { family: "system-ui, sans-serif", size: narrow.matches ? 11 : 12, color: colour("--text") };
    copy.hoverlabel = { bgcolor: colour("--card"), bordercolor: colour("--line"), font: { color: colour("--text") } };
    copy.autosize = true;
    delete copy.height;
    copy.margin.b += legend;
    for (const axis of Object.keys(copy).filter((key) => /^[xy]axis/.test(key))) {
      Object.assign(copy[axis], { gridcolor: colour("--line"), linecolor: colour("--line"), zerolinecolor: colour("--line") });
    }
    return copy;
  }

  const charts = [...document.querySelectorAll("script[data-chart]")].map((script) => ({
    place: document.getElementById(script.dataset.chart),
    figure: JSON.parse(script.textContent),
  }));

  function draw() {
    for (const { place, figure } of charts) {
      const legend = room(place, figure);
      place.style.height = `${(figure.layout.height || 300) + legend}px`;
      Plotly.react(place, figure.data, themed(figure.layout, legend), { responsive: true, displaylogo: false, displayModeBar: false });
    }
    document.body.dataset.drawn = String(charts.length);
  }

  draw();
  dark.addEventListener("change", draw);
  narrow.addEventListener("change", draw);
})();
