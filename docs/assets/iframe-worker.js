// Browsers start no workers for pages that are opened from a folder. There, a hidden frame runs the worker's script, so that the
// search works without a server. MkDocs Material would fetch such a script from elsewhere; this one comes along.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.ready = new Promise(resolve => {
        document.body.append(this.frame);
        const inside = this.frame.contentWindow, page = inside.document;
        inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", {data}));
        inside.importScripts = () => Promise.resolve();
        const script = page.createElement("script");
        script.onload = () => resolve(inside);
        script.src = new URL(url, location.href);
        page.body.append(script);
      });
    }

    postMessage(data) {
      this.ready.then(inside => inside.dispatchEvent(new MessageEvent("message", {data})));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
